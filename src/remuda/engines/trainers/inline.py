"""Learning in this process, while nothing is being collected in it."""

from __future__ import annotations

from collections import deque
from typing import Any

from remuda.engines.interfaces import RoundPiece, Update
from remuda.engines.trainers.local import LocalTrainers


class InlineTrainers(LocalTrainers):
    """Learns inside `work` and `poll`, one round after another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rounds: deque[tuple[int, list[RoundPiece]]] = deque()  # complete, not learned yet
        self._done: list[Update] = []  # not returned yet

    def _complete(self, number: int) -> None:
        self._rounds.append((number, self._pop_round(number)))

    def _learn_next(self) -> None:
        number, pieces = self._rounds.popleft()
        self._done.append(self._learn(number, pieces))
        self.version = number

    def work(self) -> None:
        """Learn every complete round now."""
        while self._rounds:
            self._learn_next()

    def poll(self, version: int) -> list[Update]:
        """Returns the updates not returned yet, having learned up to `version`."""
        while self._rounds and self.version < version:
            self._learn_next()
        done, self._done = self._done, []
        return done
