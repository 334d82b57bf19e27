"""Collecting in Ray actors, on this machine or on a cluster: whole episodes as tasks, taken as they are done.

Everything about Ray is in this file, and it is imported only when a run wants it. What travels: a task with
the number of its weights (a few hundred bytes), the weights once per version and node, and what was played.
"""

from __future__ import annotations

import importlib
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remuda.collect import Flaw, Manner, Player, Players, Task, room
from remuda.config import Plan
from remuda.errors import ConfigError, GameError, OrderError, WorkerError, first_line
from remuda.faults import Failure, trace_of
from remuda.fragment import Fragment, Purpose
from remuda.game import GameSpec
from remuda.games import find_game
from remuda.herd import Part, make_seat
from remuda.placement.base import Collectors, Delivery, Helper, Rows, Spent
from remuda.placement.pool import AHEAD, task_size
from remuda.placement.slots import Layout
from remuda.placement.supervise import LOOK_UP_S, RESTARTS, Limits
from remuda.placement.worker import rehearse
from remuda.telemetry.processes import family
from remuda.telemetry.timeline import span
from remuda.threads import cores, one_thread_each

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
LOOPBACK = "127.0.0.1"
CONNECT_S = 10.0
"""Longest a cluster may take to answer at all."""
WARDEN = """
import os, shutil, signal, sys
from contextlib import suppress
family = []
for pid in sys.argv[2:]:
    with suppress(OSError):
        family.append(os.pidfd_open(int(pid)))
sys.stdin.read()
for process in family:
    with suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
"""A program that only waits for us to be gone: some processes of Ray would live on for a minute."""
QUIETLY = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what it does from now on, and warns about
}
"""Environment variables for Ray, where nobody has set them."""
WATCH = "watch"
"""The thread of an actor that answers while it plays."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task."""

    fragments: Sequence[Fragment]
    failure: Failure | None
    flaws: Sequence[Flaw]
    cpu_s: float
    peak_bytes: int


class Actor:
    """Lives in a process of Ray: worlds and policies of its own, and the weights it last fetched."""

    def __init__(
        self, name: str, path: Sequence[str], plan: Plan, parts: Sequence[Part], spec: GameSpec, device: str
    ) -> None:
        sys.path.extend(place for place in path if place not in sys.path)  # where a game of one's own may lie
        self.name, self.spec, self.manner = name, spec, Manner.of(plan)
        self.seats = [make_seat(part, plan, spec, device) for part in parts]
        self.players = Players(
            find_game(plan.game), plan.options, self.manner, lambda game: Player(game, self.seats, self.manner)
        )
        with suppress(Exception), one_thread_each():  # what is compiled or loaded on first use is no turn's fault
            rehearse(plan, spec)
        self._loaded = -1  # number of the weights
        self._turns = 0  # begun, in all
        self._turn = 0  # of the task

    def hello(self) -> str:
        """The node we live on."""
        return str(require_ray().get_runtime_context().get_node_id())

    def progress(self) -> tuple[int, int]:
        """Turns begun since we live, and in this task; answered while we play."""
        return self._turns, self._turn

    def play(self, task: Task, number: int, version: int, weights: Sequence[Any]) -> Outcome:
        """Play a task with the weights of this number; they are fetched if others are loaded."""
        torch.set_num_threads(1)  # in this thread: another one may have built us
        cpu = time.thread_time()
        if number != self._loaded:
            for part, rows in require_ray().get(weights[0]).items():
                self.seats[part].policy.load(rows, version)
            self._loaded = number
        self._turn = -1
        out = room(self.spec, self.seats, self.manner, task)
        fragments: Sequence[Fragment] = ()
        flaws: Sequence[Flaw] = ()
        failure = None
        try:
            player = self.players.begin(task)
            with span("collect"):
                fragments, flaws = player.play(out, self._before_turn), player.flaws
        except GameError as error:
            self.players.forget(task)
            failure = Failure.of(task, self.name, error.turn, f"{self.name}: {error}", trace_of(error), out)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Outcome(fragments, failure, flaws, time.thread_time() - cpu, peak)

    def _before_turn(self) -> None:
        self._turns += 1
        self._turn += 1


