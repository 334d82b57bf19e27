"""The two interfaces the loop works with, and nothing else: who collects, who trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Fragment, Purpose, cut
from remuda.core.plan import Plan
from remuda.core.policy import UNVERSIONED
from remuda.core.rounds import RoundCounter
from remuda.core.task import InvalidSample, Task
from remuda.transport.slots import SlotToken

Rows = dict[int, NDArray[np.float32]]
"""What acting depends on: for each part of the herd that learns, one row per agent."""


@dataclass
class TimeSpent:
    """Seconds, on the wall and on the processors."""

    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: TimeSpent) -> None:
        """Sum up."""
        self.wall += other.wall
        self.cpu += other.cpu


@dataclass(frozen=True)
class Update:
    """One round of learning: new rows, their version, and what each learner reports per agent."""

    version: int
    rows: Rows | None  # None: the trainers have published them themselves
    metrics: dict[int, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    spent: TimeSpent = field(default_factory=TimeSpent)
    skipped_updates: Sequence[SkippedUpdates] = ()  # updates that were left out


@dataclass(frozen=True)
class Delivery:
    """What a task brought: one fragment per group, in memory that is lent until `release` is called."""

    task: Task
    fragments: Sequence[Fragment]
    release: Callable[[], None] = lambda: None
    token: SlotToken | None = None  # the slot it lies in, if it lies in one
    invalid_samples: Sequence[InvalidSample] = ()  # numbers in it that nobody can learn from
    failure: TaskFailure | None = None  # why there are no fragments

    @property
    def episodes(self) -> int:
        """How many episodes it holds."""
        return len(self.task.episodes)

    @property
    def purpose(self) -> Purpose:
        """Why they were played."""
        return self.task.purpose

    @property
    def oldest(self) -> int:
        """The oldest version that played it."""
        versions = np.concatenate([fragment.versions.ravel() for fragment in self.fragments])
        return int(versions[versions != UNVERSIONED].min(initial=np.iinfo(np.int64).max))


@dataclass(frozen=True)
class RoundPiece:
    """Neighbouring worlds of a delivery that belong to one round."""

    round: int  # from 1
    delivery: Delivery
    worlds: slice
    release: Callable[[], None]  # call once when done with it

    @property
    def fragments(self) -> list[Fragment]:
        """One per group, as views."""
        return [cut(fragment, self.worlds) for fragment in self.delivery.fragments]


class FailureHandler(Protocol):
    """Who decides what happens after a failure."""

    def count(self, episodes: int, invalid_samples: Iterable[InvalidSample]) -> None:
        """Episodes were played to the end, some of them with samples that nobody can learn from."""

    def record(self, failure: TaskFailure) -> list[int]:
        """A task failed; returns the episodes to play in place of its own. Raises where it is one failure too many."""

    def note_skipped_updates(self, skipped_updates: Sequence[SkippedUpdates]) -> None:
        """Learners skipped updates; raises where one of them keeps failing."""


class RemoteWorker(Protocol):
    """Somebody who works for us elsewhere."""

    name: str
    restarts: int
    peak_bytes: int


class Collectors(ABC):
    """Plays tasks. `start` first, `close` last; `recv` only while tasks are out."""

    helpers: Sequence[RemoteWorker] = ()  # who are no worker processes of the crew

    spent: TimeSpent  # on collecting, so far
    waited_s: float = 0.0  # collectors had nothing to do, all of them together
    slots_used: int = 0

    @abstractmethod
    def start(self) -> None:
        """Make ready to play."""

    @abstractmethod
    def send(self, task: Task) -> None:
        """Hand out episodes."""

    @abstractmethod
    def recv(self, timeout_s: float) -> Delivery:
        """Whatever is ready first; raises Stopped when asked to end."""

    @abstractmethod
    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Play episodes of this purpose with these rows from now on."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; may be called twice."""

    @abstractmethod
    def task_episodes(self) -> int:
        """Most episodes a task should hold here."""

    def capacity(self) -> int:
        """Episodes it makes sense to have out at once, so that nobody runs out of work."""
        return self.task_episodes()

    def memory_bytes(self) -> int:
        """Bytes it holds ready for fragments, where that is known beforehand."""
        return 0

    def store_bytes(self) -> int:
        """Bytes it needs in the system's shared memory."""
        return 0

    def oldest(self) -> int | None:
        """The oldest version anybody is playing with right now; None where nobody plays."""
        return None


class Trainers(ABC):
    """Learns round by round: update k takes the episodes of round k."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.version = 0  # rounds learned
        self.waited_s = 0.0  # how long poll() kept the loop from collecting without learning itself
        self.learners_waited_s = 0.0  # learners had nothing to do, all of them together
        self.lags: Counter[int] = Counter()  # turns of agents learned from, by how many versions late
        self._received = RoundCounter(plan)

    @property
    def taken(self) -> int:
        """Rounds received whole."""
        return self._received.complete

    def start(self) -> None:
        """Make ready to learn; the collectors have started."""
        return

    def take(self, delivery: Delivery) -> list[RoundPiece]:
        """Receive what a task brought, cut into rounds; whoever keeps a piece releases it."""
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
        """Keep or pass on a piece of a round."""

    def _complete(self, number: int) -> None:
        """Round `number` (from 1) is whole."""
        return

    def work(self) -> None:
        """Learn what has been taken, if here and now is where learning happens."""
        return

    @abstractmethod
    def poll(self, version: int) -> list[Update]:
        """Updates not returned yet, having waited for `version` if need be."""

    def versions_after(self, rounds: int) -> int:
        """The version acting can have once so many rounds are learned."""
        return rounds

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; may be called twice."""

    @abstractmethod
    def rows(self) -> Rows:
        """The newest rows."""

    @abstractmethod
    def steps(self) -> dict[int, int]:
        """Gradient steps made, by herd-wide number of each agent that learns."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes all learners hold."""

    @abstractmethod
    def state(self) -> dict[str, NDArray[Any]]:
        """Everything the next update depends on, however the herd is sliced; every whole round must be polled."""

    @abstractmethod
    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`."""


def count_lags(fragments: Sequence[Fragment], version: int) -> Counter[int]:
    """How many turns of agents in worlds were played how many versions before `version`."""
    lags: Counter[int] = Counter()
    for fragment in fragments:
        versions = fragment.versions[fragment.versions != UNVERSIONED]
        values, counts = np.unique(version - versions, return_counts=True)
        worlds = len(fragment.origin.worlds)
        lags.update({int(lag): int(count) * worlds for lag, count in zip(values, counts, strict=True)})
    return lags


def with_prefix(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays under a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
