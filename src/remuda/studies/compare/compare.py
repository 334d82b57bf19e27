"""Which engine should I use here? Measured, explained, and predicted for other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remuda.core.game import GameSpec
from remuda.core.machine import cores as cores_here
from remuda.core.machine import machine
from remuda.core.plan import Plan
from remuda.engines.table import ENGINES
from remuda.runs.settings import make_plan, spec_of
from remuda.studies.compare.advise import advise
from remuda.studies.compare.measure import VariantMeasurements, measure, variants
from remuda.studies.compare.page import Comparison, Prediction
from remuda.studies.compare.simulate import TurnTimes, ideal, predict, probe

LEAST_WORLDS = 16


def compare(
    settings: Mapping[str, Any],
    engines: str = "all",
    n_workers: Sequence[int] = (2,),
    seconds: float = 20.0,
    repeats: int = 3,
    with_ideal: bool = False,
    cores: Sequence[int] = (),
    command: str = "",
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Measure one plan on several engines; unless it says how many worlds it has, there is one for every worker."""
    wanted = variants(engines, n_workers)
    plan = make_plan({"worlds": max(LEAST_WORLDS, *n_workers), **settings})
    spec = spec_of(plan)
    figures = measure(plan, wanted, seconds, repeats, tell)
    turns = probe(plan) if with_ideal or cores else None
    measured = [own for own in figures if own.trials]
    return Comparison(
        title=f"{plan.game}, {spec.agents} {'agent' if spec.agents == 1 else 'agents'}, {plan.worlds} worlds",
        machine=machine(),
        command=command,
        figures=figures,
        advice=advise(figures),
        ideal=ideal(plan, turns, figures, cores_here()) if with_ideal and turns and measured else None,
        here=cores_here(),
        predictions=_predictions(plan, spec, turns, measured, cores) if turns and cores else (),
        foreseen=_foreseen(plan, spec, turns, measured) if turns and cores else (),
    )


def _foreseen(
    plan: Plan, spec: GameSpec, turns: TurnTimes, measured: Sequence[VariantMeasurements]
) -> list[Prediction]:
    """What was measured, predicted."""
    here = cores_here()
    return [
        Prediction(
            own.variant.engine, own.variant.workers, here, predict(plan, spec, turns, own, own.variant.workers, here)
        )
        for own in measured
    ]


def _predictions(
    plan: Plan, spec: GameSpec, turns: TurnTimes, measured: Sequence[VariantMeasurements], cores: Sequence[int]
) -> list[Prediction]:
    """Every engine on every machine, with as many workers as suit it best there."""
    result = []
    for engine in dict.fromkeys(own.variant.engine for own in measured):
        own = [figures for figures in measured if figures.variant.engine == engine]
        for count in sorted({cores_here(), *cores}):
            rates = []
            for workers in _staffs(engine, [figures.variant.workers for figures in own], count):
                nearest = min(own, key=lambda figures: abs(figures.variant.workers - workers))
                rates.append((predict(plan, spec, turns, nearest, workers, count), workers))
            rate, workers = max(rates)
            result.append(Prediction(engine, workers, count, rate))
    return result


def _staffs(engine: str, tried: Sequence[int], cores: int) -> list[int]:
    """Numbers of workers somebody with so many cores would think of."""
    if engine == "sequential":
        return [1]
    if not ENGINES[engine].has_workers:
        return [cores]
    return sorted({*tried, cores, max(1, cores // 4)})
