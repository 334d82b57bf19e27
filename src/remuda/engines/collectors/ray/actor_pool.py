"""Ray actors under supervision: started, polled for results, replaced when they are lost, and ended.

What Ray tells and what it does not: `ray.wait` reports that a call has returned or failed. Nothing is reported about an
actor that dies while it has no call, and nothing about a result that was in the memory of a node that is gone. So every
actor is asked for its progress every few seconds. The answer shows whether it still plays turns; an error instead of
an answer shows that it is gone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from remuda.core.errors import ConfigError, WorkerError, first_line
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.core.timeline import span
from remuda.engines.collectors.ray.actor import TaskResult
from remuda.engines.collectors.ray.cluster import PROGRESS_GROUP, Cluster, require_ray
from remuda.engines.collectors.ray.remote import FETCH_LIMIT_S
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import MAX_FAILED_RESTARTS, POLL_INTERVAL_S

RESIZE_INTERVAL_S = 2.0
"""Seconds between looks at the size of the cluster: nodes may have joined."""
PROGRESS_INTERVAL_S = 5.0
"""Seconds between requests for an actor's progress."""
RESTART_DELAY_S = 30.0
"""Seconds before an actor that could not start is started again: its node may be unfit, and fail every time."""


@dataclass
class ActorTask:
    """A task that an actor has."""

    task: Task
    weights: list[Any]  # references of those it is played with
    reference: Any  # to its result


@dataclass
class ActorHandle:
    """This process's side of one actor. References are Ray's: to values that an actor has yet to return."""

    name: str
    actor: Any
    node_reference: Any  # to the answer which node it runs on, the first call of every actor
    restarts: int = 0
    peak_bytes: int = 0
    node: str = ""  # once it has answered
    pending: deque[ActorTask] = field(default_factory=deque)  # the first of them is being played
    alive_reference: Any = None  # to the answer whether it is alive, after contact was lost
    progress_reference: Any = None
    progress_requested_at: float = field(default_factory=time.monotonic)
    turns: int = -1  # begun in all, as it last answered
    turn: int = 0  # of its current task, as it last answered
    progress_at: float = field(default_factory=time.monotonic)  # when it was last known to have made progress
    idle_since: float = 0.0

    @property
    def available(self) -> bool:
        """Whether it can be given tasks."""
        return bool(self.node) and self.alive_reference is None

    @property
    def references(self) -> list[Any]:
        """Everything it is expected to return."""
        if self.alive_reference is not None:
            return [self.alive_reference]  # until it answers, results may be lost: its tasks are taken back then
        others = (self.progress_reference, None if self.node else self.node_reference)
        return [task.reference for task in self.pending] + [other for other in others if other is not None]

    def take_tasks(self) -> list[Task]:
        """Remove all its tasks; returns them, the one it was playing first."""
        tasks = [pending.task for pending in self.pending]
        self.pending.clear()
        return tasks


class ActorListener(Protocol):
    """Who gives the actors their tasks."""

    def on_result(self, handle: ActorHandle, pending: ActorTask, result: TaskResult) -> None:
        """An actor has finished a task."""

    def on_task_lost(self, handle: ActorHandle, task: Task, reason: str) -> None:
        """An actor ended while it was playing a task."""

    def on_tasks_returned(self, tasks: list[Task]) -> None:
        """Tasks were taken back from an actor, through no fault of theirs: they have to be sent again."""


