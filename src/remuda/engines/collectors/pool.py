"""Collecting in worker processes: whole episodes as tasks, taken as they are done."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from remuda.core import session
from remuda.core.errors import OrderError, WorkerError
from remuda.core.failures import TaskFailure
from remuda.core.fragment import Purpose
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.engines.collectors.messages import PlayTask, TaskFailed, TaskPlayed
from remuda.engines.collectors.task_size import AHEAD
from remuda.engines.collectors.worker import CollectJob
from remuda.engines.interfaces import Collectors, Delivery, Rows, TimeSpent
from remuda.learners.herd import Part
from remuda.rollout.config import RolloutConfig
from remuda.transport.heartbeat import Phase, WorkerExit
from remuda.transport.slots import SlotArray, SlotLayout, SlotOwners, SlotToken
from remuda.transport.weights import WeightStore
from remuda.transport.worker_pool import Worker, WorkerPool

LOOP = "loop"  # who owns a slot that is filled and not yet given back


@dataclass
class PendingTask:
    """A task in a worker's hands."""

    task: Task
    token: SlotToken
    worker: Worker


@dataclass(frozen=True)
class PoolConfig:
    """How a pool is cut out."""

    workers: int
    task_episodes: int
    slots: int
    sync_interval: int = 0
    asking: bool = False
    ahead: int = AHEAD


