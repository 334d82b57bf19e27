"""One trial of a search: a run in its own directory, which ends early once it no longer improves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remuda.core.errors import CheckpointError, RunError
from remuda.runs.callbacks.base import Row
from remuda.runs.callbacks.tables import as_written
from remuda.runs.recorder import standard_error
from remuda.runs.run import Run
from remuda.runs.training import resume, start
from remuda.studies.workflows.options import SearchOptions, TrialResult, WorkflowTrial

TRIALS = "trials"
WINDOW = 10
"""Rounds over which compliance and returns are averaged."""
MIN_GAIN = 0.01
"""The least improvement that counts: of compliance, and as a share of the return."""
NAMES = ("episodes", "env_return", "compliance", "fixes")
ALL_PLAYED = "all its episodes are played"


def trial_folder(out: Path, number: int) -> Path:
    """The run directory of a trial."""
    return out / TRIALS / f"{number:04d}"


def run_trial(
    out: Path,
    trial: WorkflowTrial,
    settings: Mapping[str, Any],
    options: SearchOptions,
    stop: Callable[[], bool] = lambda: False,
    on_round: Callable[[Row], None] = lambda row: None,
) -> TrialResult | None:
    """Train the trial, or continue it if it was interrupted; None if it was stopped before its end."""
    folder = trial_folder(out, trial.number)
    history: list[Row] = []

    def callback(rows: list[Row]) -> bool:
        # Rounded as in the CSV file, from which a resumed trial reads its history: both must decide alike.
        history.append({name: float(as_written(rows[0][name])) for name in NAMES})
        on_round(rows[0])
        return not stop() and end_reason(history, trial, options) is None

    run = _interrupted_run(folder)
    if run is None:
        run = start(_trial_settings(out, trial, settings, options), folder, [callback], quiet=True)
    else:
        history += _recorded_rounds(run, int(run.checkpoint().name))
        if end_reason(history, trial, options) is None and not run.finished:
            run = resume(folder, callbacks=[callback], quiet=True)
    why = end_reason(history, trial, options) or (ALL_PLAYED if run.finished else None)
    return _trial_result(run, trial, options, history, why) if why else None


def _trial_settings(
    out: Path, trial: WorkflowTrial, settings: Mapping[str, Any], options: SearchOptions
) -> dict[str, Any]:
    """The settings of a trial: those of the search, with its own order, seed and first weights."""
    weights = {} if trial.parent is None else {"warm_start": str(trial_folder(out, trial.parent))}
    seed = 1000 * options.seed + trial.number
    return {**settings, "workflow": trial.workflow, "total_episodes": trial.episodes, "seed": seed, **weights}


def _interrupted_run(folder: Path) -> Run | None:
    """The run of a trial that was interrupted; a directory without a checkpoint is deleted."""
    try:
        run = Run(folder)
        run.checkpoint()
    except (RunError, CheckpointError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return run


def _recorded_rounds(run: Run, episodes: int) -> list[Row]:
    """The rounds in a run's metrics up to its checkpoint."""
    table = run.metrics
    rows = [dict(zip(NAMES, values, strict=True)) for values in zip(*(table[name] for name in NAMES), strict=True)]
    return [row for row in rows if row["episodes"] <= episodes]


def end_reason(history: Sequence[Row], trial: WorkflowTrial, options: SearchOptions) -> str | None:
    """Why a trial should end now; None if it should go on.

    It ends after `patience` rounds without improvement: of its compliance while that is below the threshold, of its
    return once it is above.
    """
    if not trial.patient or len(history) < WINDOW + options.patience:
        return None
    compliance, returns = (_moving_average(history, name) for name in ("compliance", "env_return"))
    passes = compliance[-1] >= options.compliance_threshold
    values, least = (returns, MIN_GAIN * abs(returns.max())) if passes else (compliance, MIN_GAIN)
    earlier, lately = values[: -options.patience], values[-options.patience :]
    if lately.max() >= earlier.max() + least:
        return None
    return "its return no longer improves" if passes else "its compliance no longer improves"


def _moving_average(history: Sequence[Row], name: str) -> Any:
    values = np.array([row[name] for row in history])
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid")


def _trial_result(
    run: Run, trial: WorkflowTrial, options: SearchOptions, history: Sequence[Row], why: str
) -> TrialResult:
    last = history[-WINDOW:]
    returns = np.array([row["env_return"] for row in last])
    compliance = float(np.mean([row["compliance"] for row in last]))
    seconds = run.result["seconds"]
    return TrialResult(
        trial=trial,
        episodes=int(history[-1]["episodes"]),
        compliance=compliance,
        fixes=float(np.mean([row["fixes"] for row in last])),
        env_return=float(returns.mean()),
        env_return_se=float(standard_error(returns)) if len(returns) > 1 else 0.0,
        passed=compliance >= options.compliance_threshold,
        why=why,
        collect_s=seconds["collect"]["wall"],
        learn_s=seconds["learn"]["wall"],
        wall_s=run.result["wall_s"],
    )
