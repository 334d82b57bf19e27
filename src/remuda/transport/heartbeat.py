"""Heartbeats: what every worker is doing, and how long it may take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from remuda.core.plan import Plan
from remuda.transport.shared_memory import SharedMemory, plan_fields


class Phase(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    WAITING = 1
    PLAYING = 2
    ASKING = 3
    TAKING = 4
    LEARNING = 5
    SAVING = 6


@dataclass(frozen=True)
class Limits:
    """Longest a worker may be at one thing before it is taken for hung, in seconds."""

    start: float = 120.0  # from its start to its first word; a hundredth of it more for each other worker
    turn: float = 600.0
    update: float = 3600.0  # also to take data in and to hand its state over

    @classmethod
    def of(cls, plan: Plan) -> Limits:
        """As a plan has it."""
        return cls(plan.start_limit_s, plan.turn_limit_s, plan.update_limit_s)

    @property
    def answer(self) -> float:
        """Longest a worker waits for an answer: others may be hung and replaced before it gets one."""
        return 2 * (self.start + self.turn + self.update)

    def at(self, phase: Phase) -> float:
        """For a worker in this phase."""
        if phase is Phase.STARTING:
            return self.start
        return self.update if phase in (Phase.TAKING, Phase.LEARNING, Phase.SAVING) else self.turn


@dataclass(frozen=True)
class WorkerExit:
    """How a worker went, and what it was doing when it was last heard of."""

    why: str
    phase: Phase
    turn: int

    def __str__(self) -> str:
        return f"{self.why} (last: {self.phase.name.lower()}, turn {self.turn})"


class Heartbeats:
    """What every worker last said it was doing: one row each, written by it alone, read by us."""

    def __init__(self, workers: int) -> None:
        names = ("phase", "turn", "version")
        self._fields, size = plan_fields(
            [*((name, (workers, 8), np.int64) for name in names), ("beat", (workers, 8), np.float64)]
        )
        self.memory = SharedMemory(size)

    def beat(self, worker: int, phase: Phase, turn: int = 0) -> None:
        """I am alive, and this is what I do."""
        self._fields["phase"].view(self.memory)[worker, 0] = phase
        self._fields["turn"].view(self.memory)[worker, 0] = turn
        self._fields["beat"].view(self.memory)[worker, 0] = time.monotonic()

    def note_version(self, worker: int, version: int) -> None:
        """This is the oldest version I play with."""
        self._fields["version"].view(self.memory)[worker, 0] = version

    def version(self, worker: int) -> int:
        """The oldest version it plays with."""
        return int(self._fields["version"].view(self.memory)[worker, 0])

    def silence_s(self, worker: int) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - float(self._fields["beat"].view(self.memory)[worker, 0])

    def last(self, worker: int) -> tuple[Phase, int]:
        """What it last said it was doing, and in which turn."""
        phase = Phase(int(self._fields["phase"].view(self.memory)[worker, 0]))
        return phase, int(self._fields["turn"].view(self.memory)[worker, 0])


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's side of the supervision."""

    index: int
    name: str
    heartbeats: Heartbeats
    timeline: Path | None = None

    def beat(self, phase: Phase, turn: int = 0) -> None:
        """I am alive, and this is what I do."""
        self.heartbeats.beat(self.index, phase, turn)
