"""Runs the trials of a search, in this process or in several at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from remuda.core.errors import Stopped, WorkerError
from remuda.runs.callbacks.base import Row
from remuda.studies.workflows.options import SearchOptions, TrialResult, WorkflowTrial
from remuda.studies.workflows.trials import run_trial
from remuda.transport.processes import STOP_SIGNALS, die_with_parent

RoundCallback = Callable[[WorkflowTrial, Row], None]


class TrialPool:
    """Runs trials for one search. After a signal the trials save and stop, and `run` raises Stopped."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        options: SearchOptions,
        on_round: RoundCallback = lambda trial, row: None,
    ) -> None:
        self._job = (folder, dict(settings), options)
        self._on_round = on_round
        self._size = options.side_by_side
        self._pool: ProcessPoolExecutor | None = None
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if self._size > 1:
            context = multiprocessing.get_context("spawn")
            self._stop: Event = context.Event()
            self._pool = ProcessPoolExecutor(self._size, context, _init_worker, (self._stop,))
            # A signal that is ignored stays ignored: nohup ignores SIGHUP for us.
            handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._handlers_before = {number: signal.signal(number, self._on_signal) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._stop.set()
            self._pool.shutdown(cancel_futures=True)
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets the trials save and stop; the second exits at once, and the workers die with us."""
        if self._stop.is_set():
            os._exit(128 + number)
        self._stop.set()

    def run(self, trials: Sequence[WorkflowTrial]) -> list[TrialResult]:
        """Run these trials and return their results."""
        if self._pool is None:
            results = [self._run_here(trial) for trial in trials]
        else:
            futures: list[Future[TrialResult | None]] = [
                self._pool.submit(_run_in_worker, trial, *self._job) for trial in trials
            ]
            try:
                results = [future.result() for future in futures]
            except BrokenProcessPool:
                raise WorkerError("the process of a trial died; nothing else is lost: go on with resume") from None
        finished = [result for result in results if result is not None]
        if len(finished) < len(trials):
            raise Stopped("the search was asked to end")
        return finished

    def _run_here(self, trial: WorkflowTrial) -> TrialResult | None:
        folder, settings, options = self._job
        return run_trial(folder, trial, settings, options, on_round=lambda row: self._on_round(trial, row))


_stop: Event | None = None  # in a worker process: set when the search is asked to end


def _init_worker(stop: Event) -> None:
    """Prepare a worker process: it has its own process group, so that Ctrl-C in a terminal reaches only the search."""
    global _stop
    _stop = stop
    os.setpgrp()
    die_with_parent()


def _run_in_worker(
    trial: WorkflowTrial, folder: Path, settings: dict[str, Any], options: SearchOptions
) -> TrialResult | None:
    assert _stop is not None
    return run_trial(folder, trial, settings, options, stop=_stop.is_set)
