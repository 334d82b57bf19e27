"""Measures one plan on several engines, recommends one, and predicts the rates on other machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remuda.core.code_names import refuse_while_importing
from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec
from remuda.core.machine import CpuClock, machine
from remuda.core.machine import cores as cores_here
from remuda.core.plan import Plan
from remuda.core.session import is_session_name
from remuda.engines.table import ENGINES
from remuda.games.registry import AnyGame
from remuda.learners.herd import assign
from remuda.runs.settings import make_plan, spec_of
from remuda.studies.compare.measure import VariantMeasurements, measure, variants
from remuda.studies.compare.page import Comparison, Prediction
from remuda.studies.compare.recommend import recommend
from remuda.studies.compare.simulate import ideal_rate, predict
from remuda.studies.compare.turn_times import TurnTimes, measure_turns

MIN_WORLDS = 16


def compare(
    game: AnyGame,
    engines: str = "all",
    n_workers: Sequence[int] | None = None,
    seconds: float = 20.0,
    repeats: int = 3,
    *,
    ideal: bool = False,
    cores: Sequence[int] = (),
    command: str = "",
    on_message: Callable[[str], None] = lambda text: None,
    trust: bool = False,
    **settings: Any,
) -> Comparison:
    """Measure one plan on several engines, each trial in a process of its own.

    `engines` are names with commas between, or "all"; `ray+learners` is `ray` with learner actors. `n_workers` are the
    numbers of workers to try, by default as many as there are cores. `ideal` adds what a machine that never waits would
    do, and `cores` predicts other machines. The other settings are those of the plan; unless they give `worlds`, there
    is at least one per worker. `trust` follows names of code in runs of frozen players that somebody else made.
    """
    refuse_while_importing()
    counts = [cores_here()] if n_workers is None else list(n_workers)
    wanted = variants(engines, counts)
    plan = make_plan({"worlds": max(MIN_WORLDS, *counts), **settings, "game": game})
    for name in filter(is_session_name, plan.names()):
        raise ConfigError(
            f"{name} was defined in this session, where no trial finds it: put it into a file and import it"
        )
    spec = spec_of(plan)
    if engines == "all" and sum(part.agents for part in assign(plan, spec) if part.learns) < 2:
        wanted = [one for one in wanted if not one.learner_actors]  # one agent has one learner
    clock = CpuClock.now()
    measurements = measure(plan, wanted, seconds, repeats, on_message, trust)
    disturbance = CpuClock.now().disturbance_since(clock)
    turns = measure_turns(plan) if ideal or cores else None
    measured = [one for one in measurements if one.trials]
    return Comparison(
        title=f"{plan.game}, {spec.agents} {'agent' if spec.agents == 1 else 'agents'}, {plan.worlds} worlds",
        machine=machine(),
        command=command,
        disturbance=disturbance,
        measurements=measurements,
        recommendations=recommend(measurements),
        ideal=ideal_rate(plan, turns, measurements, cores_here()) if ideal and turns and measured else None,
        cores_here=cores_here(),
        deterministic=plan.deterministic,
        predictions=_predictions(plan, spec, turns, measured, cores) if turns and cores else (),
        predictions_here=_predictions_here(plan, spec, turns, measured) if turns and cores else (),
    )


def _predictions_here(
    plan: Plan, spec: GameSpec, turns: TurnTimes, measured: Sequence[VariantMeasurements]
) -> list[Prediction]:
    """Predictions for this machine of every variant that was measured, to show how far off predictions are."""
    here = cores_here()
    return [
        Prediction(
            one.variant.kind, one.variant.workers, here, predict(plan, spec, turns, one, one.variant.workers, here)
        )
        for one in measured
    ]


def _predictions(
    plan: Plan, spec: GameSpec, turns: TurnTimes, measured: Sequence[VariantMeasurements], cores: Sequence[int]
) -> list[Prediction]:
    """Every engine with every number of cores, each with the number of workers that is best there."""
    result = []
    for kind in dict.fromkeys(one.variant.kind for one in measured):
        of_engine = [one for one in measured if one.variant.kind == kind]
        engine = of_engine[0].variant.engine
        for count in sorted({cores_here(), *cores}):
            rates = []
            for workers in _worker_counts(engine, [one.variant.workers for one in of_engine], count):
                nearest = min(of_engine, key=lambda one: abs(one.variant.workers - workers))
                rates.append((predict(plan, spec, turns, nearest, workers, count), workers))
            rate, workers = max(rates)
            result.append(Prediction(kind, workers, count, rate))
    return result


def _worker_counts(engine: str, measured: Sequence[int], cores: int) -> list[int]:
    """The numbers of workers to simulate on so many cores."""
    if engine == "sequential":
        return [1]
    if not ENGINES[engine].has_workers:
        return [cores]
    return sorted({*measured, cores, max(1, cores // 4)})
