"""`remuda compare` on both games and on one with slow, uneven turns; and its predictions against what was measured.

A prediction for this machine should lie within the spread of the measurements or within 20 % of their median,
whichever is wider. The pages are written to the working directory.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from remuda.studies.compare.compare import compare
from remuda.studies.compare.page import Comparison, tables

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
    "slow-turns-16": (SLEEPS, "sequential,executor,ray", 16, 8.0, 2),  # 100 actors of Ray take 21 GiB
}


def command(settings: dict[str, Any], engines: str, workers: int, seconds: float, repeats: int) -> str:
    """The same as a person would write it."""
    words = [f"{name}={value}" for name, value in settings.items() if name != "game"]
    flags = ["--engines", engines, "--n-workers", str(workers), "--seconds", str(seconds), "--repeats", str(repeats)]
    flags += ["--ideal", "--cores", ",".join(map(str, CORES))]
    return shlex.join(["remuda", "compare", str(settings["game"]), *words, *flags])


def check(shown: Comparison) -> None:
    """Print what was predicted for this machine beside what was measured on it."""
    guesses = {(one.engine, one.workers): one.episodes_per_s for one in shown.predictions_here}
    print("predicted for this machine, over measured:")
    for own in shown.measurements:
        if not own.trials:
            continue
        guess, (low, high) = guesses[own.variant.engine, own.variant.workers], own.spread
        low, high = min(low, (1 - TOLERANCE) * own.rate), max(high, (1 + TOLERANCE) * own.rate)
        said = "within" if low <= guess <= high else "OUTSIDE"
        print(f"  {own.variant.name:20s} {guess:9.2f} over {own.rate:9.2f}: {guess / own.rate:.2f}, {said}")


def main() -> None:
    """Print the tables and write the pages."""
    console = Console(width=220)
    for name, (settings, engines, workers, seconds, repeats) in PLANS.items():
        shown = compare(
            **settings, engines=engines, n_workers=(workers,), seconds=seconds, repeats=repeats, ideal=True,
            cores=CORES, command=command(settings, engines, workers, seconds, repeats),
            on_message=lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        print(f"\n{shown.command}\n{shown.machine}")
        for table in tables(shown):
            console.print(table)
        print(f"ideal machine: {shown.ideal or 0:,.1f} episodes/s")
        check(shown)
        path = Path(f"compare-{name}.html")
        shown.write(path)
        print(f"look at {path}", flush=True)
