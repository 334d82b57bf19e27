"""Collecting in Ray actors, on this machine or on a cluster: whole episodes as tasks, taken as they are done.

Everything about Ray is in this file, and it is imported only when a run wants it. What travels: a task with
the number of its weights (a few hundred bytes), the weights once per version and node, and what was played.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from remuda.core import session
from remuda.core.errors import ConfigError, OrderError, WorkerError, first_line
from remuda.core.failures import TaskFailure
from remuda.core.fragment import Purpose
from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.core.timeline import span
from remuda.engines.collectors.ray.actor import RolloutActor, TaskResult
from remuda.engines.collectors.ray.cluster import WATCH, Cluster, require_ray
from remuda.engines.collectors.task_size import AHEAD, task_size
from remuda.engines.interfaces import Collectors, Delivery, RemoteWorker, Rows, TimeSpent
from remuda.learners.herd import Part, bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.transport.heartbeat import Limits
from remuda.transport.slots import SlotLayout
from remuda.transport.worker_pool import LOOK_UP_S, RESTARTS

HIRE_S = 2.0
"""Seconds between looks at how large the cluster is."""
CALL_S = 5.0
"""Seconds between calls to an actor: only they tell that one is gone that has no task, or whose outcome Ray lost."""
FETCH_S = 10.0
"""Longest to wait for what is said to be here; it may have had to leave again."""
REST_S = 30.0
"""Seconds before an actor that could not start is tried again: its node may be unfit, and says so every time."""
LEAST_STORE = 128 << 20
"""Bytes of object store below which Ray is not comfortable."""


@dataclass
class ActorTask:
    """A task in an actor's hands."""

    task: Task
    version: int
    reference: Any  # to its outcome


@dataclass
class ActorHandle:
    """Our side of one actor."""

    name: str
    actor: Any
    hello: Any  # reference to its first word
    restarts: int = 0
    peak_bytes: int = 0
    node: str = ""  # once it has said so
    dealt: deque[ActorTask] = field(default_factory=deque)  # the first of them is being played
    verdict: Any = None  # reference to a word that tells whether it lives, where that is in doubt
    asked: Any = None  # reference to its answer how far it is
    called: float = field(default_factory=time.monotonic)  # when it was last asked
    turns: int = -1  # begun when it last answered
    turn: int = 0
    heard: float = field(default_factory=time.monotonic)  # when it was last seen to get on
    idle_since: float = 0.0

    @property
    def references(self) -> list[Any]:
        """Everything we wait to hear from it."""
        if self.verdict is not None:
            return [self.verdict]
        waiting = [dealt.reference for dealt in self.dealt]
        return waiting + [own for own in (self.asked, None if self.node else self.hello) if own is not None]


@dataclass(frozen=True)
class PublishedWeights:
    """Rows in the object store."""

    number: int
    version: int
    reference: Any