class PoolCollectors(Collectors):
    """Deals tasks to workers and brings what they fill, first come first served."""

    def __init__(
        self,
        plan: Plan,
        spec: GameSpec,
        parts: list[Part],
        bindings: list[PolicyBinding],
        device: str,
        shape: PoolConfig,
        worker_pool: WorkerPool,
    ) -> None:
        self.spent = TimeSpent()
        self.plan, self.shape, self.worker_pool = plan, shape, worker_pool
        self.config = RolloutConfig.of(plan)
        self.bindings = bindings
        self.slot_array = SlotArray(SlotLayout.of(spec, bindings, shape.task_episodes), shape.slots)
        self.owners = SlotOwners(shape.slots)
        self.waited_s = 0.0
        shapes = {index: bindings[index].policy.rows.shape for index, part in enumerate(parts) if part.learns}
        self.stores = {purpose: WeightStore(shapes) for purpose in (Purpose.TRAIN, Purpose.EVALUATE)}
        self.job = CollectJob(
            plan, parts, spec, device, self.slot_array, self.stores, shape.sync_interval, shape.asking,
            session.pack(plan.names()),
        )  # fmt: skip
        self._workers = [
            worker_pool.add_worker(f"collect-{i}", self.job, self._hear, self._lose) for i in range(shape.workers)
        ]
        self._waiting: deque[Task] = deque()
        self._dealt: dict[SlotToken, PendingTask] = {}
        self._ready: deque[Delivery] = deque()

    def start(self) -> None:
        """Start the workers."""
        self.worker_pool.start()

    def task_episodes(self) -> int:
        """A worker's share of the worlds."""
        return self.shape.task_episodes

    def capacity(self) -> int:
        """So many that nobody runs out of work while we are busy."""
        return self.shape.task_episodes * self.shape.workers * self.shape.ahead

    def send(self, task: Task) -> None:
        """Queue it, and deal it at once if somebody has a hand free."""
        self._waiting.append(task)
        self._deal()

    def _deal(self) -> None:
        """Give tasks to the workers with the fewest, as long as there are slots to fill."""
        loads = {worker.index: 0 for worker in self._workers}
        for dealt in self._dealt.values():
            loads[dealt.worker.index] += 1
        while self._waiting and self.owners.free:
            worker = min(self._workers, key=lambda worker: loads[worker.index])
            if loads[worker.index] >= self.shape.ahead:
                return
            loads[worker.index] += 1
            task, token = self._waiting.popleft(), self.owners.lend(worker.name)
            self._dealt[token] = PendingTask(task, token, worker)
            if not worker.busy:
                worker.busy = True
                self.worker_pool.heartbeats.note_version(worker.index, self.stores[Purpose.TRAIN].oldest())
            self.worker_pool.send(worker, PlayTask(token, task))

    def recv(self, timeout_s: float) -> Delivery:
        """The first that is done."""
        began = time.perf_counter()
        while not self._ready:
            if not self._dealt and not self._waiting:
                raise OrderError("recv() without a task: call send() first")
            self._deal()
            if not self.worker_pool.step(timeout_s - (time.perf_counter() - began)):
                raise WorkerError(f"no worker finished a task within {timeout_s:.0f} s")
        self.spent.wall += time.perf_counter() - began
        return self._ready.popleft()

    def _hear(self, worker: Worker, message: Any) -> None:
        if isinstance(message, TaskPlayed | TaskFailed):
            self._done(worker, message)

    def _done(self, worker: Worker, message: TaskPlayed | TaskFailed) -> None:
        token = message.token
        if token not in self._dealt or not self.owners.holds(token, worker.name):
            return  # of a worker that was given up and spoke after all
        if isinstance(message, TaskFailed):
            self._fail(self._dealt[token], message.turn, message.what, message.trace)
            self.owners.give_back(token, worker.name)
        else:
            self._deliver(self._dealt.pop(token), message)
        worker.busy = any(dealt.worker is worker for dealt in self._dealt.values())
        self._deal()

    def _deliver(self, dealt: PendingTask, message: TaskPlayed) -> None:
        task, token, worker = dealt.task, dealt.token, dealt.worker
        self.owners.move(token, worker.name, LOOP)
        fragments = self.slot_array.fragments(token.slot, task, self.config, message.turns)

        def release() -> None:
            self.owners.give_back(token, LOOP)

        self._ready.append(Delivery(task, fragments, release, token, message.invalid_samples))
        self.spent.cpu += message.cpu_s
        self.waited_s += message.waited_s
        worker.peak_bytes = max(worker.peak_bytes, message.peak_bytes)

    def _fail(self, dealt: PendingTask, turn: int, what: str, trace: str) -> None:
        """Deliver the failure of what a worker was playing; the actions so far are in its slot."""
        task = self._dealt.pop(dealt.token).task
        out = self.slot_array.fragments(dealt.token.slot, task, self.config)
        failure = TaskFailure.of(task, dealt.worker.name, turn, f"{dealt.worker.name}: {what}", trace, out)
        self._ready.append(Delivery(task, (), failure=failure))

    def _lose(self, worker: Worker, last: WorkerExit) -> None:
        """Take back what it had: what it was playing has failed, the rest is only dealt again."""
        mine = [dealt for dealt in self._dealt.values() if dealt.worker is worker]
        if mine and last.phase in (Phase.PLAYING, Phase.ASKING):
            at = mine.pop(0)
            where = f"turn {last.turn} of {at.task}, {self.config.places(at.task)}, seed {self.plan.seed}"
            self._fail(at, last.turn, f"{last.why} in {where}", "")
        self.owners.reclaim(worker.name)
        for dealt in reversed(mine):
            del self._dealt[dealt.token]
            self._waiting.appendleft(dealt.task)
        self._deal()

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Put them on the board; workers look before an episode."""
        for part, own in rows.items():
            self.stores[purpose].publish(part, own, version)

    def oldest(self) -> int | None:
        """The oldest version anybody plays with."""
        playing = {dealt.worker.index for dealt in self._dealt.values() if dealt.task.purpose is Purpose.TRAIN}
        return min((self.worker_pool.heartbeats.version(index) for index in playing), default=None)

    def memory_bytes(self) -> int:
        """All slots."""
        return self.slot_array.memory.size

    @property
    def slots_used(self) -> int:  # type: ignore[override]
        """Slots that are being filled, or hold what nobody has taken yet."""
        return self.owners.used

    def close(self) -> None:
        """End the workers and let the memory go."""
        self.worker_pool.close()
        self.slot_array.memory.close()
        for store in self.stores.values():
            store.memory.close()