@dataclass
class Dealt:
    """A task in an actor's hands."""

    task: Task
    version: int
    reference: Any  # to its outcome


@dataclass
class Hand:
    """Our side of one actor."""

    name: str
    actor: Any
    hello: Any  # reference to its first word
    restarts: int = 0
    peak_bytes: int = 0
    node: str = ""  # once it has said so
    dealt: deque[Dealt] = field(default_factory=deque)  # the first of them is being played
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
class Weights:
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
        self.spent = Spent()
        self.waited_s = 0.0
        self.plan, self.spec, self.parts, self.device = plan, spec, parts, device
        self.manner, self.limits = Manner.of(plan), Limits.of(plan)
        self.hands: list[Hand] = []
        self._stop, self._say = stop, say
        self._ray: Any = require_ray()
        self._cluster: Cluster | None = None
        self._weights: dict[Purpose, Weights] = {}
        self._published = 0
        self._known: dict[str, Hand] = {}  # the last one of every name
        self._resting: dict[str, float] = {}  # names not to be hired again before some time
        self._looked = 0.0  # when we last looked how large the cluster is
        self._listened = 0.0  # when we last looked for silence
        self._begun = False
        self._failures = 0  # deaths since anybody last finished anything
        self._waiting: deque[Task] = deque()
        self._ready: deque[Delivery] = deque()
        self._size = task_size(plan, plan.n_workers or cores())

    def start(self) -> None:
        """Find or start the cluster, and wait for the first actor; in a cluster of our own for all of them."""
        self._cluster = Cluster(self._ray, self.plan, self.memory_bytes())
        self._size = task_size(self.plan, self._wanted())
        self._hire()
        deadline = time.monotonic() + self.limits.start * (1 + len(self.hands) / 100)
        enough = all if self._cluster.ours else any
        while not enough(hand.node for hand in self.hands):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"engine=ray: no actor found a place within {self.limits.start:.0f} s; each wants "
                    f"{self._cluster.each}, the cluster has {self._cluster.has()}: lower actor_cpus, actor_gpus or "
                    "actor_resources, or raise start_limit_s"
                )
            self._listen(deadline - time.monotonic())
        self._begun = True
        where = "of its own on this machine" if self._cluster.ours else f"at {self._cluster.address}"
        self._say(f"ray: {len(self.hands)} actors, a cluster {where} with {self._cluster.has()}")

    def _wanted(self) -> int:
        """Actors to have: as many as asked for, or as the cluster has room for."""
        assert self._cluster is not None, "start() first"
        return self.plan.n_workers or self._cluster.room()

    def _hire(self) -> None:
        """Have as many actors as are wanted; Ray finds them a node, as soon as one has room."""
        self._looked = time.monotonic()
        names = (f"actor-{number}" for number in range(self._wanted()))
        there = {hand.name for hand in self.hands}
        for name in [name for name in names if name not in there and self._resting.get(name, 0.0) < self._looked]:
            assert self._cluster is not None
            actor = self._cluster.hire(Actor, name, sys.path, self.plan, self.parts, self.spec, self.device)
            before = self._known.get(name)
            hand = Hand(name, actor, actor.hello.remote(), 0 if before is None else before.restarts + 1)
            self.hands.append(hand)
            self._known[name] = hand

    @property
    def helpers(self) -> Sequence[Helper]:  # type: ignore[override]
        """The actors, also those that are gone."""
        return list(self._known.values())

    def task_episodes(self) -> int:
        """A worker's share of the worlds."""
        return self._size

    def capacity(self) -> int:
        """So many that nobody runs out of work while we are busy."""
        return self._size * max(1, sum(bool(hand.node) for hand in self.hands)) * AHEAD

    def send(self, task: Task) -> None:
        """Queue it, and deal it at once if somebody has a hand free."""
        self._waiting.append(task)
        self._deal()

    def _deal(self) -> None:
        """Give tasks to the actors with the fewest."""
        able = [hand for hand in self.hands if hand.node and hand.verdict is None]
        while self._waiting and able:
            hand = min(able, key=lambda hand: len(hand.dealt))
            if len(hand.dealt) >= AHEAD:
                return
            task = self._waiting.popleft()
            own = self._weights[Purpose.TRAIN if task.purpose is Purpose.TRAIN else Purpose.EVALUATE]
            if not hand.dealt:
                hand.heard = time.monotonic()
                self.waited_s += hand.heard - hand.idle_since
            reference = hand.actor.play.remote(task, own.number, own.version, [own.reference])
            hand.dealt.append(Dealt(task, own.version, reference))

    def recv(self, timeout_s: float) -> Delivery:
        """The first that is done."""
        began = time.perf_counter()
        while not self._ready:
            if not self._waiting and not any(hand.dealt for hand in self.hands):
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
        by_reference = {reference: hand for hand in self.hands for reference in hand.references}
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

    def _hear(self, hand: Hand, reference: Any) -> None:
        try:
            value = self._ray.get(reference, timeout=FETCH_S)
        except self._ray.exceptions.GetTimeoutError:
            return  # if its actor lives it comes again, else the next call tells
        except self._ray.exceptions.RayError as error:
            self._hear_of_trouble(hand, error)
            return
        if reference == hand.verdict:
            self._waiting.extendleft(dealt.task for dealt in reversed(hand.dealt))
            hand.verdict = hand.asked = None
            hand.dealt.clear()
        elif reference == hand.hello:
            hand.node, hand.idle_since = value, time.monotonic()
            if self._begun or self.plan.address:
                self._say(f"{hand.name} joined on node {hand.node}")
        elif reference == hand.asked:
            hand.asked = None
            if value[0] != hand.turns:
                hand.heard = time.monotonic()
            hand.turns, hand.turn = value
        else:
            self._done(hand, reference, value)

    def _hear_of_trouble(self, hand: Hand, error: Any) -> None:
        """A program that is wrong ends the run; all else costs the actor, if it is gone."""
        errors = self._ray.exceptions
        why, its_node = first_line(error), self._died_with_its_node(hand, error)
        if isinstance(error, errors.RayTaskError):  # not the game's, which comes with the outcome
            if not isinstance(error.cause, errors.RayError) or type(error.cause) is errors.RayError:
                raise WorkerError(f"{hand.name}: {first_line(error.cause)}\n{error}") from None
            why = f"got no further: {first_line(error.cause)}"  # Ray's own error: the node may be going down
        elif isinstance(error, errors.ActorUnavailableError):  # cut off: it, its node or only the line
            hand.verdict = hand.actor.hello.remote()
            return
        elif not hand.node and not its_node:
            raised = getattr(error, "actor_init_failed", False)
            why = f"could not start: {str(error).strip().splitlines()[-1] if raised else why}"
            if raised and not self._begun:
                raise WorkerError(f"{hand.name} {why}") from None
            self._resting[hand.name] = time.monotonic() + REST_S * self._begun
        self._lose(hand, why, its_node)

    def _done(self, hand: Hand, reference: Any, outcome: Outcome) -> None:
        dealt = next(dealt for dealt in hand.dealt if dealt.reference == reference)
        hand.dealt.remove(dealt)
        hand.heard = hand.idle_since = time.monotonic()
        hand.peak_bytes = max(hand.peak_bytes, outcome.peak_bytes)
        self._failures = 0
        self.spent.cpu += outcome.cpu_s
        self._ready.append(Delivery(dealt.task, outcome.fragments, flaws=outcome.flaws, failure=outcome.failure))
        self._deal()

    def _look_for_silence(self) -> None:
        """Ask everybody now and then how far they are; who does not get on is ended, who is gone is missed."""
        now, limit, often = time.monotonic(), self.limits.turn, min(CALL_S, self.limits.turn / 4)
        if now - self._listened > 4 * LOOK_UP_S:  # we were busy, or stopped together with everybody
            for hand in self.hands:
                hand.heard = now
        self._listened = now
        for hand in list(self.hands):
            if hand.dealt and now - hand.heard > limit:
                self._lose(hand, f"was silent for {now - hand.heard:.0f} s and was ended", its_node=False)
            elif hand.node and hand.asked is None and hand.verdict is None and now - hand.called > often:
                hand.asked, hand.called = hand.actor.progress.options(concurrency_group=WATCH).remote(), now

    def _died_with_its_node(self, hand: Hand, error: Exception) -> bool:
        """Whether it is no fault of the game's."""
        assert self._cluster is not None
        return "node has died" in str(error) or (bool(hand.node) and not self._cluster.has_node(hand.node))

    def _lose(self, hand: Hand, why: str, its_node: bool) -> None:
        """Take back what an actor had: what it was playing has failed, unless its whole node did."""
        self.hands.remove(hand)
        with suppress(Exception):  # it is gone already, or on its way
            self._ray.kill(hand.actor)
        mine = [dealt.task for dealt in hand.dealt]
        hand.dealt.clear()
        hand.verdict = hand.asked = hand.hello = None  # whatever it may still say
        if its_node:
            self._say(f"{hand.name} was lost with its node: what it played is played again")
        else:
            self._failures += 1
            if self._failures > RESTARTS:
                raise WorkerError(f"{hand.name} {why}; {RESTARTS} actors in a row ended before they finished anything")
            self._say(f"{hand.name} {why}: replaced")
            if mine:
                task = mine.pop(0)
                where = f"turn {max(hand.turn, 0)} of {task}, {self.manner.places(task)}, seed {self.plan.seed}"
                what = f"{hand.name}: {why} in {where}"
                failure = Failure(task, hand.name, max(hand.turn, 0), what, "", [])
                self._ready.append(Delivery(task, (), failure=failure))
        self._waiting.extendleft(reversed(mine))
        self._hire()
        self._deal()

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Put them into the object store, once; tasks dealt from now on name them."""
        with span("publish"):
            self._published += 1
            self._weights[purpose] = Weights(self._published, version, self._ray.put(rows))

    def oldest(self) -> int | None:
        """The oldest version anybody plays with, or will."""
        dealt = (dealt for hand in self.hands for dealt in hand.dealt if dealt.task.purpose is Purpose.TRAIN)
        return min((own.version for own in dealt), default=None)

    def memory_bytes(self) -> int:
        """The object store: rounds on their way, what actors are about to bring, and some versions."""
        seats = [make_seat(part, self.plan, self.spec, self.device) for part in self.parts]
        per_task = Layout.of(self.spec, seats, self._size).slot_bytes
        workers = self.plan.n_workers or cores()
        tasks = (2 + self.plan.lag) * -(-self.plan.round_episodes // self._size) + AHEAD * workers
        rows = sum(seat.policy.rows.nbytes for seat, part in zip(seats, self.parts, strict=True) if part.learns)
        return max(LEAST_STORE, tasks * per_task + 4 * rows)

    def store_bytes(self) -> int:
        """The object store, where it is on this machine because of us."""
        return 0 if self.plan.address else self.memory_bytes()

    @property
    def slots_used(self) -> int:  # type: ignore[override]
        """Tasks that are out, or done and not taken yet."""
        return len(self._ready) + sum(len(hand.dealt) for hand in self.hands)

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        for hand in self.hands:
            with suppress(Exception):
                self._ray.kill(hand.actor)
        self.hands, self._weights = [], {}
        self._ready.clear()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class Cluster:
    """The Ray we work with: one that exists, or one of our own on this machine that ends with us."""

    def __init__(self, ray: Any, plan: Plan, store_bytes: int) -> None:
        self._ray, self.plan = ray, plan
        self.address = plan.address or "this process's"
        self.ours = False
        self._joined = not ray.is_initialized()
        self._folder: Path | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self.each = {"CPU": plan.actor_cpus, "GPU": plan.actor_gpus, **plan.actor_resources}
        self.each = {name: amount for name, amount in self.each.items() if amount}
        for name, value in QUIETLY.items():
            os.environ.setdefault(name, value)
        with _own_signals():
            if plan.address:
                self._join()
            elif self._joined:
                self._begin(store_bytes)

    def _join(self) -> None:
        """A cluster that exists; Ray itself would try for minutes where nobody listens, and then end the process."""
        try:
            if self.address != "auto":
                host, _, port = self.address.rpartition(":")
                if not host or not port.isdigit():
                    raise ValueError("an address is HOST:PORT, or auto")
                socket.create_connection((host, int(port)), CONNECT_S).close()
            if not self._joined:
                raise ValueError("this process has joined another one")
            self._ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"address={self.address}: no Ray cluster answers there ({first_line(error)}); start one with "
                "`ray start --head`, or leave address out"
            ) from None

    def _begin(self, store_bytes: int) -> None:
        """Reachable from this machine only, without a dashboard, its files in a folder that goes with it."""
        workers = self.plan.n_workers or cores()
        self._folder = Path(tempfile.mkdtemp(prefix="remuda-ray-"))
        self.ours = True
        before = set(family(os.getpid()))
        try:
            with _within_this_machine():
                self._ray.init(
                    address="local",
                    num_cpus=max(cores(), math.ceil(workers * self.plan.actor_cpus)),
                    resources={name: amount * workers for name, amount in self.plan.actor_resources.items()},
                    object_store_memory=store_bytes,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(self._folder),
                )
        except Exception as error:  # Ray raises what it likes, bare exceptions among it
            raise self._refused(first_line(error)) from error
        if (address := self._ray.nodes()[0]["NodeManagerAddress"]) != LOOPBACK:
            raise self._refused(f"this version of Ray insists on listening beyond this machine ({address})")
        own = [str(pid) for pid in family(os.getpid()) if pid not in before]
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WARDEN, str(self._folder), *own],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _refused(self, why: str) -> ConfigError:
        """The error, with nothing left behind."""
        self.close()
        return ConfigError(
            f"engine=ray: no cluster could be started here: {why}; "
            "start one with `ray start --head` and give its address, or use engine=executor"
        )

    def hire(self, kind: type, *args: Any) -> Any:
        """An actor of this kind on any node with room for it, the nodes taking turns."""
        return self._ray.remote(concurrency_groups={WATCH: 1})(kind).options(
            num_cpus=self.plan.actor_cpus,
            num_gpus=self.plan.actor_gpus,
            resources=self.plan.actor_resources,
            scheduling_strategy="SPREAD",
            max_restarts=0,
        ).remote(*args)  # fmt: skip

    def has(self) -> dict[str, float]:
        """What of the things actors want there is, in all."""
        has = self._ray.cluster_resources()
        return {name: has.get(name, 0.0) for name in self.each}

    def room(self) -> int:
        """Actors the cluster has room for, at least one."""
        return max(1, min((int(has // self.each[name]) for name, has in self.has().items()), default=cores()))

    def has_node(self, name: str) -> bool:
        """Whether a node is alive."""
        return any(node["NodeID"] == name and node["Alive"] for node in self._ray.nodes())

    def close(self) -> None:
        """Leave, and end what we began."""
        if self._joined:
            self._ray.shutdown()
        if self._warden is not None:
            self._warden.kill()
            self._warden.communicate()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _within_this_machine() -> Iterator[None]:
    """Have Ray do on Linux what it does elsewhere: stay on the loopback interface when it is told to."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM: ours stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def require_ray() -> Any:
    """Ray, or one sentence that says how to have it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("engine=ray needs Ray, which is not installed here: pip install 'remuda[ray]'") from None
