"""Which engine for whom, and why: rules over the figures, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remuda.engines.table import ENGINES
from remuda.studies.compare.measure import VariantMeasurements

FEW_EPISODES = 1000
"""What somebody trains who only wants to see whether it works."""
FAST_ENOUGH = 0.5
"""Of the fastest rate, for those who must look at something else first."""
GIB = 2**30


@dataclass(frozen=True)
class Advice:
    """A situation, what to use in it, and the reason."""

    situation: str
    use: str
    reason: str


def advise(figures: Sequence[VariantMeasurements]) -> list[Advice]:
    """One line per situation."""
    measured = [own for own in figures if own.trials]
    if not measured:
        return []
    return [rule(measured) for rule in (_production, _debugging, _little_memory, _small_scale, _several_machines)]


def _simplest(candidates: Sequence[VariantMeasurements]) -> VariantMeasurements:
    """The first in the table of engines, with the fewest workers."""
    order = list(ENGINES)
    return min(candidates, key=lambda own: (order.index(own.variant.engine), own.variant.workers))


def _fastest(measured: Sequence[VariantMeasurements]) -> VariantMeasurements:
    return max(measured, key=lambda own: own.rate)


def _production(measured: Sequence[VariantMeasurements]) -> Advice:
    """The fastest; where others cannot be told from it, the simplest of them."""
    fastest = _fastest(measured)
    low = fastest.spread[0]
    alike = [own for own in measured if own.spread[1] >= low and own.rate >= 0.9 * fastest.rate]
    chosen = _simplest(alike)
    reason = f"{chosen.rate:,.1f} episodes/s"
    if chosen is fastest:
        others = [own for own in measured if own.variant.engine != chosen.variant.engine]
        if others:
            second = _fastest(others)
            reason += f", {chosen.rate / second.rate:.2f} times the next engine ({second.variant.name})"
    else:
        reason += f"; {fastest.variant.name} has {fastest.rate:,.1f}, within what repeats differ by, and is less simple"
    return Advice("production", chosen.variant.name, reason + _hint(chosen))


def _debugging(measured: Sequence[VariantMeasurements]) -> Advice:
    """One process, one thread, everything in order."""
    chosen = _simplest(measured)
    cost = _fastest(measured).rate / chosen.rate
    reason = f"the fewest things at once; the fastest here is {cost:.1f} times as fast"
    if chosen.variant.engine != "sequential":
        reason += "; sequential was not measured"
    return Advice("debugging", chosen.variant.name, reason)


def _little_memory(measured: Sequence[VariantMeasurements]) -> Advice:
    """The smallest of those that are fast enough."""
    enough = [own for own in measured if own.rate >= FAST_ENOUGH * _fastest(measured).rate]
    chosen = min(enough, key=lambda own: own.median("peak_bytes"))
    most = max(enough, key=lambda own: own.median("peak_bytes"))
    reason = f"{chosen.median('peak_bytes') / GIB:.2f} GiB at {chosen.rate:,.1f} episodes/s"
    if most is not chosen:
        reason += f"; {most.variant.name} takes {most.median('peak_bytes') / GIB:.2f} GiB"
    return Advice("little memory", chosen.variant.name, reason)


def _small_scale(measured: Sequence[VariantMeasurements]) -> Advice:
    """The first to have trained a few episodes, its start included."""
    took: Callable[[VariantMeasurements], float] = lambda own: time_for(own, FEW_EPISODES)  # noqa: E731
    chosen = min(measured, key=took)
    return Advice(
        "small scale",
        chosen.variant.name,
        f"{FEW_EPISODES:,} episodes in {took(chosen):,.0f} s, {chosen.median('cold_start_s'):.1f} s of them to the "
        "first round",
    )


def _several_machines(measured: Sequence[VariantMeasurements]) -> Advice:
    """Only some engines can; what they cost on one machine is known."""
    able = [own for own in measured if ENGINES[own.variant.engine].machines]
    if not able:
        names = ", ".join(name for name, engine in ENGINES.items() if engine.machines)
        return Advice("several machines", names, "the only one that leaves this machine; it was not measured here")
    chosen = _fastest(able)
    share = chosen.rate / _fastest(measured).rate
    return Advice(
        "several machines",
        chosen.variant.name,
        f"the only one that leaves this machine; on it alone it reaches {share:.2f} of the fastest engine",
    )


def time_for(own: VariantMeasurements, episodes: int) -> float:
    """Seconds a run of so many episodes takes, its start included."""
    return own.median("cold_start_s") + episodes / own.rate


def _hint(own: VariantMeasurements) -> str:
    return " (repeats differ widely: measure again on a quiet machine)" if own.wide else ""
