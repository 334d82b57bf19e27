"""Proposes the values of the next trial, and decides which trials end early: Optuna, as pure functions.

The result must not depend on which trial happens to end first. So trial n knows the results of trials 0 … n-batch, all
of which have ended before it is proposed, and takes those in between as running, whether they are or not. Its sampler
is seeded with (seed, n). Optuna's study is made anew for each trial, in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.rng import Stream
from remuda.runs.callbacks.base import Row
from remuda.runs.callbacks.tables import as_written
from remuda.runs.run import Run
from remuda.studies.sweeps.options import SweepOptions, SweepTrial
from remuda.studies.sweeps.space import distributions

REDUCTION = 3
"""Of the trials that reach a rung, one in so many goes on."""


def require_optuna() -> Any:
    """Optuna, quiet."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("a sweep needs optuna: pip install 'remuda-rl[sweeps]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class SweepSpace:
    """What is searched, and how many evaluations a trial has."""

    ranges: dict[str, str]
    evaluations: int


def known_before(number: int, options: SweepOptions, trials: Sequence[SweepTrial]) -> list[SweepTrial]:
    """The trials before this one as it may know them: the last ones without their results."""
    return [
        trial if trial.number <= number - options.batch else SweepTrial(number=trial.number, values=trial.values)
        for trial in trials[:number]
    ]


def propose(number: int, options: SweepOptions, space: SweepSpace, known: Sequence[SweepTrial]) -> dict[str, Any]:
    """The values of trial `number`."""
    study = _study(number, options, space, known)
    return dict(study.ask(distributions(space.ranges)).params)


def importances(options: SweepOptions, space: SweepSpace, trials: Sequence[SweepTrial]) -> dict[str, float]:
    """The share of the differences between finished trials that each setting explains (fANOVA); empty if unknown."""
    optuna = require_optuna()
    ended = [trial for trial in trials if trial.status == "finished"]
    if len(ended) < 4 or len({trial.score for trial in ended}) < 2:
        return {}
    study = _study(0, options, space, [SweepTrial(**{**t.model_dump(), "number": i}) for i, t in enumerate(ended)])
    try:
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=options.seed)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (ImportError, RuntimeError, ValueError):  # it wants scikit-learn
        return {}
    return {name: float(share) for name, share in found.items()}


def _study(number: int, options: SweepOptions, space: SweepSpace, known: Sequence[SweepTrial]) -> Any:
    optuna = require_optuna()
    seed = int(rng.key(options.seed, Stream.STUDY, 2, number)) % 2**31
    samplers = {
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=len(space.ranges) > 1),
    }
    pruners = {
        "none": optuna.pruners.NopPruner,
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(reduction_factor=REDUCTION),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=space.evaluations, reduction_factor=REDUCTION),
    }
    study = optuna.create_study(
        study_name="sweep",  # Hyperband hashes it into the choice of a bracket
        direction="maximize" if options.higher_is_better else "minimize",
        sampler=samplers[options.method](),
        pruner=pruners[options.prune](),
    )
    study.add_trials([_frozen(optuna, trial, space) for trial in known])
    return study


def _frozen(optuna: Any, trial: SweepTrial, space: SweepSpace) -> Any:
    states = optuna.trial.TrialState
    named = {
        "running": states.RUNNING, "finished": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL,
    }  # fmt: skip
    done = trial.status in ("finished", "pruned")
    return optuna.trial.create_trial(
        state=named[trial.status],
        params=trial.values,
        distributions=distributions(space.ranges),
        value=trial.score if done else None,
        intermediate_values=dict(enumerate(trial.evaluations, 1)),
        system_attrs=trial.rungs,
    )


@dataclass
class PruningRule:
    """Ends a trial that does worse than those before it at the same evaluation."""

    number: int
    values: dict[str, Any]
    options: SweepOptions
    space: SweepSpace
    known: list[SweepTrial]
    scores: list[float] = field(default_factory=list)
    rounds: set[int] = field(default_factory=set)  # of the evaluations that were reported
    rungs: dict[str, float] = field(default_factory=dict)

    def begin(self, run: Run, episodes: int) -> str | None:
        """Report the evaluations up to the checkpoint once more."""
        table = run.evaluations
        rounds = np.unique(table["round"][table["episodes"] <= episodes])
        for number in rounds:
            score = float(np.nanmean(table[self.options.metric][table["round"] == number]))
            if why := self._report(int(number), score):
                return why
        return None

    def learned(self, rows: Sequence[Row]) -> str | None:
        """Only evaluations count."""
        return None

    def evaluated(self, rows: Sequence[Row]) -> str | None:
        """Report the evaluation."""
        # Rounded as in the CSV file, from which a resumed trial reads its evaluations: both must decide alike.
        score = float(np.nanmean([float(as_written(row[self.options.metric])) for row in rows]))
        return self._report(int(rows[0]["round"]), score)

    def _report(self, number: int, score: float) -> str | None:
        """Why the trial should end now; an evaluation that a resumed run makes once more is reported once."""
        if number in self.rounds:
            return None
        self.rounds.add(number)
        self.scores.append(score)
        if len(self.scores) >= self.space.evaluations:
            return None
        study = _study(self.number, self.options, self.space, self.known)
        study.enqueue_trial(self.values)
        trial = study.ask(distributions(self.space.ranges))
        pruned = False
        for step, own in enumerate(self.scores, 1):
            trial.report(own, step)
            pruned = trial.should_prune()
        self.rungs = {
            name: float(value)
            for name, value in study.trials[-1].system_attrs.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        return f"others did better at evaluation {len(self.scores)}" if pruned else None
