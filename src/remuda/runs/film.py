"""The film of a run: a trained herd at play, as a GIF or in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.live import Live
from rich.text import Text

from remuda.core.errors import RunError
from remuda.core.fragment import Purpose
from remuda.core.game import Game, make_game
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.herd import bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.directory import RunDirectory
from remuda.runs.display import show_picture
from remuda.runs.frozen import load_frozen

FILM_PIXELS = 420
FRAME_MS = 120


@overload
def watch(
    run: RunDirectory | Path | str,
    gif: Path | str | None = None,
    episode: int = 0,
    checkpoint: str | None = None,
    *,
    terminal: Literal[False] = False,
    trust: bool = False,
) -> Path: ...


@overload
def watch(
    run: RunDirectory | Path | str,
    *,
    episode: int = 0,
    checkpoint: str | None = None,
    terminal: Literal[True],
    delay_s: float = 0.1,
    trust: bool = False,
) -> None: ...


def watch(
    run: RunDirectory | Path | str,
    gif: Path | str | None = None,
    episode: int = 0,
    checkpoint: str | None = None,
    *,
    terminal: bool = False,
    delay_s: float = 0.1,
    trust: bool = False,
) -> Path | None:
    """Write an evaluation episode of a trained herd as a GIF and return its path; a notebook shows it.

    `gif` is the file to write, by default watch.gif in the run directory (of a zoo agent: here). `checkpoint` is
    the name of one, or "best"; the default is the newest. With `terminal` the episode is played in this terminal
    instead, a turn every `delay_s` seconds. `trust` follows names of code in a run that
    somebody else made.
    """
    opened = RunDirectory.of(run, trust=trust)
    games = play(opened, trained_bindings(opened, checkpoint), episode)
    if terminal:
        _show_in_terminal(games, delay_s)
        return None
    folder = Path() if opened.shipped else opened.path
    target = folder / "watch.gif" if gif is None else Path(gif)
    make_film(target, games)
    show_picture(target)
    return target


def _show_in_terminal(games: Iterator[Game], delay_s: float) -> None:
    with Live(console=Console(), auto_refresh=False) as live:
        for turn, game in enumerate(games):
            live.update(Text(f"{game.text(0)}\nturn {turn + 1}"), refresh=True)
            time.sleep(delay_s)


def trained_bindings(run: RunDirectory, name: str | None = None) -> list[PolicyBinding]:
    """Policies for every agent of a run: those that learned have the weights of a checkpoint."""
    bindings = []
    for part in load_frozen(run.parts, run.spec, run.trust):
        group = run.spec.groups[part.group]
        if part.learns:
            numbers = range(part.herd_first, part.herd_first + part.agents)
            policy = run.policy(numbers, group, "cpu", name)
            bindings.append(PolicyBinding(part.group, part.first, part.last, policy))
        else:
            bindings.append(bind_policy(part, run.plan, run.spec, "cpu"))
    return bindings


def play(
    run: RunDirectory, bindings: Sequence[PolicyBinding], episode: int, exploration: float = 0.0
) -> Iterator[Game]:
    """Play one evaluation episode; yields the game after each turn."""
    plan = run.plan
    world = episode % plan.worlds
    game = make_game(find_game(plan.game), plan.options, [world])
    rollout = Rollout(game, bindings, RolloutConfig.of(plan))
    rollout.start(Task((episode,), Purpose.EVALUATE, exploration))
    while not game.over.all():
        rollout.play(rollout.empty_fragments(turns=1))
        yield game


def make_film(target: Path, games: Iterator[Game]) -> None:
    """Write world 0 as a GIF; each pixel of the game's picture becomes a square."""
    pictures = [_enlarge(game.render(0)) for game in games]
    try:
        pictures[0].save(target, save_all=True, append_images=pictures[1:], duration=FRAME_MS, loop=0)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None


def _enlarge(picture: NDArray[np.uint8]) -> Image.Image:
    scale = max(1, FILM_PIXELS // max(picture.shape[:2]))
    big: NDArray[Any] = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    return Image.fromarray(big).quantize(64)
