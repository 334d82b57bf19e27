"""A cache of the outputs of an agent's actor for the observations it has seen with its present weights.

Equal observations have equal probabilities, to the bit: products have at least MIN_ROWS rows. So the cache
changes no result. When weights arrive, the rows that were used with the old ones are kept and
evaluated at once, since agents mostly see again what they saw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.learners.distinct import MULTIPLIER, SHIFT, WORD

MAX_EVALUATED = 0.5
"""A table pays if at most this share of the rows that are asked for has to be evaluated."""
ASKED = 1000
"""Rows that are asked for before a table is judged."""
PAUSE = 20
"""Versions of the weights for which a table that does not pay is not used."""
MAX_BYTES = 32 << 20
"""Size of an agent's table at most; rows that it has no place for are evaluated every time."""
ABSENT = -1


class OutputCache:
    """Keys (rows of words) and answers (rows of numbers) of one agent."""

    def __init__(self, words: int, answers: int) -> None:
        self.version = -1
        """Of the weights that gave the answers, as counted by the owner."""
        self.limit = max(64, MAX_BYTES // (WORD * words + 4 * answers + 16))
        self.count = self.asked = self.evaluated = self.pause = 0
        self._allocate(64, words, answers)
        self.kept = self.keys[:0]
        """Keys to evaluate when the table is used again."""

    @property
    def pays(self) -> bool:
        """Whether most answers are found."""
        return self.pause == 0

    def _allocate(self, capacity: int, words: int, answers: int) -> None:
        self.keys = np.zeros((capacity, words), np.uint64)
        self.answers = np.zeros((capacity, answers), np.float32)
        self.used = np.zeros(capacity, np.bool_)
        self.slots = np.full(4 * capacity, ABSENT, np.int32)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Where the answers to keys (rows, words) are, (rows,); ABSENT for unknown ones."""
        places = np.empty(len(keys), np.int32)
        self.asked += len(keys)
        _find(keys, self.keys, self.slots, self.used, places)
        return places

    def add(self, keys: NDArray[np.uint64], answers: NDArray[np.float32]) -> None:
        """Include keys (rows, words) that are not in it, as far as there is room."""
        fits = min(len(keys), self.limit - self.count)
        self.evaluated += len(keys)
        while self.count + fits > len(self.keys):
            self._grow()
        self.keys[self.count : self.count + fits] = keys[:fits]
        self.answers[self.count : self.count + fits] = answers[:fits]
        self.used[self.count : self.count + fits] = True
        _insert(self.keys, self.slots, self.count, self.count + fits)
        self.count += fits

    def _grow(self) -> None:
        """Double the capacity."""
        keys, answers, used = self.keys, self.answers, self.used
        self._allocate(2 * len(keys), keys.shape[1], answers.shape[1])
        self.keys[: len(keys)], self.answers[: len(keys)], self.used[: len(keys)] = keys, answers, used
        _insert(self.keys, self.slots, 0, self.count)

    def begin(self, version: int) -> None:
        """Empty the table for other weights; the keys that were used with the last ones become `kept`."""
        self.version = version
        if self.pause:
            self.pause -= 1
        elif self.asked >= ASKED:
            self.pause = PAUSE if self.evaluated > MAX_EVALUATED * self.asked else 0
            self.asked = self.evaluated = 0
        self.kept = self.keys[: self.count][self.used[: self.count]]
        self.slots[:] = ABSENT
        self.used[:] = False
        self.count = 0


@kernel
def _slot(keys: Any, i: int, last: Any) -> Any:
    mixed = MULTIPLIER
    for k in range(keys.shape[1]):
        mixed = (mixed ^ keys[i, k]) * MULTIPLIER
        mixed ^= mixed >> SHIFT
    return mixed & last


@kernel
def _same(keys: Any, i: int, others: Any, j: int) -> Any:
    k = 0
    while k < keys.shape[1] and keys[i, k] == others[j, k]:
        k += 1
    return k == keys.shape[1]


@kernel
def _find(keys: Any, known: Any, slots: Any, used: Any, places: Any) -> None:
    last = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        slot = _slot(keys, i, last)
        while slots[slot] != ABSENT and not _same(keys, i, known, slots[slot]):
            slot = (slot + np.uint64(1)) & last
        places[i] = slots[slot]
        if places[i] != ABSENT:
            used[places[i]] = True


@kernel
def _insert(keys: Any, slots: Any, first: int, end: int) -> None:
    last = np.uint64(len(slots) - 1)
    for i in range(first, end):
        slot = _slot(keys, i, last)
        while slots[slot] != ABSENT:
            slot = (slot + np.uint64(1)) & last
        slots[slot] = i


@kernel
def fill_keys(obs: Any, ages: Any, mask: Any, agent: int, columns: int, out: Any) -> None:
    """Write an agent's keys as bytes to out (worlds, bytes): its own frames, oldest first, then allowed actions.

    `obs` (frames, worlds, agents, bytes) are observations as bytes, of which a key has `columns`; `mask` (worlds,
    agents, actions) may have no columns. Frames older than the agent are zero.
    """
    frames, worlds, _, size = obs.shape
    for w in range(worlds):
        oldest = max(0, frames - 1 - ages[w, agent])
        for i in range(oldest * size):
            out[w, i] = 0
        for f in range(oldest, frames):
            for i in range(size):
                out[w, f * size + i] = obs[f, w, agent, i]
        for j in range(mask.shape[2]):
            out[w, columns + j] = mask[w, agent, j]


@kernel
def take_rows(source: Any, places: Any, out: Any) -> None:
    """Copy rows of `source` (…, width) to out (rows, width) where the place is not ABSENT."""
    for i in range(len(places)):
        if places[i] != ABSENT:
            out[i] = source[places[i]]
