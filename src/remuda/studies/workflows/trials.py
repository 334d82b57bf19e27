"""One trial of a search: a run in its own directory, which ends early once it no longer improves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from remuda.runs.callbacks.base import Row
from remuda.runs.callbacks.tables import as_written
from remuda.runs.recorder import standard_error
from remuda.runs.run import Run
from remuda.studies.trials.trial import Trial, TrialOutcome
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


@dataclass
class PatienceRule:
    """Ends a trial once it no longer improves."""

    trial: WorkflowTrial
    options: SearchOptions
    history: list[Row] = field(default_factory=list)

    def begin(self, run: Run, episodes: int) -> str | None:
        """Read the rounds up to the checkpoint."""
        self.history = recorded_rounds(run, episodes)
        return end_reason(self.history, self.trial, self.options)

    def learned(self, rows: Sequence[Row]) -> str | None:
        """Compare the round with those before."""
        # Rounded as in the CSV file, from which a resumed trial reads its history: both must decide alike.
        self.history.append({name: float(as_written(rows[0][name])) for name in NAMES})
        return end_reason(self.history, self.trial, self.options)

    def evaluated(self, rows: Sequence[Row]) -> str | None:
        """Evaluations do not count."""
        return None


def make_trial(out: Path, trial: WorkflowTrial, settings: Mapping[str, Any], options: SearchOptions) -> Trial:
    """The run of a trial."""
    return Trial(
        name=str(trial.number),
        folder=trial_folder(out, trial.number),
        settings=_trial_settings(out, trial, settings, options),
        episodes=trial.episodes,
        rule=PatienceRule(trial, options),
    )


def _trial_settings(
    out: Path, trial: WorkflowTrial, settings: Mapping[str, Any], options: SearchOptions
) -> dict[str, Any]:
    """The settings of a trial: those of the search, with its own order, seed and first weights."""
    weights = {} if trial.parent is None else {"warm_start": str(trial_folder(out, trial.parent))}
    seed = 1000 * options.seed + trial.number
    return {**settings, "workflow": trial.workflow, "total_episodes": trial.episodes, "seed": seed, **weights}


def recorded_rounds(run: Run, episodes: int) -> list[Row]:
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
    values, min_gain = (returns, MIN_GAIN * abs(returns.max())) if passes else (compliance, MIN_GAIN)
    earlier, lately = values[: -options.patience], values[-options.patience :]
    if lately.max() >= earlier.max() + min_gain:
        return None
    return "its return no longer improves" if passes else "its compliance no longer improves"


def _moving_average(history: Sequence[Row], name: str) -> Any:
    values = np.array([row[name] for row in history])
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid")


def trial_result(outcome: TrialOutcome, trial: WorkflowTrial, options: SearchOptions) -> TrialResult:
    """The result of a trial that has come to its end."""
    run = Run(outcome.trial.folder)
    history = recorded_rounds(run, int(run.checkpoint().name))
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
        why=outcome.why or ALL_PLAYED,
        collect_s=seconds["collect"]["wall"],
        learn_s=seconds["learn"]["wall"],
        wall_s=run.result["wall_s"],
    )
