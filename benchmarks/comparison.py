"""`remuda compare` on both games and on a game with slow, uneven turns; and how good its predictions are.

A prediction for this machine should lie within the spread of the measurements or within 20 % of their median, whichever
is wider. The pages are written to the working directory.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from remuda.studies.compare.compare import compare
from remuda.studies.compare.page import Comparison, html, tables

TOLERANCE = 0.2
CORES = (8, 32, 128)
SLOW = "remuda.testing:SLOW"
SLEEPS: dict[str, Any] = {
    "game": SLOW, "turns": 10, "mean_ms": 20, "long_ms": 100, "worlds": 100, "episodes_per_update": 20, "layer": 16,
    "frames": 1,
}  # fmt: skip
PLANS: dict[str, tuple[dict[str, Any], str, int, float, int]] = {
    # settings, engines, workers, seconds, repeats
    "treasurehunt": ({"game": "treasurehunt", "agents": 4}, "all", 2, 6.0, 3),
    "cage2": ({"game": "cage2", "learner": "ppo", "worlds": 100}, "all", 2, 6.0, 3),
    "slow-turns-100": (SLEEPS, "sequential,vectorized,threads,sync,executor,actor-learner", 100, 8.0, 2),
    "slow-turns-16": (SLEEPS, "sequential,executor,ray", 16, 8.0, 2),  # 100 Ray actors take 21 GiB
}


def command(settings: dict[str, Any], engines: str, workers: int, seconds: float, repeats: int) -> str:
    """The command that gives the same comparison."""
    words = [f"{name}={value}" for name, value in settings.items() if name != "game"]
    flags = ["--engines", engines, "--n-workers", str(workers), "--seconds", str(seconds), "--repeats", str(repeats)]
    flags += ["--ideal", "--cores", ",".join(map(str, CORES))]
    return shlex.join(["remuda", "compare", str(settings["game"]), *words, *flags])


def check(comparison: Comparison) -> None:
    """Print the predictions for this machine next to the measurements."""
    predictions = {(one.engine, one.workers): one.episodes_per_s for one in comparison.predictions_here}
    print("predicted for this machine, over measured:")
    for one in comparison.measurements:
        if not one.trials:
            continue
        predicted, (low, high) = predictions[one.variant.engine, one.variant.workers], one.spread
        low, high = min(low, (1 - TOLERANCE) * one.rate), max(high, (1 + TOLERANCE) * one.rate)
        verdict = "within" if low <= predicted <= high else "OUTSIDE"
        print(f"  {one.variant.name:20s} {predicted:9.2f} over {one.rate:9.2f}: {predicted / one.rate:.2f}, {verdict}")


def main() -> None:
    """Print the tables and write the pages."""
    console = Console(width=220)
    for name, (settings, engines, workers, seconds, repeats) in PLANS.items():
        comparison = compare(
            settings, engines, (workers,), seconds, repeats, True, CORES,
            command(settings, engines, workers, seconds, repeats),
            lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        print(f"\n{comparison.command}\n{comparison.machine}")
        for table in tables(comparison):
            console.print(table)
        print(f"ideal machine: {comparison.ideal or 0:,.1f} episodes/s")
        check(comparison)
        path = Path(f"compare-{name}.html")
        path.write_text(html(comparison), encoding="utf-8")
        print(f"look at {path}", flush=True)
