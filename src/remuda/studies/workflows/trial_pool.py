"""Who runs the trials: this process, or several others side by side."""

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
from remuda.studies.workflows.trials import attempt
from remuda.transport.processes import STOP_SIGNALS, die_with_parent

Watch = Callable[[WorkflowTrial, Row], None]


class TrialPool:
    """Runs trials for one search. Stopped by a signal, they save, and `attempt` raises Stopped."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], options: SearchOptions, watch: Watch = lambda trial, row: None
    ) -> None:
        self._job = (folder, dict(settings), options)
        self._watch = watch
        self._size = options.side_by_side
        self._pool: ProcessPoolExecutor | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if self._size > 1:
            context = multiprocessing.get_context("spawn")
            self._asked: Event = context.Event()
            self._pool = ProcessPoolExecutor(self._size, context, _settle_in, (self._asked,))
            ours = [
                number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
            ]  # nohup's is not
            self._before = {number: signal.signal(number, self._ask) for number in ours}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._asked.set()
            self._pool.shutdown(cancel_futures=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """First signal: the trials stop and save. Second: leave at once, and they end with us."""
        if self._asked.is_set():
            os._exit(128 + number)
        self._asked.set()

    def attempt(self, trials: Sequence[WorkflowTrial]) -> list[TrialResult]:
        """Run these; what has come of all of them."""
        if self._pool is None:
            outcomes = [self._alone(trial) for trial in trials]
        else:
            futures: list[Future[TrialResult | None]] = [
                self._pool.submit(_attempt, trial, *self._job) for trial in trials
            ]
            try:
                outcomes = [future.result() for future in futures]
            except BrokenProcessPool:
                raise WorkerError("the process of a trial died; nothing else is lost: go on with resume") from None
        finished = [own for own in outcomes if own is not None]
        if len(finished) < len(trials):
            raise Stopped("the search was asked to end")
        return finished

    def _alone(self, trial: WorkflowTrial) -> TrialResult | None:
        folder, settings, options = self._job
        return attempt(folder, trial, settings, options, watch=lambda row: self._watch(trial, row))


_asked: Event | None = None


def _settle_in(asked: Event) -> None:
    """In a trial's process: a terminal tells only the search, and whoever kills that kills us."""
    global _asked
    _asked = asked
    os.setpgrp()
    die_with_parent()


def _attempt(
    trial: WorkflowTrial, folder: Path, settings: dict[str, Any], options: SearchOptions
) -> TrialResult | None:
    assert _asked is not None
    return attempt(folder, trial, settings, options, stop=_asked.is_set)
