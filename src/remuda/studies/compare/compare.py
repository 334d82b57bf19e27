"""Which engine should I use here? Measured, explained, and predicted for other machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec
from remuda.core.machine import cores as cores_here
from remuda.core.machine import machine
from remuda.core.plan import Plan
from remuda.core.session import is_session_name
from remuda.engines.table import ENGINES
from remuda.games.registry import AnyGame, refuse_while_importing
from remuda.runs.settings import make_plan, spec_of
from remuda.studies.compare.advise import advise
from remuda.studies.compare.measure import VariantMeasurements, measure, variants
from remuda.studies.compare.page import Comparison, Prediction
from remuda.studies.compare.simulate import TurnTimes, predict, probe
from remuda.studies.compare.simulate import ideal as ideal_rate

LEAST_WORLDS = 16


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
    tell: Callable[[str], None] = lambda text: None,
    **settings: Any,
) -> Comparison:
    """Measure one plan on several engines, each trial in a process of its own.

    `engines` are names with commas between, or "all"; `n_workers` are the numbers of workers to try, by default as many
    as there are cores. `ideal` adds what a machine that never waits would do, and `cores` predicts other machines. The
    other settings are those of the plan; unless it says how many worlds it has, there is one for every worker.
    """
    refuse_while_importing()
    counts = [cores_here()] if n_workers is None else list(n_workers)
    wanted = variants(engines, counts)
    plan = make_plan({"worlds": max(LEAST_WORLDS, *counts), **settings, "game": game})
    for name in filter(is_session_name, plan.names()):
        raise ConfigError(
            f"{name} was defined in this session, where no trial finds it: put it into a file and import it"
        )
    spec = spec_of(plan)
    figures = measure(plan, wanted, seconds, repeats, tell)
    turns = probe(plan) if ideal or cores else None
    measured = [own for own in figures if own.trials]
    return Comparison(
        title=f"{plan.game}, {spec.agents} {'agent' if spec.agents == 1 else 'agents'}, {plan.worlds} worlds",
        machine=machine(),
        command=command,
        figures=figures,
        advice=advise(figures),
        ideal=ideal_rate(plan, turns, figures, cores_here()) if ideal and turns and measured else None,
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
    if not ENGINES[engine].hires:
        return [cores]
    return sorted({*tried, cores, max(1, cores // 4)})
