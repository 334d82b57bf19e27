"""Worker processes under supervision: started, polled for messages, replaced when they die or hang, and ended.

Every worker has a pipe of its own, with small messages only. In a queue shared by many, a worker that is killed while
it holds the queue's lock, or in the middle of a message, would block or confuse all others. With one pipe each, a death
damages only the dead worker's pipe, which is thrown away with it; and end-of-file on a pipe says whose worker is gone.

Workers are forked from a preloaded fork server where there is one, else spawned. They die with this process.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from remuda.core.errors import WorkerError
from remuda.core.timeline import TimelineFolders, span
from remuda.transport.heartbeat import Heartbeats, Limits, Phase, WorkerExit, WorkerStatus
from remuda.transport.processes import (
    EXIT_LIMIT_S,
    UNGUARDED,
    await_end,
    missing_guard,
    process_context,
    signal_name,
    start_process,
)
from remuda.transport.worker_process import Job, Ready, WorkerFailed, run_worker

POLL_INTERVAL_S = 0.5
"""Longest single wait for messages: between waits, stop requests and heartbeats are checked."""
MAX_FAILED_RESTARTS = 10
"""Workers that may end in a row, without any message from a worker in between, before the run gives up; with more
workers than that, as many as there are."""
MESSAGE, EXIT = "message", "exit"


@dataclass
class Worker:
    """The parent's side of one worker. It keeps its place and its name when its process is replaced."""

    index: int
    name: str
    job: Job
    on_message: Callable[[Worker, Any], None]
    on_worker_lost: Callable[[Worker, WorkerExit], None]  # called when the replacement is started
    process: BaseProcess | None = None
    connection: Connection | None = None
    ready: bool = False
    restarts: int = 0
    peak_bytes: int = 0
    busy_since: float | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody waits for its work; only then a missing heartbeat means that it hangs."""
        return self.busy_since is not None

    @busy.setter
    def busy(self, busy: bool) -> None:
        if busy != self.busy:
            self.busy_since = time.monotonic() if busy else None


@dataclass
class WorkerPool:
    """All workers of a run, whatever they do, and the one place where this process waits for them."""

    stop: Callable[[], None]  # raises Stopped once somebody asked for it
    say: Callable[[str], None] = lambda text: None
    workers: list[Worker] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    warm_up_request: str = ""  # the plan that a fork server warms up for, as JSON
    timeline: TimelineFolders | None = None  # for the workers' spans
    failures: int = 0  # workers that ended since the last message of any worker
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _heartbeats: Heartbeats | None = None
    _context: Any = None
    _closed: bool = False
    _checked_at: float = 0.0  # when heartbeats were last checked
    _polling_since: float = 0.0  # without a pause

    def add_worker(
        self,
        name: str,
        job: Job,
        on_message: Callable[[Worker, Any], None],
        on_worker_lost: Callable[[Worker, WorkerExit], None],
    ) -> Worker:
        """Add a worker; it starts with the others."""
        worker = Worker(len(self.workers), name, job, on_message, on_worker_lost)
        self.workers.append(worker)
        return worker

    @property
    def heartbeats(self) -> Heartbeats:
        """The workers' heartbeats."""
        assert self._heartbeats is not None, "start() first"
        return self._heartbeats

    def start(self) -> None:
        """Start all workers and wait until they are ready; only the first call does anything."""
        if self._heartbeats is not None:
            return
        self._heartbeats = Heartbeats(len(self.workers))
        self._context = process_context()
        for worker in self.workers:
            self._start_worker(worker)
        deadline = time.monotonic() + self.limits.start * (1 + len(self.workers) / 100)
        while not all(worker.ready for worker in self.workers):
            if time.monotonic() > deadline:
                late = next(worker for worker in self.workers if not worker.ready)
                raise WorkerError(
                    f"{late.name} did not start within {self.limits.start:.0f} s: "
                    "raise start_limit_s, or use fewer workers"
                )
            self.step(deadline - time.monotonic())

    def _start_worker(self, worker: Worker) -> None:
        ours, theirs = self._context.Pipe()
        status = WorkerStatus(worker.index, worker.name, self.heartbeats, self.timeline)
        self.heartbeats.beat(worker.index, Phase.STARTING)  # for it: the entry may hold its predecessor's last beat
        process = start_process(
            lambda: self._context.Process(
                target=run_worker, args=(worker.job, theirs, status), name=worker.name, daemon=True
            ),
            self.warm_up_request,
            self.limits.start,
        )
        # The worker has its own copy of its end. With ours closed, its death gives us end-of-file on the pipe.
        theirs.close()
        worker.process, worker.connection, worker.ready, worker.busy = process, ours, False, False
        self._selector.register(ours, selectors.EVENT_READ, (worker, MESSAGE))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (worker, EXIT))

    def step(self, timeout_s: float, stoppable: bool = True) -> bool:
        """Wait until a worker sends a message or ends, and handle that; False if none did in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            if stoppable:
                self.stop()
            with span("wait"):
                events = self._selector.select(max(0.0, min(POLL_INTERVAL_S, deadline - time.monotonic())))
            with_message = {key.data[0].index for key, _ in events if key.data[1] == MESSAGE}
            for key, _ in events:
                worker, event = key.data
                # Handling an earlier event may have replaced this worker. Its new pipe may even have the same number.
                if self._selector.get_map().get(key.fd) is not key:
                    continue
                if event == MESSAGE:
                    self._receive(worker)
                # A dead worker's pipe still holds the messages it sent, one of which may be a finished task. They are
                # read first, one per step; its exit is handled in the step that finds the pipe empty.
                elif worker.index not in with_message:
                    self._replace_worker(worker, None)
            self._check_heartbeats()
            if events:
                return True
            if time.monotonic() >= deadline:
                return False

    def _receive(self, worker: Worker) -> None:
        assert worker.connection is not None
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._replace_worker(worker, None)
            return
        if isinstance(message, Ready):
            worker.ready = True
        elif isinstance(message, WorkerFailed):
            raise message.error(worker.name)
        else:
            self.failures = 0
            worker.on_message(worker, message)

    def _check_heartbeats(self) -> None:
        """Replace busy workers whose last heartbeat is too old."""
        now = time.monotonic()
        if now - self._checked_at < POLL_INTERVAL_S:
            return
        # After a pause of this process (it was learning, or SIGSTOP went to the whole group) heartbeats may be old
        # without anybody hanging: workers waited for us, or were stopped as well. All get the full limit again.
        if now - self._checked_at > 4 * POLL_INTERVAL_S:
            self._polling_since = now
        self._checked_at = now
        for worker in self.workers:
            if worker.busy_since is not None:
                polled_s = now - max(worker.busy_since, self._polling_since)
                age_s = min(self.heartbeats.seconds_since_beat(worker.index), polled_s)
                if age_s > self.limits.for_phase(self.heartbeats.last_beat(worker.index)[0]):
                    self._replace_worker(worker, f"sent no heartbeat for {age_s:.0f} s and was killed")

    def _replace_worker(self, worker: Worker, kill_reason: str | None) -> None:
        """Replace the process of a worker that has ended, or with a reason one that must be killed."""
        phase, turn = self.heartbeats.last_beat(worker.index)
        worker_exit = WorkerExit(self._end_process(worker, kill_reason), phase, turn)
        self.failures += 1
        # The limit grows with the workers: of a thousand, ten may well fail before one finishes anything.
        if self.failures > (limit := max(MAX_FAILED_RESTARTS, len(self.workers))):
            many = f"{limit} workers in a row ended before they finished anything"
            raise WorkerError(f"{worker.name} {worker_exit}; {many}")
        self.say(f"{worker.name} {worker_exit}: replaced")
        worker.restarts += 1
        # Before on_worker_lost: what that sends goes into the new pipe and waits there until the replacement reads it.
        self._start_worker(worker)
        worker.on_worker_lost(worker, worker_exit)

    def _end_process(self, worker: Worker, kill_reason: str | None) -> str:
        """Make sure that a worker's process is gone; returns how it ended."""
        assert worker.process is not None
        assert worker.connection is not None
        self._selector.unregister(worker.connection)
        self._selector.unregister(worker.process.sentinel)
        worker.connection.close()
        if kill_reason is not None:
            worker.process.kill()
        # Waited for, whatever the reason: its slots are reused, and must have no second writer.
        await_end(worker.process)
        code = worker.process.exitcode
        worker.process.close()
        worker.process = worker.connection = None
        if code == UNGUARDED and not worker.ready:
            raise missing_guard() from None
        return kill_reason or (
            f"was killed by {signal_name(-code)}" if code and code < 0 else f"ended with exit code {code}"
        )

    def send(self, worker: Worker, message: Any) -> None:
        """Send a message to a worker; if the worker is gone, a later `step` finds that out and handles it."""
        assert worker.connection is not None
        with suppress(OSError):
            worker.connection.send(message)

    def close(self) -> None:
        """End all workers: closing their pipes asks them to exit, and who does not is killed. May be called twice."""
        if self._closed or self._heartbeats is None:
            return
        self._closed = True
        running = [worker for worker in self.workers if worker.process is not None]
        for worker in running:
            if worker.connection is not None:
                worker.connection.close()
        deadline = time.monotonic() + EXIT_LIMIT_S
        for worker in running:
            assert worker.process is not None
            await_end(worker.process, max(0.0, deadline - time.monotonic()))
            worker.process.close()
        self._selector.close()
        self.heartbeats.memory.close()