class RayCollectors(Collectors):
    """Deals tasks to actors and brings what they played, first come first served."""

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
        self.config, self.limits = RolloutConfig.of(plan), Limits.of(plan)
        self.handles: list[ActorHandle] = []
        self._stop, self._say = stop, say
        self._ray: Any = require_ray()
        self._cluster: Cluster | None = None
        self._weights: dict[Purpose, PublishedWeights] = {}
        self._published = 0
        self._known: dict[str, ActorHandle] = {}  # the last one of every name
        self._resting: dict[str, float] = {}  # names not to be hired again before some time
        self._looked = 0.0  # when we last looked how large the cluster is
        self._listened = 0.0  # when we last looked for silence
        self._begun = False
        self._failures = 0  # deaths since anybody last finished anything
        self._waiting: deque[Task] = deque()
        self._ready: deque[Delivery] = deque()
        self._size = task_size(plan, plan.n_workers or cores())
        self._session_objects = session.pack(plan.names())

    def start(self) -> None:
        """Find or start the cluster, and wait for the first actor; in a cluster of our own for all of them."""
        self._cluster = Cluster(self._ray, self.plan, self.memory_bytes())
        self._size = task_size(self.plan, self._wanted())
        self._hire()
        deadline = time.monotonic() + self.limits.start * (1 + len(self.handles) / 100)
        enough = all if self._cluster.ours else any
        while not enough(handle.node for handle in self.handles):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"engine=ray: no actor found a place within {self.limits.start:.0f} s; each wants "
                    f"{self._cluster.each}, the cluster has {self._cluster.has()}: lower actor_cpus, actor_gpus or "
                    "actor_resources, or raise start_limit_s"
                )
            self._listen(deadline - time.monotonic())
        self._begun = True
        where = "of its own on this machine" if self._cluster.ours else f"at {self._cluster.address}"
        self._say(f"ray: {len(self.handles)} actors, a cluster {where} with {self._cluster.has()}")

    def _wanted(self) -> int:
        """Actors to have: as many as asked for, or as the cluster has room for."""
        assert self._cluster is not None, "start() first"
        return self.plan.n_workers or self._cluster.actor_capacity()

    def _hire(self) -> None:
        """Have as many actors as are wanted; Ray finds them a node, as soon as one has room."""
        self._looked = time.monotonic()
        names = (f"actor-{number}" for number in range(self._wanted()))
        there = {handle.name for handle in self.handles}
        for name in [name for name in names if name not in there and self._resting.get(name, 0.0) < self._looked]:
            assert self._cluster is not None
            actor = self._cluster.add_worker(
                RolloutActor, name, sys.path, self.plan, self.parts, self.spec, self.device, self._session_objects
            )
            before = self._known.get(name)
            handle = ActorHandle(name, actor, actor.hello.remote(), 0 if before is None else before.restarts + 1)
            self.handles.append(handle)
            self._known[name] = handle

    @property
    def helpers(self) -> Sequence[RemoteWorker]:  # type: ignore[override]
        """The actors, also those that are gone."""
        return list(self._known.values())

    def task_episodes(self) -> int:
        """A worker's share of the worlds."""
        return self._size

    def capacity(self) -> int:
        """So many that nobody runs out of work while we are busy."""
        return self._size * max(1, sum(bool(handle.node) for handle in self.handles)) * AHEAD

    def send(self, task: Task) -> None:
        """Queue it, and deal it at once if somebody has a hand free."""
        self._waiting.append(task)
        self._deal()

    def _deal(self) -> None:
        """Give tasks to the actors with the fewest."""
        able = [handle for handle in self.handles if handle.node and handle.verdict is None]
        while self._waiting and able:
            handle = min(able, key=lambda handle: len(handle.dealt))
            if len(handle.dealt) >= AHEAD:
                return
            task = self._waiting.popleft()
            own = self._weights[Purpose.TRAIN if task.purpose is Purpose.TRAIN else Purpose.EVALUATE]
            if not handle.dealt:
                handle.heard = time.monotonic()
                self.waited_s += handle.heard - handle.idle_since
            reference = handle.actor.play.remote(task, own.number, own.version, [own.reference])
            handle.dealt.append(ActorTask(task, own.version, reference))

    def recv(self, timeout_s: float) -> Delivery:
        """The first that is done."""
        began = time.perf_counter()
        while not self._ready:
            if not self._waiting and not any(handle.dealt for handle in self.handles):
                raise OrderError("recv() without a task: call send() first")
            if time.monotonic() - self._looked > HIRE_S:
                self._hire()
            self._deal()
            if not self._listen(timeout_s - (time.perf_counter() - began)):
                raise WorkerError(f"no actor finished a task within {timeout_s:.0f} s")
        self.spent.wall += time.perf_counter() - began
        return self._ready.popleft()

    def _listen(self, timeout_s: float) -> bool:
        """Wait for whatever is ready first and deal with it and all else that is; False when the time is over."""
        self._stop()
        by_reference = {reference: handle for handle in self.handles for reference in handle.references}
        with span("wait"):
            wait_s = max(0.0, min(LOOK_UP_S, timeout_s))
            time.sleep(0.0 if by_reference else wait_s)  # all may rest, and Ray does not wait for nobody
            done, others = self._ray.wait(list(by_reference), num_returns=1, timeout=wait_s)
        if done and others:
            done += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        for reference in done:
            if reference in by_reference[reference].references:  # which it may have lost over another one
                self._hear(by_reference[reference], reference)
        self._look_for_silence()
        return bool(done) or timeout_s > 0

    def _hear(self, handle: ActorHandle, reference: Any) -> None:
        try:
            value = self._ray.get(reference, timeout=FETCH_S)
        except self._ray.exceptions.GetTimeoutError:
            return  # if its actor lives it comes again, else the next call tells
        except self._ray.exceptions.RayError as error:
            self._hear_of_trouble(handle, error)
            return
        if reference == handle.verdict:
            self._waiting.extendleft(dealt.task for dealt in reversed(handle.dealt))
            handle.verdict = handle.asked = None
            handle.dealt.clear()
        elif reference == handle.hello:
            handle.node, handle.idle_since = value, time.monotonic()
            if self._begun or self.plan.address:
                self._say(f"{handle.name} joined on node {handle.node}")
        elif reference == handle.asked:
            handle.asked = None
            if value[0] != handle.turns:
                handle.heard = time.monotonic()
            handle.turns, handle.turn = value
        else:
            self._done(handle, reference, value)

    def _hear_of_trouble(self, handle: ActorHandle, error: Any) -> None:
        """A program that is wrong ends the run; all else costs the actor, if it is gone."""
        errors = self._ray.exceptions
        why, its_node = first_line(error), self._died_with_its_node(handle, error)
        if isinstance(error, errors.RayTaskError):  # not the game's, which comes with the outcome
            if not isinstance(error.cause, errors.RayError) or type(error.cause) is errors.RayError:
                raise WorkerError(f"{handle.name}: {first_line(error.cause)}\n{error}") from None
            why = f"got no further: {first_line(error.cause)}"  # Ray's own error: the node may be going down
        elif isinstance(error, errors.ActorUnavailableError):  # cut off: it, its node or only the line
            handle.verdict = handle.actor.hello.remote()
            return
        elif not handle.node and not its_node:
            raised = getattr(error, "actor_init_failed", False)
            why = f"could not start: {str(error).strip().splitlines()[-1] if raised else why}"
            if raised and not self._begun:
                raise WorkerError(f"{handle.name} {why}") from None
            self._resting[handle.name] = time.monotonic() + REST_S * self._begun
        self._lose(handle, why, its_node)

    def _done(self, handle: ActorHandle, reference: Any, outcome: TaskResult) -> None:
        dealt = next(dealt for dealt in handle.dealt if dealt.reference == reference)
        handle.dealt.remove(dealt)
        handle.heard = handle.idle_since = time.monotonic()
        handle.peak_bytes = max(handle.peak_bytes, outcome.peak_bytes)
        self._failures = 0
        self.spent.cpu += outcome.cpu_s
        self._ready.append(
            Delivery(dealt.task, outcome.fragments, invalid_samples=outcome.invalid_samples, failure=outcome.failure)
        )
        self._deal()

    def _look_for_silence(self) -> None:
        """Ask everybody now and then how far they are; who does not get on is ended, who is gone is missed."""
        now, limit, often = time.monotonic(), self.limits.turn, min(CALL_S, self.limits.turn / 4)
        if now - self._listened > 4 * LOOK_UP_S:  # we were busy, or stopped together with everybody
            for handle in self.handles:
                handle.heard = now
        self._listened = now
        for handle in list(self.handles):
            if handle.dealt and now - handle.heard > limit:
                self._lose(handle, f"was silent for {now - handle.heard:.0f} s and was ended", its_node=False)
            elif handle.node and handle.asked is None and handle.verdict is None and now - handle.called > often:
                handle.asked, handle.called = handle.actor.progress.options(concurrency_group=WATCH).remote(), now

    def _died_with_its_node(self, handle: ActorHandle, error: Exception) -> bool:
        """Whether it is no fault of the game's."""
        assert self._cluster is not None
        return "node has died" in str(error) or (bool(handle.node) and not self._cluster.has_node(handle.node))

    def _lose(self, handle: ActorHandle, why: str, its_node: bool) -> None:
        """Take back what an actor had: what it was playing has failed, unless its whole node did."""
        self.handles.remove(handle)
        with suppress(Exception):  # it is gone already, or on its way
            self._ray.kill(handle.actor)
        mine = [dealt.task for dealt in handle.dealt]
        handle.dealt.clear()
        handle.verdict = handle.asked = handle.hello = None  # whatever it may still say
        if its_node:
            self._say(f"{handle.name} was lost with its node: what it played is played again")
        else:
            self._failures += 1
            if self._failures > RESTARTS:
                raise WorkerError(
                    f"{handle.name} {why}; {RESTARTS} actors in a row ended before they finished anything"
                )
            self._say(f"{handle.name} {why}: replaced")
            if mine:
                task = mine.pop(0)
                where = f"turn {max(handle.turn, 0)} of {task}, {self.config.places(task)}, seed {self.plan.seed}"
                what = f"{handle.name}: {why} in {where}"
                failure = TaskFailure(task, handle.name, max(handle.turn, 0), what, "", [])
                self._ready.append(Delivery(task, (), failure=failure))
        self._waiting.extendleft(reversed(mine))
        self._hire()
        self._deal()

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Put them into the object store, once; tasks dealt from now on name them."""
        with span("publish"):
            self._published += 1
            self._weights[purpose] = PublishedWeights(self._published, version, self._ray.put(rows))

    def oldest(self) -> int | None:
        """The oldest version anybody plays with, or will."""
        dealt = (dealt for handle in self.handles for dealt in handle.dealt if dealt.task.purpose is Purpose.TRAIN)
        return min((own.version for own in dealt), default=None)

    def memory_bytes(self) -> int:
        """The object store: rounds on their way, what actors are about to bring, and some versions."""
        bindings = [bind_policy(part, self.plan, self.spec, self.device) for part in self.parts]
        per_task = SlotLayout.of(self.spec, bindings, self._size).slot_bytes
        workers = self.plan.n_workers or cores()
        tasks = (2 + self.plan.lag) * -(-self.plan.round_episodes // self._size) + AHEAD * workers
        rows = sum(
            binding.policy.rows.nbytes for binding, part in zip(bindings, self.parts, strict=True) if part.learns
        )
        return max(LEAST_STORE, tasks * per_task + 4 * rows)

    def store_bytes(self) -> int:
        """The object store, where it is on this machine because of us."""
        return 0 if self.plan.address else self.memory_bytes()

    @property
    def slots_used(self) -> int:  # type: ignore[override]
        """Tasks that are out, or done and not taken yet."""
        return len(self._ready) + sum(len(handle.dealt) for handle in self.handles)

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        for handle in self.handles:
            with suppress(Exception):
                self._ray.kill(handle.actor)
        self.handles, self._weights = [], {}
        self._ready.clear()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
