"""Collecting in Ray actors: whole episodes as tasks, delivered in the order in which they finish.

What travels: a task with the number of its weights (a few hundred bytes), the weights once per version and node, and
what was played.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from remuda.core import session
from remuda.core.errors import OrderError, WorkerError
from remuda.core.fragment import Purpose
from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.core.timeline import span
from remuda.engines.collectors.dispatch import lost_with_worker, shortest_queue
from remuda.engines.collectors.ray.actor import RolloutActor, TaskResult
from remuda.engines.collectors.ray.actor_pool import ActorHandle, ActorPool, ActorTask
from remuda.engines.collectors.ray.cluster import Cluster, require_ray
from remuda.engines.collectors.ray.players import player_count
from remuda.engines.collectors.ray.remote import Cut, RemoteFragments
from remuda.engines.collectors.ray.weights import PublishedWeights
from remuda.engines.collectors.task_size import TASKS_PER_WORKER, task_size
from remuda.engines.interfaces import Collectors, Delivery, RemoteWorker, Rows, TimeSpent
from remuda.learners.herd import Part, bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.transport.slots import SlotLayout

MIN_STORE_BYTES = 128 << 20
"""Smallest object store that Ray works well with."""


class RayCollectors(Collectors):
    """Sends tasks to Ray actors and delivers what they played."""

    def __init__(
        self,
        plan: Plan,
        spec: GameSpec,
        parts: Sequence[Part],
        device: str,
        stop: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.spent = TimeSpent()
        self.waited_s = 0.0
        self.plan, self.spec, self.parts, self.device = plan, spec, parts, device
        self._session_objects = session.pack(plan.names())
        self.config = RolloutConfig.of(plan)
        self._ray: Any = require_ray()
        self._actors = ActorPool(plan, self, self._start_actor, stop, say)
        self._weights = PublishedWeights()
        self.cuts: list[list[Cut]] = []  # agents of each learner, where learners are actors too
        self.beside: Callable[[], None] = lambda: None  # called while waiting; the trainers use it
        self._queue: deque[Task] = deque()  # not sent to an actor yet
        self._ready: deque[Delivery] = deque()
        self._size = self._task_size(plan.n_workers or cores())

    def start(self) -> None:
        """Join or start the cluster, and start the actors."""
        self._actors.connect(self.memory_bytes(), sum(part.agents for part in self.parts if part.learns))
        self._size = self._task_size(self._actors.wanted())
        self._actors.start()

    @property
    def cluster(self) -> Cluster:
        """The cluster, once `start` was called."""
        return self._actors.cluster

    def _start_actor(self, cluster: Cluster, name: str) -> Any:
        return cluster.start_actor(
            RolloutActor,
            name,
            sys.path,
            self.plan,
            self.parts,
            self.spec,
            self.device,
            self._session_objects,
            self._size,
        )

    @property
    def remote_workers(self) -> Sequence[RemoteWorker]:  # type: ignore[override]
        """The actors, also those that are lost."""
        return list(self._actors.known.values())

    def _task_size(self, actors: int) -> int:
        """An actor's share of the worlds; at least an episode for each of its players."""
        return max(task_size(self.plan, actors), min(player_count(self.plan), self.plan.worlds))

    def task_episodes(self) -> int:
        """An actor's share of the worlds."""
        return self._size

    def capacity(self) -> int:
        """As many episodes as keep all actors busy while the loop is busy."""
        return self._size * max(1, sum(bool(handle.node) for handle in self._actors.handles)) * TASKS_PER_WORKER

    def send(self, task: Task) -> None:
        """Queue a task, and send it at once if an actor may have another one."""
        self._queue.append(task)
        self._dispatch()

    def _dispatch(self) -> None:
        """Send queued tasks to the actors with the fewest pending ones."""
        available = [handle for handle in self._actors.handles if handle.available]
        while self._queue:
            handle = shortest_queue(available, lambda handle: len(handle.pending), TASKS_PER_WORKER)
            if handle is None:
                return
            weights = self._weights.newest(self._queue[0].purpose)
            if not weights.complete:
                return
            task = self._queue.popleft()
            if not handle.pending:
                handle.progress_at = time.monotonic()
                self.waited_s += handle.progress_at - handle.idle_since
            # In a list, so that Ray passes the references and not the weights; see RolloutActor.play.
            reference = handle.actor.play.remote(task, weights.version, weights.references, self.cuts)
            handle.pending.append(ActorTask(task, list(weights.references), self.cuts, reference))

    def recv(self, timeout_s: float) -> Delivery:
        """Returns the next finished delivery."""
        began = time.perf_counter()
        while not self._ready:
            if not self._queue and not any(handle.pending for handle in self._actors.handles):
                raise OrderError("recv() without a task: call send() first")
            self._actors.resize_if_due()
            self.beside()
            self._dispatch()
            if not self._actors.poll(timeout_s - (time.perf_counter() - began)):
                raise WorkerError(f"no actor finished a task within {timeout_s:.0f} s")
        self.spent.wall += time.perf_counter() - began
        return self._ready.popleft()

    def on_result(self, handle: ActorHandle, pending: ActorTask, result: TaskResult) -> None:
        """Deliver what an actor played. The arrays lie in the object store, read-only, until the last view is gone."""
        self.spent.cpu += result.cpu_s
        if result.weights_lost:
            self._weights.put_again(pending.weights)
            self.on_tasks_returned([pending.task])
            return
        fragments = result.fragments
        if result.references:
            fragments = RemoteFragments(
                list(result.references), pending.cuts, len(self.spec.groups), self._ray.get, result.bytes
            )
        self._ready.append(
            Delivery(
                pending.task,
                fragments,
                invalid_samples=result.invalid_samples,
                failure=result.failure,
                summaries=result.summaries,
            )
        )
        self._dispatch()

    def give_up_one(self) -> None:
        """Give up the place of an actor: a learner has none."""
        self._actors.give_up_one()

    def forget_tasks(self) -> None:
        """Forget all tasks; actors finish what they have, and nobody asks for it."""
        self._queue.clear()
        self._ready.clear()
        for handle in self._actors.handles:
            handle.take_tasks()

    def on_task_lost(self, handle: ActorHandle, task: Task, reason: str) -> None:
        """Deliver the failure of what an actor was playing; its actions are lost with its memory."""
        failure = lost_with_worker(task, handle.name, reason, handle.turn, self.config)
        self._ready.append(Delivery(task, (), failure=failure))

    def on_tasks_returned(self, tasks: list[Task]) -> None:
        """Send tasks again, before those that are still queued."""
        self._queue.extendleft(reversed(tasks))
        self._dispatch()

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Tasks sent from now on are played with these rows."""
        with span("publish"):
            self._weights.publish(rows, version, purpose)

    def memory_bytes(self) -> int:
        """The size of the object store: deliveries of some rounds, results on their way, and a few versions."""
        bindings = [bind_policy(part, self.plan, self.spec, self.device) for part in self.parts]
        per_task = SlotLayout.of(self.spec, bindings, self._size).slot_bytes
        workers = self.plan.n_workers or cores()
        tasks = (2 + self.plan.lag) * -(-self.plan.round_episodes // self._size) + TASKS_PER_WORKER * workers
        rows = sum(
            binding.policy.rows.nbytes for binding, part in zip(bindings, self.parts, strict=True) if part.learns
        )
        return max(MIN_STORE_BYTES, tasks * per_task + 4 * rows)

    def store_bytes(self) -> int:
        """The object store's size where we start it on this machine."""
        return 0 if self.plan.address else self.memory_bytes()

    @property
    def slots_used(self) -> int:  # type: ignore[override]
        """Tasks that actors have, or whose delivery was not received yet."""
        return len(self._ready) + sum(len(handle.pending) for handle in self._actors.handles)

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        self._weights.clear()  # before the cluster ends: these are references into its object store
        self._ready.clear()
        self._actors.close()
