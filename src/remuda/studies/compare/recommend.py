"""Recommends an engine for each of several situations, by simple rules over the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remuda.engines.table import ENGINES
from remuda.studies.compare.measure import VariantMeasurements

FEW_EPISODES = 1000
"""The length of a run that only tries whether training works."""
FAST_ENOUGH = 0.5
"""The share of the fastest rate that is enough where memory matters more."""
GIB = 2**30


@dataclass(frozen=True)
class Recommendation:
    """A situation, the engine to use in it, and the reason."""

    situation: str
    use: str
    reason: str


def recommend(measurements: Sequence[VariantMeasurements]) -> list[Recommendation]:
    """One recommendation per situation; none if no variant could be measured."""
    measured = [variant for variant in measurements if variant.trials]
    if not measured:
        return []
    return [rule(measured) for rule in (_production, _debugging, _little_memory, _small_scale, _several_machines)]


def _simplest(candidates: Sequence[VariantMeasurements]) -> VariantMeasurements:
    """The first in the table of engines, with the fewest workers."""
    order = list(ENGINES)
    return min(
        candidates, key=lambda one: (order.index(one.variant.engine), one.variant.learner_actors, one.variant.workers)
    )


def _fastest(measured: Sequence[VariantMeasurements]) -> VariantMeasurements:
    return max(measured, key=lambda one: one.rate)


def _production(measured: Sequence[VariantMeasurements]) -> Recommendation:
    """The fastest; if the repeats of others overlap with its repeats, the simplest of these."""
    fastest = _fastest(measured)
    slowest_repeat = fastest.spread[0]
    alike = [one for one in measured if one.spread[1] >= slowest_repeat and one.rate >= 0.9 * fastest.rate]
    chosen = _simplest(alike)
    reason = f"{chosen.rate:,.1f} episodes/s"
    if chosen is fastest:
        others = [one for one in measured if one.variant.engine != chosen.variant.engine]
        if others:
            second = _fastest(others)
            reason += f", {chosen.rate / second.rate:.2f} times the next engine ({second.variant.name})"
    else:
        reason += (
            f"; {fastest.variant.name} has {fastest.rate:,.1f}, which is within the spread of the repeats, "
            "and is less simple"
        )
    if chosen.wide:
        reason += " (repeats differ widely: measure again on a quiet machine)"
    return Recommendation("production", chosen.variant.name, reason)


def _debugging(measured: Sequence[VariantMeasurements]) -> Recommendation:
    """One process, one thread, everything in order."""
    chosen = _simplest(measured)
    cost = _fastest(measured).rate / chosen.rate
    reason = f"the fewest things at once; {_slower(cost)}"
    if chosen.variant.engine != "sequential":
        reason += "; sequential was not measured"
    return Recommendation("debugging", chosen.variant.name, reason)


def _slower(cost: float) -> str:
    return "nothing here is much faster" if cost < 1.05 else f"the fastest here is {cost:.1f} times as fast"


def _little_memory(measured: Sequence[VariantMeasurements]) -> Recommendation:
    """The smallest of those that are fast enough."""
    enough = [one for one in measured if one.rate >= FAST_ENOUGH * _fastest(measured).rate]
    chosen = min(enough, key=lambda one: one.median("peak_bytes"))
    largest = max(enough, key=lambda one: one.median("peak_bytes"))
    reason = f"{chosen.median('peak_bytes') / GIB:.2f} GiB at {chosen.rate:,.1f} episodes/s"
    if largest is not chosen:
        reason += f"; {largest.variant.name} takes {largest.median('peak_bytes') / GIB:.2f} GiB"
    return Recommendation("little memory", chosen.variant.name, reason)


def _small_scale(measured: Sequence[VariantMeasurements]) -> Recommendation:
    """The first that finishes a short run, its start included."""
    chosen = min(measured, key=lambda one: time_for(one, FEW_EPISODES))
    return Recommendation(
        "small scale",
        chosen.variant.name,
        f"{FEW_EPISODES:,} episodes in {time_for(chosen, FEW_EPISODES):,.0f} s, "
        f"{chosen.median('cold_start_s'):.1f} s of them until the first round",
    )


def _several_machines(measured: Sequence[VariantMeasurements]) -> Recommendation:
    """The fastest engine that can use several machines; on one machine its cost is known."""
    able = [one for one in measured if ENGINES[one.variant.engine].machines]
    if not able:
        names = ", ".join(name for name, engine in ENGINES.items() if engine.machines)
        return Recommendation(
            "several machines", names, "the only one that uses more than this machine; it was not measured here"
        )
    chosen = _fastest(able)
    share = chosen.rate / _fastest(measured).rate
    return Recommendation(
        "several machines",
        chosen.variant.name,
        f"the only one that uses more than this machine; alone it reaches {share:.2f} of the fastest engine",
    )


def time_for(measured: VariantMeasurements, episodes: int) -> float:
    """Seconds that a run of so many episodes takes, its start included."""
    return measured.median("cold_start_s") + episodes / measured.rate
