"""What `engine=auto` chooses for five shipped games, beside what `remuda compare` finds best.

All plans wait by round (`deterministic=true`), as auto's own do: among these engines the weights are the same. Engines
that do not wait by round are not measured here: auto never takes one, since its weights differ; nor is `sequential`,
which is several times slower. auto measures in short trials of its own; the rates here are those of `remuda compare`,
measured afterwards. The best of several rates is the luckiest too, so a choice that is as good as any is a little below
1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from remuda.core.machine import cores, machine
from remuda.engines.choose import choose_engine
from remuda.runs.settings import make_plan, spec_of
from remuda.studies.compare.measure import UNLIMITED, EngineVariant, VariantMeasurements, measure

SECONDS, REPEATS = 3.0, 3
CLOSE = 0.75
"""Engines below this share of the fastest in a first trial are not measured again."""
PLANS: dict[str, dict[str, Any]] = {
    "treasurehunt": {"agents": 4},
    "coins": {"learner": "ppo", "turns": 200},
    "harvest": {"learner": "ppo", "turns": 200},
    "cleanup": {"turns": 200},
    "cage2": {"learner": "ppo", "worlds": 100},
}


def main() -> None:
    """Print the table."""
    print_table(PLANS)


def print_table(plans: Mapping[str, Mapping[str, Any]]) -> None:
    """A line per game: the choice, the best, and the ratio of their rates."""
    print(
        f"engine=auto and the best engine, episodes per second, trials of {SECONDS:g} s, medians of {REPEATS} "
        "for engines within a quarter of the best, else one"
    )
    print(f"  {machine()}")
    for game, settings in plans.items():
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        print(f"  {game} {words}".rstrip(), flush=True)
        for line in compared(game, settings):
            print(f"    {line}", flush=True)


def compared(game: str, settings: Mapping[str, Any]) -> list[str]:
    """The lines of one game."""
    plan = make_plan({**settings, "game": game, "engine": "auto", "total_episodes": UNLIMITED, "deterministic": True})
    began = time.perf_counter()
    choice, why = choose_engine(plan, spec_of(plan))
    took = time.perf_counter() - began
    chosen = EngineVariant(choice.engine, choice.n_workers or (1 if choice.engine == "sequential" else cores()))
    both = [EngineVariant(engine, workers) for engine in ("vectorized", "executor") for workers in (1, cores())]
    waiting = dict.fromkeys([*both, EngineVariant("sync", cores()), chosen])
    first = {one.variant: one for one in measure(plan, list(waiting), SECONDS, 1, _note) if one.trials}
    close = [own for own, one in first.items() if own == chosen or one.rate >= CLOSE * _best(first.values()).rate]
    again = {one.variant: one for one in measure(plan, close, SECONDS, REPEATS - 1, _note)} if len(close) > 1 else {}
    for own, one in again.items():
        one.trials += first[own].trials
    measured = {**first, **again}
    best, own = _best([measured[variant] for variant in close]), measured[chosen]
    others = ", ".join(f"{one.variant.name} {one.rate:,.1f}" for one in measured.values() if one is not own)
    return [
        f"{why}, in {took:.0f} s",
        f"chosen {_said(own)}; best {_said(best)}; chosen over best: {own.rate / best.rate:.2f}",
        f"others that wait by round: {others}",
    ]


def _best(measured: Iterable[VariantMeasurements]) -> VariantMeasurements:
    return max(measured, key=lambda one: one.rate)


def _said(one: VariantMeasurements) -> str:
    low, high = one.spread
    return f"{one.variant.name} {one.rate:,.1f} ({low:,.1f} to {high:,.1f})"


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
