"""Versioned weights in shared memory: one row per agent, one writer per row, any number of readers, no locks.

This is a sequence lock. A row has a sequence number: odd while the row is being written, even otherwise. A reader notes
the number, copies the row, and reads the number again. If the number was odd or has changed, the copy may mix two
versions and is thrown away. A writer that dies while it writes leaves an odd number: readers keep the copy they have,
until another writer writes the whole row.
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
from remuda.core.timeline import span
from remuda.transport.shared_memory import SharedMemory, plan_fields

TRIES = 8
"""Times a reader tries to copy a row that keeps changing; then it keeps its old copy until the next refresh."""
FIRST_COPY_LIMIT_S = 60.0
"""Longest a reader waits for its first complete copy of a row: it has no old copy to go on with."""
_fence_lock = threading.Lock()


def _fence() -> None:
    """A memory barrier: accesses before this line happen before accesses after it, also for other processes.

    x86 keeps the order of loads and the order of stores by itself, ARM does not. Python has no barrier of its own; the
    atomic operations of taking and releasing a lock serve as one, for under 0.3 microseconds (timeit, never contended).
    """
    with _fence_lock:
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

    def view(self, part: int, name: str) -> NDArray[Any]:
        """The `rows` (agents, columns), `sequence` (agents,) or `version` (agents,) of a part, not copied."""
        return self._fields[f"{part}/{name}"].view(self.memory)

    def publish(self, part: int, rows: NDArray[np.float32], version: int, first: int = 0) -> None:
        """Write rows first, first+1, … of a part; a row must only ever be written by one process at a time."""
        sequence, versions = self.view(part, "sequence"), self.view(part, "version")
        stored = self.view(part, "rows")
        last = first + len(rows)
        with span("publish"):
            # Odd before the first byte changes. `|= 1` instead of `+= 1`: the number is odd already where a writer
            # died in the middle, and adding 1 would declare its half-written row complete.
            sequence[first:last] |= 1
            _fence()
            stored[first:last] = rows
            versions[first:last] = version
            _fence()  # even only after the last byte
            sequence[first:last] += 1

    def newest(self, part: int, first: int, last: int) -> int:
        """The newest version of rows first … last-1, complete or not."""
        return int(self.view(part, "version")[first:last].max())


class WeightReader:
    """One process's copy of a weight store: the last complete copy of every row, and its version."""

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.rows = {part: np.zeros(shape, np.float32) for part, shape in store.shapes.items()}
        self.versions = {part: np.zeros(shape[0], np.int64) for part, shape in store.shapes.items()}
        self.retries = 0  # copies thrown away because the row changed
        # Sequence number of each copy; -1 where there is none yet.
        self._copied = {part: np.full(shape[0], -1, np.int64) for part, shape in store.shapes.items()}

    def refresh(self) -> list[int]:
        """Copy the rows that changed; returns the parts in which any did."""
        return [part for part in self.store.shapes if self._refresh(part)]

    def _refresh(self, part: int) -> bool:
        sequence = self.store.view(part, "sequence")
        changed = np.flatnonzero(sequence != self._copied[part])
        return sum(self._copy(part, int(agent), sequence) for agent in changed) > 0

    def _copy(self, part: int, agent: int, sequence: NDArray[Any]) -> bool:
        """Copy one row; False if it kept changing, and the old copy stays. A first copy is waited for."""
        rows, versions = self.store.view(part, "rows"), self.store.view(part, "version")
        deadline, tries = time.monotonic() + FIRST_COPY_LIMIT_S, 0
        while tries < TRIES or self._copied[part][agent] < 0:
            before = int(sequence[agent])
            if before % 2 == 0:
                _fence()  # the number was read before the row …
                row, version = rows[agent].copy(), int(versions[agent])
                _fence()  # … and is read again only after it
                if int(sequence[agent]) == before:
                    self.rows[part][agent] = row
                    self.versions[part][agent] = version
                    self._copied[part][agent] = before
                    return True
            self.retries += 1
            tries += 1
            os.sched_yield()  # the writer may need this core to finish
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"the weights of agent {agent} were not completely written within {FIRST_COPY_LIMIT_S:.0f} s"
                )
        return False
