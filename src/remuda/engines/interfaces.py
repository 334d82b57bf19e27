"""The two interfaces the loop works with: Collectors play tasks, Trainers learn from what was played.

An engine is a pair of them (`engines/table.py`). The loop (`engines/loop.py`) never looks inside a delivery: it may be
arrays of this process, a slot of shared memory, or a reference into a cluster.

A placement implements five verbs of each; the rest are numbers that a run reports, and defaults.

- Collectors: `start`, `send`, `recv`, `publish`, `close`.
- Trainers: `take` (by `_add`, called for each piece of a round), `poll`, `rows`, `state` with `restore`, `close`.

Two of the defaults look as if they could go. `work` cannot be part of `take` or `poll`: where learning happens in the
loop's own thread, it has to come after the next tasks are sent, so that workers play meanwhile. `versions_after` is
there for learners that run free and publish several versions in a round: the bound on policy lag counts versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import RemudaError
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Fragment, Purpose, slice_worlds
from remuda.core.plan import Plan
from remuda.core.policy import UNVERSIONED
from remuda.core.rounds import RoundCounter
from remuda.core.saved_state import SavedState
from remuda.core.task import InvalidSample, Task
from remuda.engines.summary import EpisodeSummary
from remuda.transport.slots import SlotToken

Rows = Mapping[int, NDArray[np.float32]]
"""What acting depends on: for each part of the herd that learns, one row per agent; may be fetched when it is read."""


@dataclass
class TimeSpent:
    """Seconds of wall-clock time and of processor time."""

    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: TimeSpent) -> None:
        """Add another amount; a game may have replaced the clock meanwhile, as tests with frozen time do."""
        self.wall += max(0.0, other.wall)
        self.cpu += max(0.0, other.cpu)


@dataclass(frozen=True)
class Update:
    """The result of learning one round: new weights, their version, and each learner's metrics per agent."""

    version: int
    rows: Rows | None  # None: the trainers published them themselves
    metrics: dict[int, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    spent: TimeSpent = field(default_factory=TimeSpent)
    skipped_updates: Sequence[SkippedUpdates] = ()


@dataclass(frozen=True)
class Delivery:
    """The result of a task: one fragment per group, in memory that is valid until `release` is called.

    Fragments may have more worlds than the task has episodes, behind them: those were dropped.
    """

    task: Task
    fragments: Sequence[Fragment]  # those on other machines are fetched when they are read
    release: Callable[[], None] = lambda: None
    token: SlotToken | None = None  # the slot of shared memory that holds the fragments, if one does
    invalid_samples: Sequence[InvalidSample] = ()  # found in it, and removed
    failure: TaskFailure | None = None  # why there are no fragments
    summaries: Sequence[EpisodeSummary] = ()  # one per group, where the fragments are on other machines

    @property
    def episodes(self) -> int:
        """Number of episodes in it."""
        return len(self.task.episodes)

    @property
    def purpose(self) -> Purpose:
        """The purpose the episodes were played for."""
        return self.task.purpose

    @property
    def oldest(self) -> int:
        """The oldest version of weights that acted in it."""
        return min(summary.oldest for summary in self.summaries or map(EpisodeSummary.of, self.fragments))


@dataclass(frozen=True)
class RoundPiece:
    """Neighbouring worlds of a delivery that belong to one round."""

    round: int  # from 1
    delivery: Delivery
    worlds: slice
    release: Callable[[], None]  # to be called once, by whoever used the piece last

    @property
    def fragments(self) -> list[Fragment]:
        """One per group, as views."""
        return [slice_worlds(fragment, self.worlds) for fragment in self.delivery.fragments]

    @property
    def summaries(self) -> list[EpisodeSummary]:
        """One per group."""
        if self.delivery.summaries:
            return [summary.select(self.worlds) for summary in self.delivery.summaries]
        return [EpisodeSummary.of(fragment) for fragment in self.fragments]


class LostRounds(RemudaError):
    """Learners and the episodes they had learned since the last checkpoint are lost: `Trainers.rewind` goes back."""


class StateSlices(Mapping[str, NDArray[Any]]):
    """The state of learners that are elsewhere. Arrays are fetched when they are read."""

    @abstractmethod
    def write(self, folder: Path, stem: str) -> dict[str, str]:
        """Write a file per learner, at its owner if that sees the folder; returns the SHA-256 of each, by name."""

    @abstractmethod
    def not_finite(self) -> tuple[int, str] | None:
        """An agent with an array that is not finite, and the array's name."""


class FailureHandler(Protocol):
    """Decides what happens after a failure."""

    def count(self, episodes: int, invalid_samples: Iterable[InvalidSample]) -> None:
        """Count episodes that were played to their end, and the invalid samples that were removed from them."""

    def record(self, failure: TaskFailure) -> list[int]:
        """Record a failed task; returns the episodes to play instead. Raises if there are too many failures."""

    def note_skipped_updates(self, skipped_updates: Sequence[SkippedUpdates]) -> None:
        """Record skipped updates; raises if a learner keeps failing."""


class RemoteWorker(Protocol):
    """A worker that is not a process of the worker pool, for example a Ray actor."""

    name: str
    restarts: int
    peak_bytes: int


class CollectorCounters(SavedState):
    """The counters of collectors that survive stop and resume."""

    wall_s: float = Field(0.0, ge=0)
    cpu_s: float = Field(0.0, ge=0)
    waited_s: float = Field(0.0, ge=0)


class TrainerCounters(SavedState):
    """The counters of trainers that survive stop and resume."""

    lags: list[tuple[int, int]] = Field(
        default_factory=list
    )  # pairs of policy lag in versions, and turns of agents learned from at that lag
    waited_s: float = Field(0.0, ge=0)
    learners_waited_s: float = Field(0.0, ge=0)


class Collectors(ABC):
    """Plays tasks. Call `start` first and `close` last; call `recv` only while tasks are out."""

    remote_workers: Sequence[RemoteWorker] = ()
    spent: TimeSpent  # on collecting
    waited_s: float = 0.0  # sum over all collectors of the time without a task
    slots_used: int = 0

    @abstractmethod
    def start(self) -> None:
        """Start whatever plays tasks, and wait until it is ready."""

    @abstractmethod
    def send(self, task: Task) -> None:
        """Accept a task to be played."""

    @abstractmethod
    def recv(self, timeout_s: float) -> Delivery:
        """Return the next finished or failed task, in the order in which they finish; raises Stopped when asked to."""

    @abstractmethod
    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Use these weights for episodes of this purpose that start from now on."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; may be called twice."""

    @abstractmethod
    def task_episodes(self) -> int:
        """The largest useful number of episodes in a task."""

    def capacity(self) -> int:
        """The number of episodes that should be out at once so that no collector runs out of work."""
        return self.task_episodes()

    def memory_bytes(self) -> int:
        """Bytes reserved for fragments, where that is known before the start."""
        return 0

    def store_bytes(self) -> int:
        """Bytes needed in the system's shared memory (/dev/shm)."""
        return 0

    def counters(self) -> CollectorCounters:
        """The part of the state of training that belongs to the collectors."""
        return CollectorCounters(wall_s=self.spent.wall, cpu_s=self.spent.cpu, waited_s=self.waited_s)

    def restore_counters(self, counters: CollectorCounters) -> None:
        """Go on counting from here."""
        self.spent.wall, self.spent.cpu, self.waited_s = counters.wall_s, counters.cpu_s, counters.waited_s


class Trainers(ABC):
    """Learns round by round. Version k of the weights has learned from rounds 1 to k."""

    remote_workers: Sequence[RemoteWorker] = ()
    elsewhere: bool = False  # whether learners are on other machines, and their memory too

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.version = 0  # rounds learned
        self.waited_s = 0.0  # time in which poll() blocked the loop without learning itself
        self.learners_waited_s = 0.0  # sum over all learners of the time without data
        self.lags: Counter[int] = Counter()  # turns of agents learned from, by policy lag in versions
        self._received = RoundCounter(plan)

    @property
    def taken(self) -> int:
        """Rounds received completely."""
        return self._received.complete

    def start(self) -> None:
        """Start whatever learns; the collectors have started already."""
        return

    def take(self, delivery: Delivery) -> list[RoundPiece]:
        """Receive a delivery; returns its pieces by round. The trainers release each piece after its last use."""
        pieces: list[RoundPiece] = []
        first, holders = 0, [0]

        def release() -> None:
            holders[0] -= 1
            if not holders[0]:
                delivery.release()

        while first < delivery.episodes:
            last = min(delivery.episodes, first + self._received.missing)
            pieces.append(RoundPiece(self.taken + 1, delivery, slice(first, last), release))
            self._received.add(last - first)
            first = last
        holders[0] = len(pieces)
        for piece in pieces:
            self._add(piece)
            if piece.round <= self.taken:
                self._complete(piece.round)
        return pieces

    @abstractmethod
    def _add(self, piece: RoundPiece) -> None:
        """Store a piece of a round, or pass it on."""

    def _complete(self, number: int) -> None:
        """Called once every piece of round `number` (from 1) was added."""
        return

    @abstractmethod
    def poll(self, version: int) -> list[Update]:
        """Return the updates not returned before; block until `version` is learned."""

    @abstractmethod
    def rows(self) -> Rows:
        """The newest weights."""

    @abstractmethod
    def state(self) -> Mapping[str, NDArray[Any]]:
        """Everything the next update depends on, independent of how the herd is sliced.

        Every complete round must have been polled before. Where learners are elsewhere it is a `StateSlices`.
        """

    @abstractmethod
    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `version` with the arrays that `state` returned."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; may be called twice."""

    @abstractmethod
    def steps(self) -> dict[int, int]:
        """Gradient steps of each agent that learns, by its number in the herd."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes held by all learners together."""

    def work(self) -> None:
        """Learn complete rounds now, where learning happens in the loop's own thread."""
        return

    def versions_after(self, rounds: int) -> int:
        """The version number that the published weights have once `rounds` rounds are learned."""
        return rounds

    def rewind(self) -> tuple[int, Update]:
        """After LostRounds: all learners go back to the last checkpoint.

        Returns its version and the update that was published then. Tasks that are out are forgotten.
        """
        raise NotImplementedError

    def counters(self) -> TrainerCounters:
        """The part of the state of training that is counted by the trainers."""
        lags = [(lag, count) for lag, count in sorted(self.lags.items())]
        return TrainerCounters(lags=lags, waited_s=self.waited_s, learners_waited_s=self.learners_waited_s)

    def restore_counters(self, counters: TrainerCounters) -> None:
        """Go on counting from here."""
        self.lags = Counter(dict(counters.lags))
        self.waited_s, self.learners_waited_s = counters.waited_s, counters.learners_waited_s


def count_lags(fragments: Sequence[Fragment], version: int) -> Counter[int]:
    """Count the turns of agents in these fragments by policy lag: `version` minus the version that acted."""
    lags: Counter[int] = Counter()
    for fragment in fragments:
        versions = fragment.versions[fragment.versions != UNVERSIONED]
        values, counts = np.unique(version - versions, return_counts=True)
        worlds = len(fragment.origin.worlds)
        lags.update({int(lag): int(count) * worlds for lag, count in zip(values, counts, strict=True)})
    return lags


def with_prefix(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
