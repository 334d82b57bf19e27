"""Worker processes under supervision: started, listened to, replaced when they die or fall silent, and ended.

One pipe per worker, small messages only. Workers come from a preloaded fork server where there is one,
else from spawn; they die with us, and we notice within a wait when one of them dies.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from remuda.config import Plan
from remuda.errors import ConfigError, GameError, RemudaError, WorkerError
from remuda.placement.shared import Memory, plan_fields
from remuda.telemetry import timeline
from remuda.telemetry.timeline import span
from remuda.threads import keep_freed_memory, one_thread_each

END_LIMIT_S = 5.0
"""Longest a worker may take to end after being told; then it is killed."""
LOOK_UP_S = 0.5
"""Waits on handles are interrupted so often, to see whether somebody asked us to stop."""
ATTEMPTS = 5
"""Times we try to start a process where the fork server does not answer."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""What a fork server is told when it starts: every worker has one thread, whoever multiplies."""
RESTARTS = 10
"""Deaths in a row, without a single finished task between them, after which a run gives up."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PRELOAD = "remuda.placement.preload"
REHEARSE = "REMUDA_REHEARSE"
"""The environment variable that tells a new fork server which plan to rehearse."""


class Phase(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    WAITING = 1
    PLAYING = 2
    ASKING = 3
    TAKING = 4
    LEARNING = 5
    SAVING = 6


@dataclass(frozen=True)
class Limits:
    """Longest a worker may be at one thing before it is taken for hung, in seconds."""

    start: float = 120.0  # from its start to its first word; a hundredth of it more for each other worker
    turn: float = 600.0
    update: float = 3600.0  # also to take data in and to hand its state over

    @classmethod
    def of(cls, plan: Plan) -> Limits:
        """As a plan has it."""
        return cls(plan.start_limit_s, plan.turn_limit_s, plan.update_limit_s)

    @property
    def answer(self) -> float:
        """Longest a worker waits for an answer: others may be hung and replaced before it gets one."""
        return 2 * (self.start + self.turn + self.update)

    def at(self, phase: Phase) -> float:
        """For a worker in this phase."""
        if phase is Phase.STARTING:
            return self.start
        return self.update if phase in (Phase.TAKING, Phase.LEARNING, Phase.SAVING) else self.turn


@dataclass(frozen=True)
class Last:
    """How a worker went, and what it was doing when it was last heard of."""

    why: str
    phase: Phase
    turn: int

    def __str__(self) -> str:
        return f"{self.why} (last: {self.phase.name.lower()}, turn {self.turn})"


class Pulse:
    """What every worker last said it was doing: one row each, written by it alone, read by us."""

    def __init__(self, workers: int) -> None:
        names = ("phase", "turn", "version")
        self._fields, size = plan_fields(
            [*((name, (workers, 8), np.int64) for name in names), ("beat", (workers, 8), np.float64)]
        )
        self.memory = Memory(size)

    def beat(self, worker: int, phase: Phase, turn: int = 0) -> None:
        """I am alive, and this is what I do."""
        self._fields["phase"].view(self.memory)[worker, 0] = phase
        self._fields["turn"].view(self.memory)[worker, 0] = turn
        self._fields["beat"].view(self.memory)[worker, 0] = time.monotonic()

    def note_version(self, worker: int, version: int) -> None:
        """This is the oldest version I play with."""
        self._fields["version"].view(self.memory)[worker, 0] = version

    def version(self, worker: int) -> int:
        """The oldest version it plays with."""
        return int(self._fields["version"].view(self.memory)[worker, 0])

    def silence_s(self, worker: int) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - float(self._fields["beat"].view(self.memory)[worker, 0])

    def last(self, worker: int) -> tuple[Phase, int]:
        """What it last said it was doing, and in which turn."""
        phase = Phase(int(self._fields["phase"].view(self.memory)[worker, 0]))
        return phase, int(self._fields["turn"].view(self.memory)[worker, 0])


class Job(Protocol):
    """What a worker is to do; pickled once, when the worker starts."""

    def run(self, connection: Connection, life: Life) -> None:
        """Work until the connection closes."""


@dataclass(frozen=True)
class Life:
    """A worker's side of the supervision."""

    index: int
    name: str
    pulse: Pulse
    timeline: Path | None = None

    def beat(self, phase: Phase, turn: int = 0) -> None:
        """I am alive, and this is what I do."""
        self.pulse.beat(self.index, phase, turn)


