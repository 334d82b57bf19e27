"""Rollouts kept for reuse, so that no game is built anew for every task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from remuda.core.game import Game, GameEntry, check_options, make_game
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout, game_errors

MAX_CACHED = 64
"""Players kept for reuse; each holds the arrays of its worlds."""


class RolloutCache:
    """Players kept for reuse, so that no game is built anew for every task."""

    def __init__(
        self, entry: GameEntry, options: Mapping[str, Any], config: RolloutConfig, make: Callable[[Game], Rollout]
    ) -> None:
        self._entry, self._options, self._config, self._make = entry, options, config, make
        self._kinds = entry.kinds(check_options(entry, options))
        self._kept: OrderedDict[tuple[int, ...], Rollout] = OrderedDict()

    def begin(self, task: Task, thread: int = 0) -> Rollout:
        """This thread's player for worlds like the task's, ready to play it."""
        key = self._key(task, thread)
        rollout = self._kept.pop(key, None)  # for good, if it fails
        if rollout is None:
            with game_errors(self._entry.name, task, self._config):
                rollout = self._make(make_game(self._entry, self._options, self._worlds(task)))
        rollout.start(task)
        self._kept[key] = rollout
        if len(self._kept) > MAX_CACHED:
            self._kept.popitem(last=False)
        return rollout

    def forget(self, task: Task, thread: int = 0) -> None:
        """Never use the player of this task again: who knows what state its game is in."""
        self._kept.pop(self._key(task, thread), None)

    def _key(self, task: Task, thread: int) -> tuple[int, ...]:
        return (thread, *self._worlds(task))

    def _worlds(self, task: Task) -> list[int]:
        """Numbers of the worlds, alike ones alike."""
        return [episode % self._config.worlds % self._kinds for episode in task.episodes]
