"""What the runs of a study say: the score of each run, and its learning curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError
from remuda.core.rewards import GAME_RETURN, REWARD
from remuda.runs.callbacks.tables import Table
from remuda.runs.run import Run
from remuda.studies.design import StudyOptions
from remuda.studies.statistics import Estimate, Floats, mean

AXES = ("episodes", "agent_steps", "wall_s")
"""What learning curves are drawn against."""
CURVE_POINTS = 100
"""Points of a curve against agent-steps or time, on which no two runs are evaluated at the same moment."""


@dataclass(frozen=True)
class RunScore:
    """The score of a run: the metric in its last evaluation, mean over the agents.

    A run that was ended before it was evaluated is scored by the last tenth of its training.
    """

    value: float
    error: float  # its standard error over evaluation episodes; nan where that is not known
    curve: dict[str, Floats]  # `value`, and each of AXES, one entry per evaluation or round
    evaluated: bool  # the curve is that of evaluations, not of training


def score_run(run: Run, options: StudyOptions) -> RunScore:
    """Read a run's score and curve."""
    table = run.evaluations
    final = _curve(run, table, options) if len(table["round"]) else None
    if final is None:  # a callback ended the run before its first evaluation
        training = _curve(run, run.metrics, options)
        last = training["value"][-max(1, len(training["value"]) // 10) :]
        return RunScore(float(last.mean()), math.nan, training, evaluated=False)
    evaluated = len(final["value"]) > 1
    curve = final if evaluated else _curve(run, run.metrics, options)
    return RunScore(float(final["value"][-1]), _error(run, options), curve, evaluated)


def _curve(run: Run, table: Table, options: StudyOptions) -> dict[str, Floats]:
    """The metric by round, mean over the agents of the group."""
    if GAME_RETURN not in table:  # without reward transforms the game pays what agents receive
        table = {**table, GAME_RETURN: table["return"]}
    if options.metric not in table or table[options.metric].dtype.kind != "f":
        names = [name for name, column in table.items() if column.dtype.kind == "f"]
        raise ConfigError(f"metric={options.metric} is no column of the evaluations of {run.path}: they have {names}")
    wanted = np.ones(len(table["round"]), np.bool_) if options.group is None else table["group"] == options.group
    if not wanted.any():
        raise ConfigError(f"group={options.group!r}: the game has {sorted(set(map(str, table['group'])))}")
    rounds, first = np.unique(table["round"][wanted], return_index=True)
    values = table[options.metric][wanted]
    by_round = [np.nanmean(values[table["round"][wanted] == number]) for number in rounds]
    curve: dict[str, NDArray[Any]] = {axis: table[axis][wanted][first].astype(np.float64) for axis in AXES}
    return {**curve, "value": np.array(by_round)}


def _error(run: Run, options: StudyOptions) -> float:
    """The standard error of the last evaluation; runs record it for the return of the whole herd."""
    error = (run.result["evaluation"] or {}).get("total_return_se")
    is_return = options.metric == "return" or (options.metric == GAME_RETURN and not run.plan.options.get(REWARD))
    if not is_return or options.group is not None or error is None:
        return math.nan
    return float(error) / run.spec.agents


@dataclass(frozen=True)
class Curve:
    """The mean curve of a variant against one axis, with its intervals."""

    x: Floats
    estimates: list[Estimate]


def mean_curve(scores: list[RunScore], axis: str) -> Curve:
    """The mean of the runs where all of them have come; between two evaluations a run's value is interpolated."""
    first = max(float(own.curve[axis][0]) for own in scores)
    last = min(float(own.curve[axis][-1]) for own in scores)
    points = [own.curve[axis] for own in scores]
    same = all(len(own) == len(points[0]) and (own == points[0]).all() for own in points)
    # Runs that have no moment in common (one compiled first, and all were short) have a single point.
    x = points[0] if same else np.linspace(first, last, CURVE_POINTS) if first < last else np.array([first])
    values = np.array([np.interp(x, own.curve[axis], own.curve["value"]) for own in scores])  # (runs, points)
    return Curve(x, [mean([values[:, i]]) for i in range(len(x))])
