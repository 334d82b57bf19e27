"""Heartbeats: what every worker is doing, and how long it may take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from remuda.core.plan import Plan
from remuda.core.timeline import TimelineFolders
from remuda.transport.shared_memory import SharedMemory, plan_fields

LINE = 8
"""Values of 8 bytes in a cache line. Each worker's value has its own line, so that writers do not slow each other."""


class Phase(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    WAITING = 1  # for a message
    PLAYING = 2
    AWAITING_ACTIONS = 3
    TAKING = 4  # fragments in
    LEARNING = 5
    SAVING = 6


@dataclass(frozen=True)
class Limits:
    """Longest time, in seconds, that a worker may spend on one thing before it counts as hung."""

    start: float = 120.0  # from its start to its first message; a hundredth of it more for each other worker
    turn: float = 600.0
    update: float = 3600.0  # also to take fragments in and to send its state

    @classmethod
    def of(cls, plan: Plan) -> Limits:
        """The limits of a plan."""
        return cls(plan.start_limit_s, plan.turn_limit_s, plan.update_limit_s)

    @property
    def reply(self) -> float:
        """Longest a worker waits for a reply: the loop may first have to find and replace workers that hang."""
        return 2 * (self.start + self.turn + self.update)

    def for_phase(self, phase: Phase) -> float:
        """The limit of a worker in this phase."""
        if phase is Phase.STARTING:
            return self.start
        return self.update if phase in (Phase.TAKING, Phase.LEARNING, Phase.SAVING) else self.turn


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended, and what it was doing at its last heartbeat."""

    reason: str
    phase: Phase
    turn: int

    def __str__(self) -> str:
        phase = self.phase.name.lower().replace("_", " ")
        return f"{self.reason} (last: {phase}, turn {self.turn})"


class Heartbeats:
    """The last heartbeat of every worker, in shared memory.

    A worker writes only its own entries, and the first process reads them; nobody needs a lock. Each value is 8
    aligned bytes, so it is never torn. Two values of a worker may be of two beats: they are used for messages and
    limits only, where that does no harm.
    """

    def __init__(self, workers: int) -> None:
        names = ("phase", "turn")
        self._fields, size = plan_fields(
            [*((name, (workers, LINE), np.int64) for name in names), ("beat", (workers, LINE), np.float64)]
        )
        self.memory = SharedMemory(size)

    def beat(self, worker: int, phase: Phase, turn: int = 0) -> None:
        """Note that a worker is alive, and what it is doing."""
        self._fields["phase"].view(self.memory)[worker, 0] = phase
        self._fields["turn"].view(self.memory)[worker, 0] = turn
        # On Linux all processes of a machine share the monotonic clock, so the reader can subtract.
        self._fields["beat"].view(self.memory)[worker, 0] = time.monotonic()

    def seconds_since_beat(self, worker: int) -> float:
        """Seconds since a worker's last heartbeat."""
        return time.monotonic() - float(self._fields["beat"].view(self.memory)[worker, 0])

    def newest(self) -> float:
        """When any worker last sent a heartbeat, by the monotonic clock."""
        return float(self._fields["beat"].view(self.memory)[:, 0].max())

    def last_beat(self, worker: int) -> tuple[Phase, int]:
        """The phase and the turn of a worker's last heartbeat."""
        phase = Phase(int(self._fields["phase"].view(self.memory)[worker, 0]))
        return phase, int(self._fields["turn"].view(self.memory)[worker, 0])


@dataclass(frozen=True)
class WorkerStatus:
    """Who a worker is, and where it writes its heartbeats; given to the worker when it starts."""

    index: int
    name: str
    heartbeats: Heartbeats
    timeline: TimelineFolders | None = None  # for its spans

    def beat(self, phase: Phase, turn: int = 0) -> None:
        """Note that this worker is alive, and what it is doing."""
        self.heartbeats.beat(self.index, phase, turn)
