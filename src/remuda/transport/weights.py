"""Versioned weights in shared memory: one row per agent, one writer per row, any number of readers, no locks.

A row has a sequence number: odd while it is being written, even otherwise. A reader copies rows that
moved since it last looked, reads the number again and forgets what it copied if the row moved meanwhile.
A writer that dies in the middle leaves an odd number: readers go on with the row they have.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import WorkerError
from remuda.core.policy import UNVERSIONED
from remuda.core.timeline import span
from remuda.transport.shared_memory import SharedMemory, plan_fields

TRIES = 8
"""Times a reader copies a row that keeps moving before it stays with the old one until it next looks."""
FIRST_LIMIT_S = 60.0
"""Longest a reader waits for the first whole copy of a row: it has no old one to go on with."""
_order = threading.Lock()


def _fence() -> None:
    """Keep what stands before this before what stands after it, on processors that reorder memory too."""
    with _order:
        pass


class WeightStore:
    """Rows, sequence numbers and versions of every part of the herd that learns."""

    def __init__(self, shapes: Mapping[int, tuple[int, int]]) -> None:
        """`shapes`: agents and columns of each part's rows."""
        self._fields, size = plan_fields(
            (f"{part}/{name}", shape, dtype)
            for part, (agents, columns) in shapes.items()
            for name, shape, dtype in (
                ("rows", (agents, columns), np.float32),
                ("sequence", (agents,), np.int64),
                ("version", (agents,), np.int64),
            )
        )
        self.shapes = dict(shapes)
        self.memory = SharedMemory(size)

    def _view(self, part: int, name: str) -> NDArray[Any]:
        return self._fields[f"{part}/{name}"].view(self.memory)

    def publish(self, part: int, rows: NDArray[np.float32], version: int, first: int = 0) -> None:
        """Write rows first, first+1, … of a part; only ever one process writes a row."""
        sequence, versions = self._view(part, "sequence"), self._view(part, "version")
        store = self._view(part, "rows")
        last = first + len(rows)
        with span("publish"):
            sequence[first:last] |= 1  # also where a writer before us died in the middle
            _fence()
            store[first:last] = rows
            versions[first:last] = version
            _fence()
            sequence[first:last] += 1

    def newest(self, part: int, first: int, last: int) -> int:
        """The newest version of these rows, whole or not."""
        return int(self._view(part, "version")[first:last].max())

    def oldest(self) -> int:
        """The oldest version of any row."""
        return min((int(self._view(part, "version").min()) for part in self.shapes), default=UNVERSIONED)


class WeightReader:
    """One process's view of a board: the last whole copy of every row, and its version."""

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.rows = {part: np.zeros(shape, np.float32) for part, shape in store.shapes.items()}
        self.versions = {part: np.zeros(shape[0], np.int64) for part, shape in store.shapes.items()}
        self.retries = 0  # copies thrown away because the row moved
        self._seen = {part: np.full(shape[0], -1, np.int64) for part, shape in store.shapes.items()}

    def refresh(self) -> list[int]:
        """Copy the rows that moved; returns the parts in which any did."""
        return [part for part in self.store.shapes if self._refresh(part)]

    def _refresh(self, part: int) -> bool:
        sequence = self.store._view(part, "sequence")
        moved = np.flatnonzero(sequence != self._seen[part])
        return sum(self._copy(part, int(agent), sequence) for agent in moved) > 0

    def _copy(self, part: int, agent: int, sequence: NDArray[Any]) -> bool:
        """One whole row, or the old one if the row is being written all the time; the first has to be had."""
        rows, versions = self.store._view(part, "rows"), self.store._view(part, "version")
        deadline, tries = time.monotonic() + FIRST_LIMIT_S, 0
        while tries < TRIES or self._seen[part][agent] < 0:
            before = int(sequence[agent])
            if before % 2 == 0:
                _fence()
                row, version = rows[agent].copy(), int(versions[agent])
                _fence()
                if int(sequence[agent]) == before:
                    self.rows[part][agent] = row
                    self.versions[part][agent] = version
                    self._seen[part][agent] = before
                    return True
            self.retries += 1
            tries += 1
            os.sched_yield()
            if time.monotonic() > deadline:
                raise WorkerError(f"the weights of agent {agent} were not written whole within {FIRST_LIMIT_S:.0f} s")
        return False
