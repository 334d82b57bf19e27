"""The film of a run: the herd at play, as a GIF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from remuda.core.errors import RunError
from remuda.core.fragment import Purpose
from remuda.core.game import Game, make_game
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.herd import bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.frozen import load_frozen

if TYPE_CHECKING:
    from remuda.runs.run import Run


FILM_PIXELS = 420
FRAME_MS = 120


def trained_bindings(run: Run, name: str | None = None) -> list[PolicyBinding]:
    """The trained herd, ready to play."""
    bindings = []
    for part in load_frozen(run.parts, run.spec):
        group = run.spec.groups[part.group]
        if part.learns:
            numbers = range(part.herd_first, part.herd_first + part.agents)
            policy = run.policy(numbers, group, "cpu", name)
            bindings.append(PolicyBinding(part.group, part.first, part.last, policy))
        else:
            bindings.append(bind_policy(part, run.plan, run.spec, "cpu"))
    return bindings


def play(run: Run, bindings: Sequence[PolicyBinding], episode: int, exploration: float = 0.0) -> Iterator[Game]:
    """One evaluation episode, turn by turn; yields the game after each."""
    plan = run.plan
    world = episode % plan.worlds
    game = make_game(find_game(plan.game), plan.options, [world])
    rollout = Rollout(game, bindings, RolloutConfig.of(plan))
    rollout.start(Task((episode,), Purpose.EVALUATE, exploration))
    while not game.over.all():
        rollout.play(rollout.empty_fragments(turns=1))
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
