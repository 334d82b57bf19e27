"""A sweep: trials with values that Optuna proposes, side by side, reproducible and resumed after any interruption."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from remuda.core.code_names import refuse_while_importing
from remuda.core.errors import ConfigError, RunError
from remuda.core.machine import cores
from remuda.core.options import Options
from remuda.core.paths import is_file
from remuda.core.plan import Plan
from remuda.runs.callbacks.base import Row
from remuda.runs.directory import to_json
from remuda.runs.display import text_table
from remuda.runs.folder import free_folder, locked
from remuda.runs.run import Run
from remuda.runs.settings import make_plan
from remuda.runs.storage import storage_errors
from remuda.runs.trust import check_trust, sign, sign_runs
from remuda.studies.metric import check_metric
from remuda.studies.sweeps.options import SweepOptions, SweepTrial
from remuda.studies.sweeps.progress import SweepProgress
from remuda.studies.sweeps.proposer import (
    PruningRule,
    SweepSpace,
    importances,
    known_before,
    propose,
    require_optuna,
)
from remuda.studies.sweeps.space import distributions, is_range
from remuda.studies.trials.opening import open_places
from remuda.studies.trials.places import Places, on_ray, threads_on_cluster
from remuda.studies.trials.pool import TrialPool
from remuda.studies.trials.trial import Trial, TrialOutcome
from remuda.transport.processes import refuse_inside_workers

STATE, TRIALS = "sweep.json", "trials"
EVALUATIONS = 9
"""Evaluations of a trial, unless the settings say otherwise: two rungs of halving by three."""
SHOWN_TRIALS = 10


class SweepState(Options):
    """Everything a sweep depends on, and its trials so far."""

    format: int = Field(1, ge=1, le=1)
    options: SweepOptions
    settings: dict[str, Any]  # of the trials, without those that are searched
    ranges: dict[str, str]
    trials: list[SweepTrial] = Field([])
    wall_s: float = Field(0.0, ge=0)


def sweep(settings: Mapping[str, Any], out: Path | str, quiet: bool = False) -> Sweep:
    """Search the settings that are ranges, e.g. `lr="log(1e-4, 1e-2)"`; the others are those of every trial."""
    refuse_while_importing()
    refuse_inside_workers()
    folder = free_folder(Path(out))
    state = _first_state(settings)
    with locked(folder):
        sign(folder, state.settings)
        _write(folder, state)
        return _run(folder, state, quiet)


def resume_sweep(folder: Path, quiet: bool = False, trust: bool = False, on: str | None = None) -> Sweep:
    """Continue a sweep as if it had never stopped; `trust` follows names of code in one that somebody else began."""
    if not is_sweep(folder):
        raise RunError(f"{folder} is not a sweep: it has no {STATE}")
    try:
        state = SweepState(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError, ValidationError):
        raise RunError(f"{folder / STATE} is damaged: begin the sweep anew") from None
    if trust:
        sign_runs(folder)
    check_trust(folder, state.settings, trust)
    if on is not None:
        on_ray(on)
        state = state.model_copy(update={"options": state.options.model_copy(update={"on": on})})
    with locked(folder):
        return _run(folder, state, quiet)


def is_sweep(folder: Path) -> bool:
    """Whether the directory holds a sweep."""
    return is_file(folder / STATE)


def _first_state(settings: Mapping[str, Any]) -> SweepState:
    """Split the settings, and refuse those with which no trial could run before anything is written."""
    require_optuna()
    for_sweep = {name: value for name, value in settings.items() if name in SweepOptions.model_fields}
    options = SweepOptions.read(for_sweep, "the sweep")
    ranges = {name: str(value) for name, value in settings.items() if is_range(value)}
    if not ranges:
        raise ConfigError("nothing is searched: give at least one range, e.g. 'lr=log(1e-4, 1e-2)'")
    fixed = {name: value for name, value in settings.items() if name not in for_sweep and name not in ranges}
    lows = {name: _first_value(own) for name, own in distributions(ranges).items()}
    plan = make_plan({**fixed, **lows})
    check_metric(options.metric, plan)
    fixed = {"pictures": False, "evaluate_every": max(1, plan.total_episodes // EVALUATIONS), **fixed}
    return SweepState(options=options, settings=fixed, ranges=ranges)


def _first_value(distribution: Any) -> Any:
    return distribution.choices[0] if hasattr(distribution, "choices") else distribution.low


@dataclass(frozen=True, repr=False)
class Sweep:
    """A sweep, finished or not."""

    path: Path
    state: SweepState
    stopped_by: int | None = None

    @property
    def ranking(self) -> list[SweepTrial]:
        """Finished trials, the best first."""
        sign = -1 if self.state.options.higher_is_better else 1
        ended = [trial for trial in self.state.trials if trial.status == "finished" and trial.score is not None]
        return sorted(ended, key=lambda trial: (sign * (trial.score or 0.0), trial.number))

    @property
    def best(self) -> SweepTrial | None:
        """The finished trial with the best score."""
        return next(iter(self.ranking), None)

    def importances(self) -> dict[str, float]:
        """The share of the differences between trials that each searched setting explains."""
        return importances(self.state.options, _space(self.state), self.state.trials)

    def result(self) -> Row:
        """Everything the sweep found, for programs."""
        trials = self.state.trials
        return {
            "sweep": str(self.path),
            **self.state.options.model_dump(),
            "ranges": self.state.ranges,
            "episodes": sum(trial.episodes for trial in trials),
            "finished": sum(trial.status == "finished" for trial in trials),
            "pruned": sum(trial.status == "pruned" for trial in trials),
            "failed": sum(trial.status == "failed" for trial in trials),
            "best": None if self.best is None else self.best.model_dump(),
            "importances": self.importances(),
            "trials": [trial.model_dump() for trial in trials],
        }

    def __repr__(self) -> str:
        found = self.result()
        counts = ", ".join(f"{found[name]} {name}" for name in ("finished", "pruned", "failed"))
        lines = [f"sweep {self.path}: {counts}; {found['episodes']:,} episodes"]
        rows = [
            [str(own.number), f"{own.score:.4g}", *(_short(own.values[name]) for name in self.state.ranges)]
            for own in self.ranking[:SHOWN_TRIALS]
        ]
        lines += [text_table([["trial", self.state.options.metric, *self.state.ranges], *rows])] if rows else []
        if shares := found["importances"]:
            lines.append(f"importance: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}")
        if self.best is not None:
            lines.append("one seed each, so the best was lucky, too: confirm it with `remuda study` on fresh seeds")
        return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _space(state: SweepState) -> SweepSpace:
    plan = _plan(state)
    return SweepSpace(state.ranges, -(-plan.total_episodes // plan.evaluation_interval))


def _plan(state: SweepState) -> Plan:
    lows = {name: _first_value(own) for name, own in distributions(state.ranges).items()}
    return make_plan({**state.settings, **lows})


def trial_folder(folder: Path, number: int) -> Path:
    """The run directory of a trial."""
    return folder / TRIALS / f"{number:04d}"


class SweepSchedule:
    """Proposes trials as soon as those that they know have ended."""

    def __init__(self, folder: Path, state: SweepState) -> None:
        self.folder, self.state = folder, state
        self._space, self._plan = _space(state), _plan(state)
        self._began = time.monotonic()
        self._started = {trial.number for trial in state.trials if trial.status != "running"}

    def next_trial(self, busy: int) -> Trial | None:
        """The next trial; None while one that it has to know is under way, and when the sweep is over."""
        trials = self.state.trials
        number = next((n for n in range(len(trials)) if n not in self._started), len(trials))
        options = self.state.options
        must = trials[: max(0, number - options.batch + 1)]
        if any(trial.status == "running" for trial in must):
            return None
        if number == len(trials):
            if self._is_over(number):
                return None
            known = known_before(number, options, trials)
            trials.append(SweepTrial(number=number, values=propose(number, options, self._space, known)))
        self._started.add(number)
        return self._trial(trials[number])

    def _is_over(self, number: int) -> bool:
        """Whether the budget does not allow another trial; counted with what trial `number` may know."""
        options, each = self.state.options, self._plan.total_episodes
        if number >= options.max_trials:
            return True
        if options.minutes is not None and self.state.wall_s + time.monotonic() - self._began > 60 * options.minutes:
            return True
        known = known_before(number, options, self.state.trials)
        used = sum(each if trial.status == "running" else trial.episodes for trial in known)
        return options.budget_episodes is not None and used + each > options.budget_episodes

    def _trial(self, own: SweepTrial) -> Trial:
        options = self.state.options
        known = known_before(own.number, options, self.state.trials)
        share = max(1, cores() // side_by_side(self.state))
        return Trial(
            name=str(own.number),
            folder=trial_folder(self.folder, own.number),
            settings={**self.state.settings, **own.values, "seed": 1000 * options.seed + own.number},
            episodes=self._plan.total_episodes,
            rule=PruningRule(own.number, own.values, options, self._space, known),
            n_workers=threads_on_cluster(self._plan) if on_ray(options.on) else self._plan.n_workers or share,
        )

    def record(self, outcome: TrialOutcome) -> SweepTrial | None:
        """Keep the result of a trial that has ended."""
        if outcome.status == "stopped":
            return None
        number = int(outcome.trial.name)
        own = _ended(self.state.trials[number], outcome, self.state.options)
        self.state.trials[number] = own
        return own


def side_by_side(state: SweepState) -> int:
    """Trials at once: no more than the cores of this machine, and than may run without knowing each other."""
    options = state.options
    return min(options.side_by_side or (options.batch if on_ray(options.on) else cores()), options.batch)


def _ended(trial: SweepTrial, outcome: TrialOutcome, options: SweepOptions) -> SweepTrial:
    if outcome.status == "failed":
        return trial.model_copy(update={"status": "failed", "why": outcome.why})
    run = Run(outcome.trial.folder)
    table = run.evaluations
    rounds = np.unique(table["round"])
    scores = [float(np.nanmean(table[options.metric][table["round"] == number])) for number in rounds]
    rule = outcome.trial.rule
    assert isinstance(rule, PruningRule)
    return trial.model_copy(
        update={
            "status": "finished" if outcome.status == "finished" else "pruned", "score": scores[-1],
            "evaluations": scores, "rungs": rule.rungs, "episodes": int(run.result["episodes"]), "why": outcome.why,
        }
    )  # fmt: skip


def _run(folder: Path, state: SweepState, quiet: bool) -> Sweep:
    schedule = SweepSchedule(folder, state)
    wall_before, began = state.wall_s, time.monotonic()
    progress = SweepProgress(state.options, _plan(state).total_episodes, state.trials, quiet)
    with progress, TrialPool(_places(folder, state, progress), progress.tell) as pool:
        for outcome in pool.run(schedule.next_trial):
            own = schedule.record(outcome)
            state = state.model_copy(update={"wall_s": wall_before + time.monotonic() - began})
            _write(folder, state)
            if own is not None:
                progress.ended(own)
    found = Sweep(folder, state, pool.stopped_by)
    if pool.stopped_by is not None:
        progress.say(f"stopped; continue with: remuda resume {folder}")
    return found


def _places(folder: Path, state: SweepState, progress: SweepProgress) -> Places | None:
    return open_places(state.options.on, side_by_side(state), folder, [_plan(state)], say=progress.say)


def _write(folder: Path, state: SweepState) -> None:
    """Replace the state file atomically."""
    with storage_errors(folder):
        draft = folder / f".{STATE}.draft"
        with draft.open("w", encoding="utf-8") as file:
            file.write(to_json(state.model_dump(mode="json"), indent=1))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / STATE)
