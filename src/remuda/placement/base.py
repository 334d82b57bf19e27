"""The two interfaces the loop works with, and nothing else: who collects, who trains."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.collect import Task
from remuda.config import Plan
from remuda.fragment import Fragment
from remuda.learners.learner import Learner
from remuda.threads import thread_pool

Rows = dict[int, NDArray[np.float32]]
"""What acting depends on: for each part of the herd that learns, one row per agent."""


@dataclass
class Spent:
    """Seconds, on the wall and on the processors."""

    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: Spent) -> None:
        """Sum up."""
        self.wall += other.wall
        self.cpu += other.cpu


@dataclass(frozen=True)
class Update:
    """One round of learning: new rows, their version, and what each learner reports per agent."""

    version: int
    rows: Rows
    metrics: dict[int, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)


class Collectors(ABC):
    """Plays tasks. `start` first, `close` last; `recv` only while tasks are out."""

    spent: Spent  # on collecting, so far

    @abstractmethod
    def start(self) -> None:
        """Make ready to play."""

    @abstractmethod
    def send(self, task: Task) -> None:
        """Hand out episodes."""

    @abstractmethod
    def recv(self, timeout_s: float) -> Sequence[Fragment]:
        """Whatever is ready first, one fragment per group; raises Stopped when asked to end."""

    @abstractmethod
    def publish(self, rows: Rows, version: int) -> None:
        """Play with these rows from now on."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; may be called twice."""

    @abstractmethod
    def task_episodes(self) -> int:
        """Most episodes a task should hold here."""


class Trainers(ABC):
    """Learns round by round: update k takes the episodes of round k, in order.

    Each part of the herd is taught by one learner or by several with a slice each.
    """

    def __init__(self, plan: Plan, learners: Mapping[int, Sequence[Learner]], threads: int = 1) -> None:
        self.plan = plan
        self.learners = learners  # by part of the herd
        self.version = 0  # rounds learned
        self.taken = 0  # rounds received whole
        self.waited_s = 0.0  # how long poll() kept the loop from collecting without learning itself
        self._arrived: list[Sequence[Fragment]] = []
        self._pool = thread_pool(threads, "learn") if threads > 1 else None

    def take(self, fragments: Sequence[Fragment]) -> None:
        """Receive what a task brought; a round that is complete is queued for learning."""
        self._arrived.append(fragments)
        have = sum(len(f[0].origin.episodes) for f in self._arrived)
        if self.plan.episodes_after(self.taken) + have == self.plan.episodes_after(self.taken + 1):
            deliveries, self._arrived = self._arrived, []
            deliveries.sort(key=lambda fragments: int(fragments[0].origin.episodes[0]))
            self.taken += 1
            self._queue(self.taken, deliveries)

    @abstractmethod
    def _queue(self, number: int, deliveries: list[Sequence[Fragment]]) -> None:
        """Round `number` (from 1) is complete."""

    @abstractmethod
    def poll(self, version: int) -> list[Update]:
        """Updates not returned yet, up to `version`, waiting for it if need be."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for slices in self.learners.values():
            for learner in slices:
                learner.close()

    def rows(self) -> Rows:
        """The newest rows."""
        return {part: np.concatenate([learner.rows() for learner in slices]) for part, slices in self.learners.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything the next update depends on, however the herd is sliced; every whole round must be polled."""
        result = {}
        for part, slices in self.learners.items():
            states = [learner.state() for learner in slices]
            for name in states[0]:
                arrays = [state[name] for state in states]
                result[f"{part}/{name}"] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return result

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`."""
        self.version = self.taken = version
        for part, slices in self.learners.items():
            prefix, first = f"{part}/", 0
            own = {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
            for learner in slices:
                last = first + learner.post.agents
                learner.restore({name: array[first:last] for name, array in own.items()})
                first = last

    def _learn(self, number: int, deliveries: list[Sequence[Fragment]]) -> Update:
        """Let every learner take round `number` and make its updates."""
        began = time.perf_counter()
        episodes = [self.plan.episodes_after(n) for n in (number - 1, number)]
        count = self.plan.updates_due(episodes[1]) - self.plan.updates_due(episodes[0])

        def teach(learner: Learner) -> tuple[dict[str, NDArray[np.float64]], float]:
            before = time.thread_time() + learner.helpers_cpu_s
            for fragments in deliveries:
                learner.take(fragments[learner.post.group_index])
            report = learner.update(count)
            return report, time.thread_time() + learner.helpers_cpu_s - before

        everyone = [learner for slices in self.learners.values() for learner in slices]
        reports = list(self._pool.map(teach, everyone) if self._pool else map(teach, everyone))
        spent = Spent(time.perf_counter() - began, sum(cpu for _, cpu in reports))
        metrics, first = {}, 0
        for part, slices in self.learners.items():
            own = [report for report, _ in reports[first : first + len(slices)]]
            metrics[part] = {name: np.concatenate([report[name] for report in own]) for name in own[0]}
            first += len(slices)
        return Update(number, self.rows(), metrics, spent)
