"""A cache of rollouts, because building a game for every task would cost more than playing it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from remuda.core.game import Game, GameEntry, check_options, make_game
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout, game_error_context

MAX_CACHED = 64
"""Rollouts kept; each holds the arrays of its worlds."""


class RolloutCache:
    """Keeps the last rollouts used, by thread and worlds; worlds with the same options count as the same."""

    def __init__(
        self, entry: GameEntry, options: Mapping[str, Any], config: RolloutConfig, make: Callable[[Game], Rollout]
    ) -> None:
        self._entry, self._options, self._config, self._make = entry, options, config, make
        self._distinct_worlds = entry.distinct_worlds(check_options(entry, options))
        self._kept: OrderedDict[tuple[int, ...], Rollout] = OrderedDict()

    def begin(self, task: Task, thread: int = 0) -> Rollout:
        """This thread's rollout for the task's worlds, with the task started."""
        key = self._key(task, thread)
        rollout = self._kept.pop(key, None)  # put back below, unless starting the task raises
        if rollout is None:
            with game_error_context(self._entry.name, task, self._config):
                rollout = self._make(make_game(self._entry, self._options, self._worlds(task)))
        rollout.start(task)
        self._kept[key] = rollout
        if len(self._kept) > MAX_CACHED:
            self._kept.popitem(last=False)
        return rollout

    def forget(self, task: Task, thread: int = 0) -> None:
        """Drop the rollout of a task that failed: the state of its game is unknown."""
        self._kept.pop(self._key(task, thread), None)

    def _key(self, task: Task, thread: int) -> tuple[int, ...]:
        return (thread, *self._worlds(task))

    def _worlds(self, task: Task) -> list[int]:
        """Numbers of the task's worlds; worlds with the same options have the same number."""
        return [episode % self._config.worlds % self._distinct_worlds for episode in task.episodes]
