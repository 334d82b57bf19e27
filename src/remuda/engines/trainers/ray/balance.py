"""Slices balanced by what learning costs: first by parameters and updates, then by measured time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from remuda.engines.trainers.slices import AgentSlice, Costs, split
from remuda.learners.herd import Part

MEASURED_ROUNDS = 3
"""Rounds that every learner must have learned before its time counts."""
WORTH_MOVING = 0.8
"""Share of the slowest learner's time that a better split must not exceed: less is hardly worth the move."""
MAX_MOVES = 3
"""Times that a run is sliced anew: times vary, and a herd must not move for ever."""


class SliceBalancer:
    """Splits a herd, and finds a better split from the time that learning took."""

    def __init__(self, parts: Sequence[Part], costs: Costs) -> None:
        self.why = ""  # the last split is better than the one before, in words
        self._parts, self._costs = parts, {part: own.astype(np.float64) for part, own in costs.items()}
        self._seconds: dict[AgentSlice, list[float]] = {}  # by round, since the herd was last sliced
        self._moves = 0

    def split(self, learners: int) -> list[list[AgentSlice]]:
        """The herd in as many slices, by what is known of their cost."""
        self._seconds = {}
        return split(self._parts, learners, self._costs)

    def note(self, slices: Sequence[AgentSlice], seconds: Sequence[float]) -> None:
        """A learner took so long to learn a round, slice by slice; there are no seconds if it skipped the round."""
        for own, taken in zip(slices, seconds, strict=False):
            self._seconds.setdefault(own, []).append(taken)

    def better(self, slices: Sequence[Sequence[AgentSlice]]) -> list[list[AgentSlice]] | None:
        """Another split, if it makes the slowest learner much faster than with these slices."""
        if min(map(len, self._seconds.values()), default=0) < MEASURED_ROUNDS or self._moves >= MAX_MOVES:
            return None
        for (part, first, last), taken in self._seconds.items():
            own = self._costs[part][first:last]
            own *= (
                max(statistics.median(taken), 1e-9) / own.sum()
            )  # what is known of agents of a slice among each other stays
        before, found = self._slowest(slices), self.split(len(slices))
        if (after := self._slowest(found)) > WORTH_MOVING * before:
            return None
        self._moves += 1
        self.why = f"the slowest learner takes {after:.2g} s a round instead of {before:.2g}"
        return found

    def _slowest(self, slices: Sequence[Sequence[AgentSlice]]) -> float:
        """The cost of the learner that has most to do."""
        return max(sum(float(self._costs[part][first:last].sum()) for part, first, last in own) for own in slices)
