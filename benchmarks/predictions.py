"""Predictions against measurements on this very machine: engines, simulated with the times measured, side by side.

A prediction should lie within the spread of the measurements or within 20 % of their median, whichever is wider.
"""

from __future__ import annotations

import sys

from remuda.compare.measure import measure, variants
from remuda.compare.simulate import predict, probe
from remuda.settings import make_plan, spec_of
from remuda.telemetry.processes import machine
from remuda.threads import cores

TOLERANCE = 0.2
SECONDS, REPEATS = 10.0, 3
PLANS = {
    "Treasurehunt, 4 agents": ({"game": "treasurehunt", "agents": 4, "worlds": 16}, [2]),
    "CAGE 2, PPO": ({"game": "cage2", "learner": "ppo", "worlds": 100}, [2]),
    "uneven turns asleep": (
        {
            "game": "remuda.testing:SLOW", "turns": 10, "mean_ms": 20, "long_ms": 100, "worlds": 32, "layer": 16,
            "frames": 1, "episodes_per_update": 8,
        },
        [2, 32],
    ),
}  # fmt: skip


def main() -> None:
    """Print a line per engine."""
    print(f"\npredicted and measured episodes/s on this machine\n  {machine()}")
    for title, (settings, counts) in PLANS.items():
        plan = make_plan(settings)
        spec, turns = spec_of(plan), probe(plan)
        print(f"  {title}")
        for own in measure(
            plan, variants("all", counts), SECONDS, REPEATS, lambda text: print(".", end="", file=sys.stderr)
        ):
            if own.problem:
                print(f"    {own.variant.name:20s} {own.problem}")
                continue
            guess, (low, high) = predict(plan, spec, turns, own, own.variant.workers, cores()), own.spread
            low, high = min(low, (1 - TOLERANCE) * own.rate), max(high, (1 + TOLERANCE) * own.rate)
            said = "within" if low <= guess <= high else "OUTSIDE"
            spread = f"{own.rate:9.2f} ({own.spread[0]:.2f} to {own.spread[1]:.2f})"
            print(
                f"    {own.variant.name:20s} measured {spread}, predicted {guess:9.2f}: {guess / own.rate:.2f}, {said}"
            )
