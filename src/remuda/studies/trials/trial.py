"""One trial: a run in its own directory, trained from the start or continued, which a rule may end early."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from remuda.core.errors import RemudaError, RunError, message_of
from remuda.core.failures import format_traceback
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.folder import is_held
from remuda.runs.run import Run
from remuda.runs.training import resume, start

TELL_EVERY_S = 0.2
"""Least seconds between two reports of a trial's progress."""
RELEASE_S = 30.0
"""Longest wait for the process that had the trial before: it may be about to die, or be out of reach elsewhere."""


class TrialRule(Protocol):
    """Decides when a trial should end before its plan does; pickled and sent to the process of the trial.

    Its decisions are a function of the rows it was given, so that a trial which was interrupted decides alike.
    """

    def begin(self, run: Run, episodes: int) -> str | None:
        """Read what an interrupted run recorded up to `episodes`; returns why it should end now, None if not."""

    def learned(self, rows: Sequence[Row]) -> str | None:
        """The rows of a round; returns why the trial should end now, None if it should go on."""

    def evaluated(self, rows: Sequence[Row]) -> str | None:
        """The rows of an evaluation; returns as `learned`."""


@dataclass(frozen=True)
class Trial:
    """A run to train: its directory, its settings, and the rule that may end it."""

    name: str
    folder: Path
    settings: Mapping[str, Any]
    episodes: int
    rule: TrialRule | None = None
    n_workers: int | None = None  # threads or processes of its engine; None: as the settings say


@dataclass(frozen=True)
class TrialProgress:
    """How far a trial is."""

    name: str
    episodes: int
    row: Row = field(default_factory=dict)  # of the first agent, from the last round


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended."""

    trial: Trial
    status: Literal["finished", "ended", "stopped", "failed"]
    why: str = ""  # ended, failed: the reason
    trace: str = ""  # failed: the traceback


Tell = Callable[[TrialProgress], None]


def run_trial(trial: Trial, tell: Tell = lambda progress: None) -> TrialOutcome:
    """Train the trial, or continue it if it was interrupted."""
    watcher = _Watcher(trial, tell)
    _await_release(trial.folder)
    try:
        run = _train(trial, watcher)
    except Exception as error:  # a user's game may raise anything; it ends this trial only
        text = str(error) if isinstance(error, RemudaError) else f"{type(error).__name__}: {message_of(error)}"
        return TrialOutcome(trial, "failed", text, format_traceback(error))
    if watcher.why is not None:
        return TrialOutcome(trial, "ended", watcher.why)
    if run.finished:
        return TrialOutcome(trial, "finished")
    if run.stopped_by is not None:
        return TrialOutcome(trial, "stopped")
    return TrialOutcome(trial, "ended", "a callback asked for it")


def _train(trial: Trial, watcher: _Watcher) -> Run:
    run = interrupted_run(trial.folder)
    if run is None:
        workers = {} if trial.n_workers is None else {"n_workers": trial.n_workers}
        return start({**trial.settings, **workers}, trial.folder, [watcher], quiet=True)
    watcher.begin(run)
    if run.finished or watcher.why is not None:
        return run
    return resume(trial.folder, n_workers=trial.n_workers, callbacks=[watcher], quiet=True)


def _await_release(folder: Path) -> None:
    """Wait while another process trains the run: two must not write into one directory.

    After `kill -9` of a study its processes live on for a moment. Those on another machine that is cut off end when
    nobody has asked about them for a while, see `ray_host.LEASE_S`.
    """
    deadline = time.monotonic() + RELEASE_S
    while is_held(folder) and time.monotonic() < deadline:
        time.sleep(0.1)


def interrupted_run(folder: Path) -> Run | None:
    """The run in a directory; one that died before it wrote its config is removed."""
    try:
        return Run(folder)
    except RunError:
        shutil.rmtree(folder, ignore_errors=True)
        return None


class _Watcher(Callback):
    """Reports progress, and ends the run when the rule says so."""

    is_internal = True

    def __init__(self, trial: Trial, tell: Tell) -> None:
        self.why: str | None = None
        self._trial, self._tell = trial, tell
        self._row: Row = {}
        self._told = 0.0

    def begin(self, run: Run) -> None:
        """Give the rule what an interrupted run recorded."""
        saved = run.checkpoints()
        if self._trial.rule is not None and saved:
            self.why = self._trial.rule.begin(run, int(saved[0].name))

    def collected(self, training: Training, episodes: int, agent_steps: int) -> None:
        """Report, but not too often."""
        if time.monotonic() - self._told > TELL_EVERY_S:
            self._told = time.monotonic()
            self._tell(TrialProgress(self._trial.name, episodes, self._row))

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        """Ask the rule."""
        self._row = dict(rows[0])
        if self._trial.rule is not None:
            self._end(training, self._trial.rule.learned(rows))

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        """Ask the rule."""
        if self._trial.rule is not None:
            self._end(training, self._trial.rule.evaluated(rows))

    def _end(self, training: Training, why: str | None) -> None:
        if why is not None and self.why is None:
            self.why = why
            training.stop(why)
