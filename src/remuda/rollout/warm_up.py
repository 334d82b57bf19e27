"""Warm-up: plays a few turns before training, so that what is compiled or loaded on first use is ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remuda.core.game import Game, GameEntry, make_game
from remuda.core.policy import PolicyBinding, RandomPolicy
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout


def random_bindings(game: Game) -> list[PolicyBinding]:
    """A random policy for every agent."""
    return [
        PolicyBinding(g, 0, group.size, RandomPolicy(group, group.size)) for g, group in enumerate(game.spec.groups)
    ]


def warm_up(entry: GameEntry, options: Mapping[str, Any]) -> None:
    """Play one turn with parallel actions and one without, so that all kernels of the game are compiled."""
    game = make_game(entry, options, [0])
    for parallel in (True, False):
        rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1, parallel))
        rollout.start(Task((0,)))
        rollout.play(rollout.empty_fragments(turns=1))