@dataclass
class Worker:
    """Our side of one worker."""

    index: int
    name: str
    job: Job
    hear: Callable[[Worker, Any], None]  # what to do with its messages
    lose: Callable[[Worker, Last], None]  # what to do when it is gone; it has been replaced already
    process: BaseProcess | None = None
    connection: Connection | None = None
    ready: bool = False
    restarts: int = 0
    peak_bytes: int = 0
    waited_for_since: float | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody waits for it."""
        return self.waited_for_since is not None

    @busy.setter
    def busy(self, busy: bool) -> None:
        if busy != self.busy:
            self.waited_for_since = time.monotonic() if busy else None


@dataclass
class Crew:
    """All workers of a run, whatever they do, and the one place where we wait for them."""

    stop: Callable[[], None]
    say: Callable[[str], None] = lambda text: None
    workers: list[Worker] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    rehearsal: str = ""  # the plan as JSON
    timeline: Path | None = None  # where workers write what they did when
    failures: int = 0  # deaths since anybody last finished anything
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _pulse: Pulse | None = None
    _context: Any = None
    _closed: bool = False
    _looked: float = 0.0  # when we last looked for silence
    _listening_since: float = 0.0  # without a pause

    def hire(
        self, name: str, job: Job, hear: Callable[[Worker, Any], None], lose: Callable[[Worker, Last], None]
    ) -> Worker:
        """Add a worker; it starts with the others."""
        worker = Worker(len(self.workers), name, job, hear, lose)
        self.workers.append(worker)
        return worker

    @property
    def pulse(self) -> Pulse:
        """What the workers say they are doing."""
        assert self._pulse is not None, "start() first"
        return self._pulse

    def start(self) -> None:
        """Start everybody and wait until all are ready; only the first call does anything."""
        if self._pulse is not None:
            return
        self._pulse = Pulse(len(self.workers))
        self._context = process_context()
        for worker in self.workers:
            self._start(worker)
        deadline = time.monotonic() + self.limits.start * (1 + len(self.workers) / 100)
        while not all(worker.ready for worker in self.workers):
            if time.monotonic() > deadline:
                late = next(worker for worker in self.workers if not worker.ready)
                raise WorkerError(
                    f"{late.name} did not start within {self.limits.start:.0f} s: "
                    "raise start_limit_s, or use fewer workers"
                )
            self.step(deadline - time.monotonic())

    def _start(self, worker: Worker) -> None:
        ours, theirs = self._context.Pipe()
        life = Life(worker.index, worker.name, self.pulse, self.timeline)
        self.pulse.beat(worker.index, Phase.STARTING)
        process = self._begin(worker.name, (worker.job, theirs, life))
        theirs.close()
        worker.process, worker.connection, worker.ready, worker.busy = process, ours, False, False
        self._selector.register(ours, selectors.EVENT_READ, (worker, "speaks"))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (worker, "ended"))

    def _begin(self, name: str, args: tuple[Any, ...]) -> BaseProcess:
        """A new process; a fork server that died a moment ago may have to be missed first."""
        for attempt in range(ATTEMPTS):
            process: BaseProcess = self._context.Process(target=_live, args=args, name=name, daemon=True)
            try:
                with _environment({REHEARSE: self.rehearsal, **ONE_THREAD}):  # should it start a fork server
                    process.start()
            except (ConnectionError, EOFError):
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(0.1)
            else:
                break
        return process

    def step(self, timeout_s: float, stoppable: bool = True) -> bool:
        """Wait until anybody speaks or dies, and have that dealt with; False if nobody did in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            if stoppable:
                self.stop()
            with span("wait"):
                events = self._selector.select(max(0.0, min(LOOK_UP_S, deadline - time.monotonic())))
            speaking = {key.data[0].index for key, _ in events if key.data[1] == "speaks"}
            for key, _ in events:
                worker, what = key.data
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # a worker that was replaced meanwhile
                if what == "speaks":
                    self._hear(worker)
                elif worker.index not in speaking:  # its last words come first
                    self._bury(worker, None)
            self._look_for_silence()
            if events:
                return True
            if time.monotonic() >= deadline:
                return False

    def _hear(self, worker: Worker) -> None:
        assert worker.connection is not None
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker, None)
            return
        if isinstance(message, Ready):
            worker.ready = True
        elif isinstance(message, Failed):
            raise message.error(worker.name)
        else:
            self.failures = 0
            worker.hear(worker, message)

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_UP_S:
            return
        if now - self._looked > 4 * LOOK_UP_S:
            self._listening_since = now  # we were busy, or stopped together with everybody
        self._looked = now
        for worker in self.workers:
            if worker.waited_for_since is not None:
                listened_s = now - max(worker.waited_for_since, self._listening_since)
                silent_s = min(self.pulse.silence_s(worker.index), listened_s)
                if silent_s > self.limits.at(self.pulse.last(worker.index)[0]):
                    self._bury(worker, f"was silent for {silent_s:.0f} s and was ended")

    def _bury(self, worker: Worker, reason: str | None) -> None:
        """A worker is gone, or must go: put another in its place."""
        phase, turn = self.pulse.last(worker.index)
        last = Last(self._end(worker, reason), phase, turn)
        self.failures += 1
        if self.failures > RESTARTS:
            raise WorkerError(f"{worker.name} {last}; {RESTARTS} workers in a row ended before they finished anything")
        self.say(f"{worker.name} {last}: replaced")
        worker.restarts += 1
        self._start(worker)
        worker.lose(worker, last)

    def _end(self, worker: Worker, reason: str | None) -> str:
        """Make sure a worker is gone; returns how it went."""
        assert worker.process is not None
        assert worker.connection is not None
        self._selector.unregister(worker.connection)
        self._selector.unregister(worker.process.sentinel)
        worker.connection.close()
        if reason is not None:
            worker.process.kill()
        worker.process.join(END_LIMIT_S)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join(END_LIMIT_S)
        code = worker.process.exitcode
        worker.process.close()
        worker.process = worker.connection = None
        return reason or (
            f"was killed by {_signal_name(-code)}" if code and code < 0 else f"ended with exit code {code}"
        )

    def send(self, worker: Worker, message: Any) -> None:
        """Tell a worker something; if it is gone we hear of that in the next step."""
        assert worker.connection is not None
        with suppress(OSError):
            worker.connection.send(message)

    def close(self) -> None:
        """End everybody: told first, killed if they do not listen. May be called twice."""
        if self._closed or self._pulse is None:
            return
        self._closed = True
        running = [worker for worker in self.workers if worker.process is not None]
        for worker in running:
            if worker.connection is not None:
                worker.connection.close()
        deadline = time.monotonic() + END_LIMIT_S
        for worker in running:
            assert worker.process is not None
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join(END_LIMIT_S)
            worker.process.close()
        self._selector.close()
        self.pulse.memory.close()


