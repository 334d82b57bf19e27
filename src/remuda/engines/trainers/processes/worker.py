"""A learner process: some learners, and the messages they follow."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from numpy.typing import NDArray

from remuda.core import session
from remuda.core.fragment import copied, cut
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.timeline import span
from remuda.engines.interfaces import TimeSpent, count_lags, with_prefix
from remuda.engines.trainers.processes.messages import (
    AgentSlice,
    FragmentsTaken,
    RestoreState,
    RoundLearned,
    SendState,
    StateFollows,
    TakeFragments,
)
from remuda.engines.trainers.processes.schedule import batches, publications
from remuda.learners.herd import Part, make_learner
from remuda.rollout.config import RolloutConfig
from remuda.transport.heartbeat import Phase, WorkerStatus
from remuda.transport.shared_memory import recv_arrays, send_arrays
from remuda.transport.slots import SlotArray
from remuda.transport.weights import WeightStore
from remuda.transport.worker_process import Ready


@dataclass(frozen=True)
class LearnJob:
    """Everything a learning worker needs."""

    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    slices: Sequence[AgentSlice]
    slot_array: SlotArray
    store: WeightStore
    session_objects: Mapping[str, bytes] = field(default_factory=dict)  # of a plan that names some, pickled

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Learn what comes."""
        session.unpack(self.session_objects)
        LearnerWorker(self, connection, status).run()


class LearnerWorker:
    """Lives in a worker process: some learners, and what they are told."""

    def __init__(self, job: LearnJob, connection: Connection, status: WorkerStatus) -> None:
        self.job, self.connection, self.status = job, connection, status
        self.learners = [
            make_learner(job.parts[part], job.plan, job.spec, job.device, (first, last))
            for part, first, last in job.slices
        ]
        plan = job.plan
        self.config = RolloutConfig.of(plan)
        self.versions = [0] * len(self.learners)
        self.rounds = 0
        self._have = 0
        self._lags: Counter[int] = Counter()
        self._spent = TimeSpent()
        self._waited_s = 0.0

    def run(self) -> None:
        """Until the connection closes."""
        self.connection.send(Ready())
        while True:
            self.status.beat(Phase.WAITING)
            self._learn_meanwhile()
            began = time.perf_counter()
            with span("wait"):
                message = self.connection.recv()
            self._waited_s += time.perf_counter() - began
            if isinstance(message, TakeFragments):
                self._take(message)
            elif isinstance(message, SendState):
                self.status.beat(Phase.SAVING)
                send_arrays(self.connection, self._state(), pid=0, word=StateFollows())
            elif isinstance(message, RestoreState):
                self._restore(message, recv_arrays(self.connection))

    def _take(self, message: TakeFragments) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        self.status.beat(Phase.TAKING)
        whole = self.job.slot_array.fragments(message.token.slot, message.task, self.config, message.turns)
        for learner, version in zip(self.learners, self.versions, strict=True):
            context = learner.context
            own = cut(whole[context.group_index], slice(*message.worlds))
            self._lags.update(
                count_lags([replace(own, versions=own.versions[:, context.first : context.last])], version)
            )
            with learner.skipping_errors(0), span("take"):
                learner.take(copied(own) if learner.keeps_fragments else own)
        self.connection.send(FragmentsTaken(message.token, message.worlds, list(self.versions)))
        self._have += message.worlds[1] - message.worlds[0]
        plan = self.job.plan
        size = plan.episodes_after(self.rounds + 1) - plan.episodes_after(self.rounds)
        report = self._learn() if self._have == size else None
        self._spent.add(TimeSpent(time.perf_counter() - began, time.process_time() - cpu))
        if report is not None:
            self._report(report)

    def _learn(self) -> list[dict[str, list[float]]]:
        """The updates of a round, published every few of them."""
        self.rounds, self._have = self.rounds + 1, 0
        reports = []
        for index, learner in enumerate(self.learners):
            for count in batches(self.job.plan, learner.piecemeal, self.rounds):
                self._update(index, count)
            reports.append({name: values.tolist() for name, values in learner.report().items()})
        return reports

    def _update(self, index: int, count: int) -> None:
        """Make updates and publish what came of them."""
        self.status.beat(Phase.LEARNING, self.rounds)
        learner = self.learners[index]
        with learner.skipping_errors(count), span("update"):
            learner.update(count)
        self.versions[index] += 1
        self._publish(index)

    def _publish(self, index: int) -> None:
        part, first, _ = self.job.slices[index]
        self.job.store.publish(part, self.learners[index].rows(), self.versions[index], first)

    def _learn_meanwhile(self) -> None:
        """Where learning never pauses: go on with what we have until something new comes."""
        if not self.job.plan.free_running or self.rounds in (0, self.job.plan.rounds):
            return
        busy = [index for index, learner in enumerate(self.learners) if learner.piecemeal]
        while busy and not self.connection.poll(0):
            began, cpu = time.perf_counter(), time.process_time()
            for index in busy:
                self._update(index, self.job.plan.publish_interval)
            self._spent.add(TimeSpent(time.perf_counter() - began, time.process_time() - cpu))

    def _report(self, metrics: list[dict[str, list[float]]]) -> None:
        steps = [int(count) for learner in self.learners for count in learner.steps]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        skipped_updates = [skipped for learner in self.learners for skipped in learner.take_skipped_updates()]
        lags, spent = dict(self._lags), self._spent
        self.connection.send(
            RoundLearned(self.rounds, metrics, steps, lags, spent, self._waited_s, peak, skipped_updates)
        )
        self._lags, self._spent, self._waited_s = Counter(), TimeSpent(), 0.0

    def _state(self) -> dict[str, NDArray[Any]]:
        return {f"{i}/{name}": a for i, learner in enumerate(self.learners) for name, a in learner.state().items()}

    def _restore(self, order: RestoreState, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state and let its clocks go on to where we are needed."""
        self.rounds, self._have = order.rounds, order.have
        plan = self.job.plan
        skipped = plan.updates_due(plan.episodes_after(order.rounds)) - plan.updates_due(
            plan.episodes_after(order.saved)
        )
        for index, learner in enumerate(self.learners):
            if state:
                learner.restore(with_prefix(state, f"{index}/"))
            if skipped:
                learner.skip(skipped)
            part, first, last = self.job.slices[index]
            known = publications(plan, learner.piecemeal, order.rounds)
            self.versions[index] = max(known, self.job.store.newest(part, first, last))
            self._publish(index)
        if order.report:
            self._report([{name: values.tolist() for name, values in own.report().items()} for own in self.learners])
