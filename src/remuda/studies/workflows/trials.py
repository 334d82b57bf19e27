"""One trial of a search: a run of its own, which ends early once it gets no better."""

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
LEAST_GAIN = 0.01
"""Of compliance, and as a share of the return, that counts as getting better."""
NAMES = ("episodes", "env_return", "compliance", "fixes")
SPENT = "its episodes are spent"


def folder_of(out: Path, number: int) -> Path:
    """Where a trial's run lies."""
    return out / TRIALS / f"{number:04d}"


def attempt(
    out: Path,
    trial: WorkflowTrial,
    settings: Mapping[str, Any],
    options: SearchOptions,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[Row], None] = lambda row: None,
) -> TrialResult | None:
    """Train it, or go on with it if it was begun; None if somebody stopped it before its end."""
    folder = folder_of(out, trial.number)
    history: list[Row] = []

    def callback(rows: list[Row]) -> bool:
        history.append({name: float(as_written(rows[0][name])) for name in NAMES})  # so that a resumed one agrees
        watch(rows[0])
        return not stop() and verdict(history, trial, options) is None

    run = _begun(folder)
    if run is None:
        run = start(_plan(out, trial, settings, options), folder, [callback], quiet=True)
    else:
        history += _rows(run, int(run.checkpoint().name))
        if verdict(history, trial, options) is None and not run.finished:
            run = resume(folder, callbacks=[callback], quiet=True)
    why = verdict(history, trial, options) or (SPENT if run.finished else None)
    return _outcome(run, trial, options, history, why) if why else None


def _plan(out: Path, trial: WorkflowTrial, settings: Mapping[str, Any], options: SearchOptions) -> dict[str, Any]:
    """The settings of a trial: the same but for the order, the seed and where it begins."""
    begin = {} if trial.parent is None else {"warm_start": str(folder_of(out, trial.parent))}
    seed = 1000 * options.seed + trial.number
    return {**settings, "workflow": trial.workflow, "total_episodes": trial.episodes, "seed": seed, **begin}


def _begun(folder: Path) -> Run | None:
    """The run of a trial that was interrupted; what never came to a checkpoint is cleared away."""
    try:
        run = Run(folder)
        run.checkpoint()
    except (RunError, CheckpointError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return run


def _rows(run: Run, episodes: int) -> list[Row]:
    """What a run wrote down about its rounds, as far as its checkpoint goes."""
    table = run.metrics
    rows = [dict(zip(NAMES, values, strict=True)) for values in zip(*(table[name] for name in NAMES), strict=True)]
    return [row for row in rows if row["episodes"] <= episodes]


def verdict(history: Sequence[Row], trial: WorkflowTrial, options: SearchOptions) -> str | None:
    """Why a trial should end now; None if it should go on.

    Below the threshold it must gain compliance, above it return, and has `patience` rounds for either.
    """
    if not trial.patient or len(history) < WINDOW + options.patience:
        return None
    compliance, returns = (_moving(history, name) for name in ("compliance", "env_return"))
    passes = compliance[-1] >= options.compliance_threshold
    values, least = (returns, LEAST_GAIN * abs(returns.max())) if passes else (compliance, LEAST_GAIN)
    earlier, lately = values[: -options.patience], values[-options.patience :]
    if lately.max() >= earlier.max() + least:
        return None
    return "its return gets no better" if passes else "its compliance gets no better"


def _moving(history: Sequence[Row], name: str) -> Any:
    values = np.array([row[name] for row in history])
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid")


def _outcome(run: Run, trial: WorkflowTrial, options: SearchOptions, history: Sequence[Row], why: str) -> TrialResult:
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
