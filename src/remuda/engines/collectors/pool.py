"""Collecting in worker processes: whole episodes as tasks, delivered in the order in which they finish."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from remuda.core import session
from remuda.core.errors import OrderError, WorkerError
from remuda.core.failures import TaskFailure
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.engines.collectors.dispatch import lost_with_worker, shortest_queue
from remuda.engines.collectors.messages import PlayTask, TaskFailed, TaskPlayed
from remuda.engines.collectors.task_size import TASKS_PER_WORKER
from remuda.engines.collectors.worker import CollectJob
from remuda.engines.interfaces import Collectors, Delivery, Rows, TimeSpent
from remuda.learners.herd import Part
from remuda.rollout.config import RolloutConfig
from remuda.transport.heartbeat import Phase, WorkerExit
from remuda.transport.slots import SlotArray, SlotLayout, SlotOwners, SlotToken
from remuda.transport.weights import WeightStore
from remuda.transport.worker_pool import Worker, WorkerPool

LOOP = "loop"
"""The owner of a slot that is filled and not yet released."""


@dataclass
class PendingTask:
    """A task that a worker has, and the slot it plays it into."""

    task: Task
    token: SlotToken
    worker: Worker


@dataclass(frozen=True)
class PoolConfig:
    """The size of a pool, and how its workers get their actions."""

    workers: int
    task_episodes: int
    slots: int
    sync_interval: int = 0  # see CollectJob
    central_inference: bool = False  # see CollectJob
    tasks_per_worker: int = TASKS_PER_WORKER


class PoolCollectors(Collectors):
    """Sends tasks to worker processes and delivers the slots they fill."""

    def __init__(
        self,
        plan: Plan,
        spec: GameSpec,
        parts: list[Part],
        bindings: list[PolicyBinding],
        device: str,
        pool_config: PoolConfig,
        worker_pool: WorkerPool,
    ) -> None:
        self.spent = TimeSpent()
        self.plan, self.pool_config, self.worker_pool = plan, pool_config, worker_pool
        self.config = RolloutConfig.of(plan)
        self.bindings = bindings
        self.slot_array = SlotArray(SlotLayout.of(spec, bindings, pool_config.task_episodes), pool_config.slots)
        self.owners = SlotOwners(pool_config.slots)
        self.waited_s = 0.0
        shapes = {index: bindings[index].policy.rows.shape for index, part in enumerate(parts) if part.learns}
        self.stores = {purpose: WeightStore(shapes) for purpose in (Purpose.TRAIN, Purpose.EVALUATE)}
        self.job = CollectJob(
            plan,
            parts,
            spec,
            device,
            self.slot_array,
            self.stores,
            pool_config.sync_interval,
            pool_config.central_inference,
            session.pack(plan.names()),
        )
        self._workers = [
            worker_pool.add_worker(f"collect-{i}", self.job, self._on_message, self._on_worker_lost)
            for i in range(pool_config.workers)
        ]
        self._queue: deque[Task] = deque()  # not sent to a worker yet
        self._pending: dict[SlotToken, PendingTask] = {}  # in the order in which they were sent
        self._ready: deque[Delivery] = deque()

    def start(self) -> None:
        """Start the workers."""
        self.worker_pool.start()

    def task_episodes(self) -> int:
        """A worker's share of the worlds."""
        return self.pool_config.task_episodes

    def capacity(self) -> int:
        """As many episodes as keep all workers busy while the loop is busy."""
        return self.pool_config.task_episodes * self.pool_config.workers * self.pool_config.tasks_per_worker

    def send(self, task: Task) -> None:
        """Queue a task, and send it at once if a worker may have another one."""
        self._queue.append(task)
        self._dispatch()

    def _dispatch(self) -> None:
        """Send queued tasks to the workers with the fewest pending ones, as long as slots are free."""
        loads = Counter(pending.worker.index for pending in self._pending.values())
        while self._queue and self.owners.free:
            worker = shortest_queue(
                self._workers, lambda worker: loads[worker.index], self.pool_config.tasks_per_worker
            )
            if worker is None:
                return
            loads[worker.index] += 1
            task, token = self._queue.popleft(), self.owners.acquire(worker.name)
            self._pending[token] = PendingTask(task, token, worker)
            worker.busy = True
            self.worker_pool.send(worker, PlayTask(token, task))

    def recv(self, timeout_s: float) -> Delivery:
        """Returns the next finished delivery."""
        began = time.perf_counter()
        while not self._ready:
            if not self._pending and not self._queue:
                raise OrderError("recv() without a task: call send() first")
            self._dispatch()
            if not self.worker_pool.step(timeout_s - (time.perf_counter() - began)):
                raise WorkerError(f"no worker finished a task within {timeout_s:.0f} s")
        self.spent.wall += time.perf_counter() - began
        return self._ready.popleft()

    def _on_message(self, worker: Worker, message: Any) -> None:
        if isinstance(message, TaskPlayed | TaskFailed):
            self._on_task_done(worker, message)

    def _on_task_done(self, worker: Worker, message: TaskPlayed | TaskFailed) -> None:
        if message.token not in self._pending or not self.owners.holds(message.token, worker.name):
            return  # from before the worker was lost: its slot may have another owner by now
        pending = self._pending.pop(message.token)
        if isinstance(message, TaskFailed):
            what = f"{worker.name}: {message.what}"
            out = self._fragments(pending)
            self._deliver_failure(TaskFailure.of(pending.task, worker.name, message.turn, what, message.trace, out))
            self.owners.release(message.token, worker.name)  # only now: the failure keeps a copy of the actions
        else:
            self._deliver(pending, message)
        worker.busy = any(other.worker is worker for other in self._pending.values())
        self._dispatch()

    def _fragments(self, pending: PendingTask, turns: int | None = None) -> list[Fragment]:
        return self.slot_array.fragments(pending.token.slot, pending.task, self.config, turns)

    def _deliver(self, pending: PendingTask, message: TaskPlayed) -> None:
        token, worker = pending.token, pending.worker
        self.owners.transfer(token, worker.name, LOOP)
        fragments = self._fragments(pending, message.turns)

        def release() -> None:
            self.owners.release(token, LOOP)

        self._ready.append(Delivery(pending.task, fragments, release, token, message.invalid_samples))
        self.spent.cpu += message.cpu_s
        self.waited_s += message.waited_s
        worker.peak_bytes = max(worker.peak_bytes, message.peak_bytes)

    def _deliver_failure(self, failure: TaskFailure) -> None:
        self._ready.append(Delivery(failure.task, (), failure=failure))

    def _on_worker_lost(self, worker: Worker, worker_exit: WorkerExit) -> None:
        """Take back the tasks of a worker that ended: the one it was playing has failed, the others are sent again."""
        lost = [pending for pending in self._pending.values() if pending.worker is worker]
        for pending in lost:
            del self._pending[pending.token]
        if lost and worker_exit.phase in (Phase.PLAYING, Phase.AWAITING_ACTIONS):
            playing = lost.pop(0)  # workers play their tasks in the order in which they were sent
            self._deliver_failure(
                lost_with_worker(
                    playing.task,
                    worker.name,
                    worker_exit.reason,
                    worker_exit.turn,
                    self.config,
                    self._fragments(playing),
                )
            )
        self.owners.reclaim(worker.name)
        self._queue.extendleft(pending.task for pending in reversed(lost))
        self._dispatch()

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Write the rows into shared memory; workers look for new ones before an episode."""
        for part, part_rows in rows.items():
            self.stores[purpose].publish(part, part_rows, version)

    def memory_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slot_array.memory.size

    @property
    def slots_used(self) -> int:  # type: ignore[override]
        """Slots that a worker fills, or that hold a delivery not released yet."""
        return self.owners.used

    def close(self) -> None:
        """End the workers and free the memory."""
        self.worker_pool.close()
        self.slot_array.memory.close()
        for store in self.stores.values():
            store.memory.close()
