"""Worker processes under supervision: started, listened to, replaced when they die or fall silent, and ended.

One pipe per worker, small messages only. Workers come from a preloaded fork server where there is one,
else from spawn; they die with us, and we notice within a wait when one of them dies.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from remuda.core.errors import WorkerError
from remuda.core.timeline import span
from remuda.transport.heartbeat import Heartbeats, Limits, Phase, WorkerExit, WorkerStatus
from remuda.transport.processes import (
    END_LIMIT_S,
    ONE_THREAD,
    UNGUARDED,
    WARM_UP_VARIABLE,
    environment,
    main_without_file_hidden,
    missing_guard,
    process_context,
    signal_name,
)
from remuda.transport.worker_process import Job, Ready, WorkerFailed, run_worker

LOOK_UP_S = 0.5
"""Waits on handles are interrupted so often, to see whether somebody asked us to stop."""
ATTEMPTS = 5
"""Times we try to start a process where the fork server does not answer."""
RESTARTS = 10
"""Deaths in a row, without a single finished task between them, after which a run gives up."""


@dataclass
class Worker:
    """Our side of one worker."""

    index: int
    name: str
    job: Job
    hear: Callable[[Worker, Any], None]  # what to do with its messages
    lose: Callable[[Worker, WorkerExit], None]  # what to do when it is gone; it has been replaced already
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
class WorkerPool:
    """All workers of a run, whatever they do, and the one place where we wait for them."""

    stop: Callable[[], None]
    say: Callable[[str], None] = lambda text: None
    workers: list[Worker] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    rehearsal: str = ""  # the plan as JSON
    timeline: Path | None = None  # where workers write what they did when
    failures: int = 0  # deaths since anybody last finished anything
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _heartbeats: Heartbeats | None = None
    _context: Any = None
    _closed: bool = False
    _looked: float = 0.0  # when we last looked for silence
    _listening_since: float = 0.0  # without a pause

    def add_worker(
        self, name: str, job: Job, hear: Callable[[Worker, Any], None], lose: Callable[[Worker, WorkerExit], None]
    ) -> Worker:
        """Add a worker; it starts with the others."""
        worker = Worker(len(self.workers), name, job, hear, lose)
        self.workers.append(worker)
        return worker

    @property
    def heartbeats(self) -> Heartbeats:
        """What the workers say they are doing."""
        assert self._heartbeats is not None, "start() first"
        return self._heartbeats

    def start(self) -> None:
        """Start everybody and wait until all are ready; only the first call does anything."""
        if self._heartbeats is not None:
            return
        self._heartbeats = Heartbeats(len(self.workers))
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
        status = WorkerStatus(worker.index, worker.name, self.heartbeats, self.timeline)
        self.heartbeats.beat(worker.index, Phase.STARTING)
        process = self._begin(worker.name, (worker.job, theirs, status))
        theirs.close()
        worker.process, worker.connection, worker.ready, worker.busy = process, ours, False, False
        self._selector.register(ours, selectors.EVENT_READ, (worker, "speaks"))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (worker, "ended"))

    def _begin(self, name: str, args: tuple[Any, ...]) -> BaseProcess:
        """A new process; a fork server that died a moment ago may have to be missed first."""
        for attempt in range(ATTEMPTS):
            process: BaseProcess = self._context.Process(target=run_worker, args=args, name=name, daemon=True)
            try:
                # The variables are for the fork server, should this call be the one that starts it.
                with environment({WARM_UP_VARIABLE: self.rehearsal, **ONE_THREAD}), main_without_file_hidden():
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
                    self._replace(worker, None)
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
            self._replace(worker, None)
            return
        if isinstance(message, Ready):
            worker.ready = True
        elif isinstance(message, WorkerFailed):
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
                silent_s = min(self.heartbeats.silence_s(worker.index), listened_s)
                if silent_s > self.limits.at(self.heartbeats.last(worker.index)[0]):
                    self._replace(worker, f"was silent for {silent_s:.0f} s and was ended")

    def _replace(self, worker: Worker, reason: str | None) -> None:
        """A worker is gone, or must go: put another in its place."""
        phase, turn = self.heartbeats.last(worker.index)
        last = WorkerExit(self._end(worker, reason), phase, turn)
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
        if code == UNGUARDED and not worker.ready:
            raise missing_guard() from None
        return reason or (
            f"was killed by {signal_name(-code)}" if code and code < 0 else f"ended with exit code {code}"
        )

    def send(self, worker: Worker, message: Any) -> None:
        """Tell a worker something; if it is gone we hear of that in the next step."""
        assert worker.connection is not None
        with suppress(OSError):
            worker.connection.send(message)

    def close(self) -> None:
        """End everybody: told first, killed if they do not listen. May be called twice."""
        if self._closed or self._heartbeats is None:
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
        self.heartbeats.memory.close()
