"""Runs trials side by side, each in a process of its own; a pool of one runs them in this process.

The processes die with this one, in whatever way it ends. One that dies alone is replaced, and its trial goes on from
its last checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType, TracebackType
from typing import Any, Self

from remuda.core import session
from remuda.studies.trials.trial import Tell, Trial, TrialOutcome, TrialProgress, run_trial
from remuda.transport.heartbeat import Limits
from remuda.transport.processes import (
    STOP_SIGNALS,
    UNGUARDED,
    answer_stop_signals,
    await_end,
    die_with_parent,
    missing_guard,
    process_context,
    signal_name,
    start_process,
)

MAX_DEATHS = 3
"""How often the process of one trial may die before the trial counts as failed."""
POLL_S = 0.5
"""Seconds between two looks at whether somebody asked to stop."""

READY = "ready"
"""First message of a process: signals reach it from now on. It is forked from a server that ignores them."""

NextTrial = Callable[[int], Trial | None]
"""Returns the next trial to start while so many run; None: none now, or, if none runs, none any more."""
Widen = Callable[[Trial, int], Trial | None]
"""Returns a trial under way with more threads, while so many run and cores are idle; None: it is to go on as it is."""


@dataclass
class _TrialProcess:
    """A process that runs one trial after the other."""

    process: Any
    connection: Connection
    trial: Trial | None = None
    wider: Trial | None = None  # the same trial with more threads; it was asked to save and to stop for it


class TrialPool:
    """Runs trials. After a signal the trials under way save and stop, and `run` ends; `stopped_by` is the signal."""

    def __init__(self, size: int, tell: Tell = lambda progress: None, objects: Iterable[str] = ()) -> None:
        """`objects` are names of games and networks of this Python session, which the processes get."""
        self.stopped_by: int | None = None
        self._size, self._tell = size, tell
        self._objects = [*objects]
        self._processes: list[_TrialProcess] = []
        self._deaths: Counter[str] = Counter()
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # A signal that is ignored stays ignored: nohup ignores SIGHUP for us. Only the main thread may set handlers.
        with suppress(ValueError):
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers_before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for own in self._processes:
            own.connection.close()
            if own.trial is not None:
                own.process.kill()
        for own in self._processes:
            await_end(own.process)
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets the trials save and stop; the second exits at once, and the processes die with us."""
        if self.stopped_by is not None:
            os._exit(128 + number)
        self.stopped_by = number
        for own in self._processes:
            if own.trial is not None:
                own.process.terminate()

    def run(self, next_trial: NextTrial, widen: Widen = lambda trial, busy: None) -> Iterator[TrialOutcome]:
        """Run trials until there are no more; yields how each ended, in the order in which they end."""
        if self._size == 1:
            yield from self._run_here(next_trial)
            return
        while True:
            self._start_trials(next_trial)
            busy = [own for own in self._processes if own.trial is not None]
            if not busy:
                return
            if len(busy) < self._size:
                self._widen_trials(busy, widen)
            for ready in wait([own.connection for own in busy], POLL_S):
                own = next(own for own in busy if own.connection is ready)
                outcome = self._receive(own)
                if outcome is not None:
                    yield outcome

    def _run_here(self, next_trial: NextTrial) -> Iterator[TrialOutcome]:
        while self.stopped_by is None and (trial := next_trial(0)) is not None:
            outcome = run_trial(trial, self._tell)
            if outcome.status == "stopped" and self.stopped_by is None:
                self.stopped_by = signal.SIGINT  # training took the signal
            yield outcome

    def _start_trials(self, next_trial: NextTrial) -> None:
        """Give every idle process a trial."""
        while self.stopped_by is None:
            busy = sum(own.trial is not None for own in self._processes)
            if busy == self._size or (trial := next_trial(busy)) is None:
                return
            own = next((own for own in self._processes if own.trial is None), None) or self._start_process()
            _send(own, trial)

    def _widen_trials(self, busy: Sequence[_TrialProcess], widen: Widen) -> None:
        """Ask trials that can use idle cores to save and to stop; they go on with more threads."""
        for own in busy:
            if self.stopped_by is None and own.trial is not None and own.wider is None:
                own.wider = widen(own.trial, len(busy))
                if own.wider is not None:
                    own.process.terminate()

    def _start_process(self) -> _TrialProcess:
        context = process_context()
        here, there = context.Pipe()
        args = (there, session.pack(self._objects))
        process = start_process(lambda: context.Process(target=_serve, args=args), "", Limits().start)
        there.close()
        own = _TrialProcess(process, here)
        self._processes.append(own)
        return own

    def _receive(self, own: _TrialProcess) -> TrialOutcome | None:
        """The outcome of a trial; None after a message about its progress, and while a dead process is replaced."""
        try:
            message = own.connection.recv()
        except (EOFError, OSError):
            return self._replace(own)
        if message == READY:
            if self.stopped_by is not None or own.wider is not None:
                own.process.terminate()  # the first signal came while it was ignored
            return None
        if isinstance(message, TrialProgress):
            self._tell(message)
            return None
        assert isinstance(message, TrialOutcome)
        wider, own.trial, own.wider = own.wider, None, None
        if wider is not None and message.status == "stopped" and self.stopped_by is None:
            _send(own, wider)
            return None
        return message

    def _replace(self, own: _TrialProcess) -> TrialOutcome | None:
        """Start a dead process's trial once more in another one, unless that happened too often."""
        trial, widened = own.wider or own.trial, own.wider is not None
        assert trial is not None
        await_end(own.process)
        code = own.process.exitcode
        self._processes.remove(own)
        own.connection.close()
        if code == UNGUARDED:
            raise missing_guard()
        if self.stopped_by is not None:
            return TrialOutcome(trial, "stopped")
        self._deaths[trial.name] += not widened  # it died of our signal, which came before training could take it
        if self._deaths[trial.name] >= MAX_DEATHS:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            return TrialOutcome(trial, "failed", f"its process {how}, {MAX_DEATHS} times")
        _send(self._start_process(), trial)
        return None


def _send(own: _TrialProcess, trial: Trial) -> None:
    """Give a process a trial."""
    own.trial = trial
    with suppress(OSError):  # a dead process is found by `wait`
        own.connection.send(trial)


def _serve(connection: Connection, objects: dict[str, bytes]) -> None:
    """The program of a process: run the trials that come. Ctrl-C in a terminal reaches only the first process."""
    os.setpgrp()
    die_with_parent()
    answer_stop_signals(signal.SIG_DFL)  # the fork server ignores them; training must not
    with suppress(OSError):
        connection.send(READY)
    session.unpack(objects)
    while True:
        try:
            trial = connection.recv()
        except EOFError:
            return
        outcome = run_trial(trial, connection.send)
        with suppress(OSError):
            connection.send(outcome)
