"""Ray actors that play, under supervision: started, polled for results, replaced when they are lost, and ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from remuda.core.errors import ConfigError, WorkerError, first_line
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.engines.collectors.ray.actor import TaskResult
from remuda.engines.collectors.ray.cluster import Cluster
from remuda.engines.collectors.ray.remote import Cut
from remuda.engines.collectors.ray.supervisor import RESTART_DELAY_S, RemoteHandle, Supervisor
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import MAX_FAILED_RESTARTS, POLL_INTERVAL_S

RESIZE_INTERVAL_S = 2.0
"""Seconds between looks at the size of the cluster: nodes may have joined."""


@dataclass
class ActorTask:
    """A task that an actor has."""

    task: Task
    weights: list[Any]  # references of those it is played with
    cuts: list[list[Cut]]  # agents of each learner when it was sent
    reference: Any  # to its result


@dataclass
class ActorHandle(RemoteHandle):
    """This process's side of one actor that plays."""

    pending: deque[ActorTask] = field(default_factory=deque)  # the first of them is being played
    alive_reference: Any = None  # to the answer whether it is alive, after contact was lost
    idle_since: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it has a task."""
        return bool(self.pending)

    @property
    def available(self) -> bool:
        """Whether it can be given tasks."""
        return bool(self.node) and self.alive_reference is None

    @property
    def turn(self) -> int:
        """The turn of its current task, as it last answered."""
        return 0 if self.progress is None else max(0, int(self.progress[1]))

    @property
    def references(self) -> list[Any]:
        """Everything it is expected to return."""
        if self.alive_reference is not None:
            return [self.alive_reference]  # until it answers, results may be lost: its tasks are taken back then
        return [*super().references, *(task.reference for task in self.pending)]

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


class ActorPool(Supervisor[ActorHandle]):
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
        super().__init__(Limits.of(plan).turn)
        self.known: dict[str, ActorHandle] = {}  # the latest actor of every name, also if it is lost
        self._plan = plan
        self._listener, self._start_actor = listener, start_actor
        self._stop, self._say = stop, say
        self._cluster: Cluster | None = None
        self._not_before: dict[str, float] = {}  # by name: when an actor that could not start may be started again
        self._resized_at = 0.0
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
        deadline = time.monotonic() + self._plan.start_limit_s * (1 + len(self.handles) / 100)
        enough = all if self.cluster.ours else any
        while not enough(handle.node for handle in self.handles):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"engine=ray: no actor found a place within {self._plan.start_limit_s:.0f} s; each wants "
                    f"{self.cluster.resources_per_actor}, the cluster has {self.cluster.resources()}: "
                    "lower actor_cpus, actor_gpus or actor_resources, or raise start_limit_s"
                )
            self.poll(deadline - time.monotonic())
        self._started = True
        where = "of its own on this machine" if self.cluster.ours else f"at {self.cluster.address}"
        actors = "1 actor" if len(self.handles) == 1 else f"{len(self.handles)} actors"
        self._say(f"ray: {actors}, a cluster {where} with {self.cluster.resources()}")

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
        return self._wait(max(0.0, min(POLL_INTERVAL_S, timeout_s))) or timeout_s > 0

    def _on_joined(self, handle: ActorHandle) -> None:
        handle.idle_since = time.monotonic()
        if self._started or self._plan.address:
            self._say(f"{handle.name} joined on node {handle.node}")

    def _on_value(self, handle: ActorHandle, reference: Any, value: Any) -> None:
        if reference == handle.alive_reference:
            # It is alive, but what it returned while contact was lost may be lost: its tasks are played again.
            handle.alive_reference = handle.progress_reference = None
            self._listener.on_tasks_returned(handle.take_tasks())
        else:
            self._on_result(handle, reference, value)

    def _on_result(self, handle: ActorHandle, reference: Any, result: TaskResult) -> None:
        pending = next(pending for pending in handle.pending if pending.reference == reference)
        handle.pending.remove(pending)
        handle.idle_since = time.monotonic()
        handle.peak_bytes = max(handle.peak_bytes, result.peak_bytes)
        self._failures = 0
        self._listener.on_result(handle, pending, result)

    def _on_error(self, handle: ActorHandle, error: Any) -> None:
        """Handle an error that Ray raised instead of a value: a bug ends the run, anything else costs the actor."""
        errors = self._ray.exceptions
        reason, with_node = first_line(error), self._lost_with_node(self.cluster, handle, error)
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
        self._replace_actor(handle, reason, with_node)

    def _on_silent(self, handle: ActorHandle, reason: str) -> None:
        self._replace_actor(handle, reason, with_node=False)

    def _replace_actor(self, handle: ActorHandle, reason: str, with_node: bool) -> None:
        """Kill and replace an actor: the task it was playing has failed, unless its whole node did."""
        self.handles.remove(handle)
        self._kill(handle)
        tasks = handle.take_tasks()
        handle.alive_reference = handle.progress_reference = handle.node_reference = None  # late answers are ignored
        if with_node:
            self._say(f"{handle.name} was lost with its node: what it played is played again")
        else:
            self._failures += 1
            # The limit grows with the actors: of a thousand, ten may well fail before one finishes anything.
            if self._failures > max(MAX_FAILED_RESTARTS, self.wanted()):
                raise WorkerError(
                    f"{handle.name} {reason}; {self._failures} actors in a row ended before they finished anything"
                )
            self._say(f"{handle.name} {reason}: replaced")
            if tasks:
                self._listener.on_task_lost(handle, tasks.pop(0), reason)
        self.start_missing()
        self._listener.on_tasks_returned(tasks)

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        for handle in self.handles:
            self._kill(handle)
        self.handles = []
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
