"""A learner process: the learners of some slices, and the messages they act on."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from numpy.typing import NDArray

from remuda.core import session
from remuda.core.fragment import copy_fragment, slice_worlds
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.rounds import RoundCounter
from remuda.core.timeline import span
from remuda.engines.interfaces import TimeSpent, count_lags, with_prefix
from remuda.engines.trainers.processes import messages
from remuda.engines.trainers.processes.schedule import batches, publications
from remuda.engines.trainers.slices import AgentSlice
from remuda.learners.herd import Part, make_learner
from remuda.rollout.config import RolloutConfig
from remuda.transport.heartbeat import Phase, WorkerStatus
from remuda.transport.shared_memory import recv_arrays, send_arrays
from remuda.transport.slots import SlotArray
from remuda.transport.weights import WeightStore
from remuda.transport.worker_process import Ready

Metrics = dict[str, list[float]]


@dataclass(frozen=True)
class LearnJob:
    """Everything a learner process needs; slots and weights are passed as descriptors, not as arrays."""

    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    slices: Sequence[AgentSlice]
    slot_array: SlotArray
    store: WeightStore
    session_objects: Mapping[str, bytes] = field(default_factory=dict)  # objects of a Python session, pickled

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Learn until the connection closes."""
        session.unpack(self.session_objects)
        LearnerWorker(self, connection, status).run()


class LearnerWorker:
    """Runs in a worker process."""

    def __init__(self, job: LearnJob, connection: Connection, status: WorkerStatus) -> None:
        self.job, self.connection, self.status = job, connection, status
        self.learners = [
            make_learner(job.parts[part], job.plan, job.spec, job.device, (first, last))
            for part, first, last in job.slices
        ]
        self.config = RolloutConfig.of(job.plan)
        self.versions = [0] * len(self.learners)
        self._rounds = RoundCounter(job.plan)
        self._lags: Counter[int] = Counter()
        self._spent = TimeSpent()
        self._waited_s = 0.0

    def run(self) -> None:
        """Act on messages until the connection closes."""
        self.connection.send(Ready())
        while True:
            self.status.beat(Phase.WAITING)
            self._learn_while_waiting()
            began = time.perf_counter()
            with span("wait"):
                message = self.connection.recv()
            self._waited_s += time.perf_counter() - began
            if isinstance(message, messages.TakeFragments):
                self._take(message)
            elif isinstance(message, messages.SendState):
                self.status.beat(Phase.SAVING)
                send_arrays(self.connection, self._state(), pid=0, announcement=messages.StateFollows())
            elif isinstance(message, messages.RestoreState):
                self._restore(message, recv_arrays(self.connection))

    def _take(self, message: messages.TakeFragments) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        self.status.beat(Phase.TAKING)
        fragments = self.job.slot_array.fragments(message.token.slot, message.task, self.config, message.turns)
        for learner, version in zip(self.learners, self.versions, strict=True):
            fragment = slice_worlds(learner.context.select(fragments), slice(*message.worlds))
            self._lags.update(count_lags([fragment], version))
            with learner.skip_on_error(0), span("take"):
                # A learner that keeps fragments needs a copy: after FragmentsTaken the slot may have another owner.
                learner.take(copy_fragment(fragment) if learner.keeps_views else fragment)
        self.connection.send(messages.FragmentsTaken(message.token, message.worlds, list(self.versions)))
        metrics = self._learn() if self._rounds.add(message.worlds[1] - message.worlds[0]) else None
        self._spent.add(TimeSpent(time.perf_counter() - began, time.process_time() - cpu))
        if metrics is not None:
            self._report(metrics)

    def _learn(self) -> list[Metrics]:
        """Make the updates of a round, published every few of them; returns the metrics of every slice."""
        for index, learner in enumerate(self.learners):
            for count in batches(self.job.plan, learner.incremental, self._rounds.complete, learner.context.herd_first):
                self._update(index, count)
        return self._metrics()

    def _metrics(self) -> list[Metrics]:
        return [{name: values.tolist() for name, values in learner.report().items()} for learner in self.learners]

    def _update(self, index: int, count: int) -> None:
        """Have one learner make updates, and publish the result."""
        self.status.beat(Phase.LEARNING, self._rounds.complete)
        learner = self.learners[index]
        with learner.skip_on_error(count), span("update"):
            learner.update(count)
        self.versions[index] += 1
        self._publish(index)

    def _publish(self, index: int) -> None:
        part, first, _ = self.job.slices[index]
        self.job.store.publish(part, self.learners[index].rows(), self.versions[index], first)

    def _learn_while_waiting(self) -> None:
        """Where learning never pauses: make updates with the data there is, until a message arrives."""
        if not self.job.plan.free_running or self._rounds.complete in (0, self.job.plan.rounds):
            return
        able = [index for index, learner in enumerate(self.learners) if learner.incremental]
        while able and not self.connection.poll(0):
            began, cpu = time.perf_counter(), time.process_time()
            for index in able:
                self._update(index, self.job.plan.publish_interval)
            self._spent.add(TimeSpent(time.perf_counter() - began, time.process_time() - cpu))

    def _report(self, metrics: list[Metrics]) -> None:
        steps = [int(count) for learner in self.learners for count in learner.steps]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        skipped_updates = [skipped for learner in self.learners for skipped in learner.pop_skipped_updates()]
        lags, spent = dict(self._lags), self._spent
        self.connection.send(
            messages.RoundLearned(
                self._rounds.complete, metrics, steps, lags, spent, self._waited_s, peak, skipped_updates
            )
        )
        self._lags, self._spent, self._waited_s = Counter(), TimeSpent(), 0.0

    def _state(self) -> dict[str, NDArray[Any]]:
        """The state of all slices, each under its index."""
        return {
            f"{index}/{name}": array
            for index, learner in enumerate(self.learners)
            for name, array in learner.state().items()
        }

    def _restore(self, message: messages.RestoreState, state: dict[str, NDArray[Any]]) -> None:
        """Restore a state, and move its clocks on to where the loop is."""
        plan = self.job.plan
        self._rounds = RoundCounter(plan, message.rounds, message.episodes)
        for index, learner in enumerate(self.learners):
            if state:
                learner.restore(with_prefix(state, f"{index}/"))
            agent = learner.context.herd_first
            due, saved = (plan.updates_due(plan.episodes_after(n), agent) for n in (message.rounds, message.saved))
            if due > saved:
                learner.skip(due - saved)
            part, first, last = self.job.slices[index]
            # Versions must never go back: readers and the lag rely on it. A predecessor that was lost, or that learned
            # without pause, may have published more than the rounds account for.
            published = publications(plan, learner.incremental, message.rounds, agent)
            self.versions[index] = max(published, self.job.store.newest(part, first, last))
            self._publish(index)
        if message.report:
            self._report(self._metrics())