@dataclass(frozen=True)
class Ready:
    """A worker's first word."""


@dataclass(frozen=True)
class Failed:
    """A worker's last words: an error it could not deal with."""

    text: str
    trace: str
    of_the_game: bool

    def error(self, name: str) -> RemudaError:
        """The error to raise here, with the worker's traceback attached."""
        error = (GameError if self.of_the_game else WorkerError)(f"{name}: {self.text}")
        error.__cause__ = WorkerError(f"in {name}:\n{self.trace}")
        return error


def refuse_inside_workers() -> None:
    """Raise where a worker, on its way in, runs the program that started it."""
    process = multiprocessing.current_process()
    if process.name != "MainProcess" and getattr(process, "_inheriting", False):
        raise ConfigError(
            'training was started again by one of its own workers: put the call under `if __name__ == "__main__":`'
        )


def process_context() -> Any:
    """How processes are started: from a fork server that has everything imported, else from nothing."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([PRELOAD])
    return context


def processes_forbidden() -> str | None:
    """Why no worker process can be had here, as far as that is known without trying."""
    if not hasattr(os, "memfd_create"):
        return "this system has no nameless shared memory (memfd_create)"
    if multiprocessing.current_process().daemon:
        return "this is itself a daemonic process, which may not start others"
    return None


def processes_unavailable(rehearsal: str = "") -> str | None:
    """Why no worker process can be had here, if so; found out by starting one that does nothing.

    That starts the fork server all workers will come from, so it rehearses the plan here.
    """
    if reason := processes_forbidden():
        return reason
    try:
        Memory(1).close()
        process = process_context().Process(target=die_with_parent, name="trial", daemon=True)
        with _environment({REHEARSE: rehearsal, **ONE_THREAD}):
            process.start()
    except (OSError, EOFError) as error:
        return start_failure(error)
    process.join(Limits().start)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join(END_LIMIT_S)
        return f"a trial process did not end within {Limits().start:.0f} s"
    process.close()
    return None if code == 0 else f"a trial process ended with exit code {code}"


def start_failure(error: OSError | EOFError) -> str:
    """What kept a process from starting."""
    if isinstance(error, EOFError):
        return "the fork server could not start a process, and ended"
    return error.strerror or str(error) or type(error).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _let_the_fork_server_go() -> None:
    """Close our end of the pipe that keeps it alive: it must end with the first process, and we with it."""
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]


def die_with_parent() -> None:
    """Have the kernel kill us when the process we were forked from dies, however it dies."""
    if sys.platform == "linux":
        _let_the_fork_server_go()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)  # it died before we could ask


def _live(job: Job, connection: Connection, life: Life) -> None:
    """The program of every worker."""
    die_with_parent()
    for number in ENDINGS:  # a terminal or a scheduler may tell all of us at once
        signal.signal(number, signal.SIG_IGN)  # our parent decides when we end, and it may have to save first
    if life.timeline is not None:
        timeline.begin(life.timeline, life.name)
    try:
        keep_freed_memory()
        with one_thread_each():
            job.run(connection, life)
    except Exception as error:
        # Also where our parent closed the pipe because it has no more work: then nobody hears this.
        text = str(error) if isinstance(error, RemudaError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            connection.send(Failed(text, traceback.format_exc(), isinstance(error, GameError)))
    finally:
        timeline.end()