class ActorPool:
    """The cluster and all actors of a run, and the one place where this process waits for them."""

    def __init__(
        self,
        plan: Plan,
        listener: ActorListener,
        start_actor: Callable[[Cluster, str], Any],
        stop: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """`start_actor` gets the cluster and the actor's name."""
        self.handles: list[ActorHandle] = []
        self.known: dict[str, ActorHandle] = {}  # the latest actor of every name, also if it is lost
        self._plan, self._limits = plan, Limits.of(plan)
        self._listener, self._start_actor = listener, start_actor
        self._stop, self._say = stop, say
        self._ray: Any = require_ray()
        self._cluster: Cluster | None = None
        self._not_before: dict[str, float] = {}  # by name: when an actor that could not start may be started again
        self._resized_at = 0.0
        self._polled_at = 0.0
        self._started = False
        self._failures = 0  # actors that ended since the last result of any actor
        self._given_up = 0  # actors whose place a learner has

    @property
    def cluster(self) -> Cluster:
        """The cluster, once it is connected."""
        assert self._cluster is not None, "connect() first"
        return self._cluster

    def connect(self, store_bytes: int, learning_agents: int) -> None:
        """Join or start the cluster, and reserve the learners' places; one of our own gets a store of this size."""
        self._cluster = Cluster(self._ray, self._plan, store_bytes, learning_agents)
        if learners := self._cluster.learner_count():
            self._cluster.reserve(learners)

    def start(self) -> None:
        """Start the actors and wait for the first one; in a cluster of our own for all of them."""
        self.start_missing()
        deadline = time.monotonic() + self._limits.start * (1 + len(self.handles) / 100)
        enough = all if self.cluster.ours else any
        while not enough(handle.node for handle in self.handles):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"engine=ray: no actor found a place within {self._limits.start:.0f} s; each wants "
                    f"{self.cluster.resources_per_actor}, the cluster has {self.cluster.resources()}: "
                    "lower actor_cpus, actor_gpus or actor_resources, or raise start_limit_s"
                )
            self.poll(deadline - time.monotonic())
        self._started = True
        where = "of its own on this machine" if self.cluster.ours else f"at {self.cluster.address}"
        self._say(f"ray: {len(self.handles)} actors, a cluster {where} with {self.cluster.resources()}")

    def wanted(self) -> int:
        """Actors to have: as many as the plan says, or as the cluster has resources for, less those given up."""
        return max(1, (self._plan.n_workers or self.cluster.actor_capacity()) - self._given_up)

    def give_up_one(self) -> None:
        """End an actor and start no other in its place, so that a learner finds room."""
        if len(self.handles) > 1:
            handle = min(reversed(self.handles), key=lambda handle: len(handle.pending))
            self._given_up += 1
            self._say(f"{handle.name} leaves its place to a learner")
            self.handles.remove(handle)
            self._kill(handle)
            self._listener.on_tasks_returned(handle.take_tasks())

    def start_missing(self) -> None:
        """Start as many actors as are missing. Ray runs each as soon as a node has the resources for it."""
        self._resized_at = time.monotonic()
        running = {handle.name for handle in self.handles}
        for name in (f"actor-{number}" for number in range(self.wanted())):
            if name in running or self._not_before.get(name, 0.0) >= self._resized_at:
                continue
            actor = self._start_actor(self.cluster, name)
            restarts = self.known[name].restarts + 1 if name in self.known else 0
            handle = ActorHandle(name, actor, actor.node_id.remote(), restarts)
            self.handles.append(handle)
            self.known[name] = handle

    def resize_if_due(self) -> None:
        """Start actors for nodes that joined, and those whose delay is over."""
        if time.monotonic() - self._resized_at > RESIZE_INTERVAL_S:
            self.start_missing()

    def poll(self, timeout_s: float) -> bool:
        """Wait until an actor returns something, and handle all that has arrived; False when the time is over."""
        self._stop()
        by_reference = {reference: handle for handle in self.handles for reference in handle.references}
        with span("wait"):
            wait_s = max(0.0, min(POLL_INTERVAL_S, timeout_s))
            # All actors may be waiting for their restart delay; ray.wait returns at once if it has nothing to wait for.
            time.sleep(0.0 if by_reference else wait_s)
            done, others = self._ray.wait(list(by_reference), num_returns=1, timeout=wait_s)
        if done and others:
            done += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        for reference in done:
            handle = by_reference[reference]
            if reference in handle.references:  # not if an error handled before has cost the actor its tasks
                self._on_ready(handle, reference)
        self._check_progress()
        return bool(done) or timeout_s > 0

    def _on_ready(self, handle: ActorHandle, reference: Any) -> None:
        """Fetch what an actor returned, and handle it."""
        try:
            value = self._ray.get(reference, timeout=FETCH_LIMIT_S)
        except self._ray.exceptions.GetTimeoutError:
            return  # if the actor lives, ray.wait reports it again; if not, the next progress request fails
        except self._ray.exceptions.RayError as error:
            self._on_error(handle, error)
            return
        if reference == handle.alive_reference:
            # It is alive, but what it returned while contact was lost may be lost: its tasks are played again.
            handle.alive_reference = handle.progress_reference = None
            self._listener.on_tasks_returned(handle.take_tasks())
        elif reference == handle.node_reference:
            handle.node, handle.idle_since = value, time.monotonic()
            if self._started or self._plan.address:
                self._say(f"{handle.name} joined on node {handle.node}")
        elif reference == handle.progress_reference:
            handle.progress_reference = None
            if value[0] != handle.turns:
                handle.progress_at = time.monotonic()
            handle.turns, handle.turn = value
        else:
            self._on_result(handle, reference, value)

    def _on_result(self, handle: ActorHandle, reference: Any, result: TaskResult) -> None:
        pending = next(pending for pending in handle.pending if pending.reference == reference)
        handle.pending.remove(pending)
        handle.progress_at = handle.idle_since = time.monotonic()
        handle.peak_bytes = max(handle.peak_bytes, result.peak_bytes)
        self._failures = 0
        self._listener.on_result(handle, pending, result)

    def _on_error(self, handle: ActorHandle, error: Any) -> None:
        """Handle an error that Ray raised instead of a value: a bug ends the run, anything else costs the actor."""
        errors = self._ray.exceptions
        reason, with_node = first_line(error), self._lost_with_node(handle, error)
        if isinstance(error, errors.RayTaskError):
            # A method raised. An error of the game would be in the result, so this is a bug, unless it is one of Ray's
            # own errors, e.g. weights that could not be fetched because a node is going down.
            if not isinstance(error.cause, errors.RayError) or type(error.cause) is errors.RayError:
                raise WorkerError(f"{handle.name}: {first_line(error.cause)}\n{error}") from None
            reason = f"could not go on: {first_line(error.cause)}"
        elif isinstance(error, errors.ActorUnavailableError):
            # Contact is lost: with the actor, its node, or only for a moment. One more call tells which.
            handle.alive_reference = handle.actor.node_id.remote()
            return
        elif not handle.node and not with_node:
            raised = getattr(error, "actor_init_failed", False)
            reason = f"could not start: {str(error).strip().splitlines()[-1] if raised else reason}"
            if raised and not self._started:  # at the start of a run the plan is wrong, later only a node
                raise WorkerError(f"{handle.name} {reason}") from None
            self._not_before[handle.name] = time.monotonic() + RESTART_DELAY_S * self._started
        self._drop_actor(handle, reason, with_node)

    def _lost_with_node(self, handle: ActorHandle, error: Exception) -> bool:
        """Whether the actor's whole node is gone: then the game is not to blame."""
        return "node has died" in str(error) or (bool(handle.node) and not self.cluster.is_node_alive(handle.node))

    def _check_progress(self) -> None:
        """End actors that have made no progress for too long, and ask all others how far they are.

        A call that returns is not enough: an actor whose game hangs still answers, but with the same number of turns.
        """
        now = time.monotonic()
        limit_s, interval_s = self._limits.turn, min(PROGRESS_INTERVAL_S, self._limits.turn / 4)
        # After a pause of this process (it was learning, or SIGSTOP went to all) actors may have made progress that we
        # did not ask for, or were stopped as well. All get the full limit again.
        if now - self._polled_at > 4 * POLL_INTERVAL_S:
            for handle in self.handles:
                handle.progress_at = now
        self._polled_at = now
        for handle in list(self.handles):
            if handle.pending and now - handle.progress_at > limit_s:
                reason = f"made no progress for {now - handle.progress_at:.0f} s and was killed"
                self._drop_actor(handle, reason, with_node=False)
            elif (
                handle.available
                and handle.progress_reference is None
                and now - handle.progress_requested_at > interval_s
            ):
                handle.progress_reference = handle.actor.progress.options(concurrency_group=PROGRESS_GROUP).remote()
                handle.progress_requested_at = now

    def _drop_actor(self, handle: ActorHandle, reason: str, with_node: bool) -> None:
        """Kill and replace an actor: the task it was playing has failed, unless its whole node did."""
        self.handles.remove(handle)
        self._kill(handle)
        tasks = handle.take_tasks()
        handle.alive_reference = handle.progress_reference = handle.node_reference = None  # late answers are ignored
        if with_node:
            self._say(f"{handle.name} was lost with its node: what it played is played again")
        else:
            self._failures += 1
            # A share, not a number: in a run of a thousand actors ten may well fail before one finishes.
            if self._failures > max(MAX_FAILED_RESTARTS, self.wanted()):
                raise WorkerError(
                    f"{handle.name} {reason}; {self._failures} actors in a row ended before they finished anything"
                )
            self._say(f"{handle.name} {reason}: replaced")
            if tasks:
                self._listener.on_task_lost(handle, tasks.pop(0), reason)
        self.start_missing()
        self._listener.on_tasks_returned(tasks)

    def _kill(self, handle: ActorHandle) -> None:
        with suppress(Exception):  # Ray raises many types for an actor that is gone or going
            self._ray.kill(handle.actor)

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        for handle in self.handles:
            self._kill(handle)
        self.handles = []
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
