"""Pictures of a run: the learning curve as PNG, the herd at play as GIF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from remuda.collect import Manner, Player, Seat, Task
from remuda.errors import ConfigError, RunError
from remuda.fragment import Purpose
from remuda.game import Game, make_game
from remuda.games import find_game
from remuda.herd import make_seat
from remuda.telemetry.metrics import by_agent
from remuda.telemetry.progress import Progress

if TYPE_CHECKING:
    from remuda.run import Run

FILM_PIXELS = 420
FRAME_MS = 120
LEGEND_AGENTS = 10


def draw(run: Run, progress: Progress) -> None:
    """Curve and film, into the run directory."""
    curve = draw_curve(run)
    progress.say(f"curve: {curve}")
    try:
        film = run.path / "herd.gif"
        make_film(film, play(run, seats_of(run), 0))
        progress.say(f"film:  {film}")
    except ConfigError as error:
        progress.say(f"no film: {error}")


def draw_curve(run: Run) -> Path:
    """Return against episodes: each agent thin, the herd's mean thick, evaluations as dots."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    table = run.metrics
    episodes = by_agent(table, "episodes")[:, 0]
    returns = by_agent(table, "return")
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    width = max(1, len(returns) // 50)
    smooth = _moving_mean(returns, width)
    for agent in range(returns.shape[1]):
        label = f"agent {agent}" if returns.shape[1] <= LEGEND_AGENTS else None
        axes.plot(episodes[width - 1 :], smooth[:, agent], linewidth=0.9, alpha=0.7, label=label)
    axes.plot(episodes[width - 1 :], smooth.mean(axis=1), color="black", linewidth=2, label="mean of the herd")
    tests = run.evaluations
    if len(tests["round"]):
        axes.plot(
            by_agent(tests, "episodes")[:, 0], by_agent(tests, "return").mean(axis=1),
            "o", color="crimson", label="evaluation (greedy)",
        )  # fmt: skip
    axes.set(xlabel="episodes", ylabel="return per episode", title=f"{run.plan.game}, {returns.shape[1]} agents")
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small", ncols=2)
    target = run.path / "curve.png"
    try:
        figure.savefig(target)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def _moving_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    sums = np.cumsum(np.vstack([np.zeros((1, values.shape[1])), values]), axis=0)
    means: NDArray[np.float64] = (sums[width:] - sums[:-width]) / width
    return means


def seats_of(run: Run, name: str | None = None) -> list[Seat]:
    """The trained herd, ready to play."""
    seats = []
    for part in run.parts:
        group = run.spec.groups[part.group]
        if part.learns:
            numbers = range(part.herd_first, part.herd_first + part.agents)
            policy = run.policy(numbers, group, "cpu", name)
            seats.append(Seat(part.group, part.first, part.last, policy))
        else:
            seats.append(make_seat(part, run.plan, run.spec, "cpu"))
    return seats


def play(run: Run, seats: Sequence[Seat], episode: int, exploration: float = 0.0) -> Iterator[Game]:
    """One evaluation episode, turn by turn; yields the game after each."""
    plan = run.plan
    world = episode % plan.worlds
    game = make_game(find_game(plan.game), plan.options, [world])
    player = Player(game, seats, Manner.of(plan))
    player.start(Task((episode,), Purpose.EVALUATE, exploration))
    while not game.over.all():
        player.play(player.room(turns=1))
        yield game


def make_film(target: Path, games: Iterator[Game]) -> None:
    """A GIF of world 0, each cell a square."""
    pictures = [_enlarge(game.render(0)) for game in games]
    try:
        pictures[0].save(target, save_all=True, append_images=pictures[1:], duration=FRAME_MS, loop=0)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None


def _enlarge(picture: NDArray[np.uint8]) -> Image.Image:
    scale = max(1, FILM_PIXELS // max(picture.shape[:2]))
    big: NDArray[Any] = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    return Image.fromarray(big).quantize(64)
