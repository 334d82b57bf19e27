"""TPE with pruning against random search, at equal budgets: IQN's learning rate × target rate in Treasurehunt.

Five repetitions, each with the same number of training episodes for both. What a sweep has found is its best trial's
settings; they are trained once more on fresh seeds, since the best trial was also lucky, and compared with the defaults
on the same seeds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from remuda import study
from remuda.studies.statistics import compare
from remuda.studies.sweeps.sweep import is_sweep, resume_sweep, sweep

EPISODES = 240
"""Of a trial: 6 % of the default, with a smaller network (`layer=64`, not 250), so that a trial takes seconds."""
BUDGET = 16 * EPISODES
REPETITIONS = 5
SEEDS = [9001, 9002, 9003]
"""On which what was found is trained again; no trial has them."""
SETTINGS = {"game": "treasurehunt", "layer": 64, "total_episodes": EPISODES, "evaluate_episodes": 32}
RANGES = {"lr": "log(1e-4, 1e-2)", "tau": "log(1e-3, 1e-1)"}
METHODS = {"tpe, hyperband": {"method": "tpe", "prune": "hyperband"}, "random": {"method": "random", "prune": "none"}}


def main(out: Path | None = None) -> None:
    """Sweep, train what was found again, and print both; in the same `out` it goes on where it was interrupted."""
    print(f"\nSweeps of IQN's lr × tau in Treasurehunt, {BUDGET:,} episodes each\n  {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = out or Path(name)
        folder.mkdir(exist_ok=True)
        found: dict[str, dict[str, Any]] = {}
        for seed in range(REPETITIONS):
            for method, options in METHODS.items():
                found[f"{method} {seed}"] = _sweep(folder, method, seed, options)
        values = {own: {"lr": best["lr"], "tau": best["tau"]} for own, best in found.items()}
        again = study(
            variants={"default settings": {}, **values},
            seeds=SEEDS,
            out=folder / "again",
            quiet=True,
            **{**SETTINGS, "evaluate_episodes": 200},
        )
        scores = {own.name: own.values for own in again.report.variants}
    means = {own: float(values.mean()) for own, values in scores.items()}
    print(f"  trained again on {len(SEEDS)} fresh seeds, return per agent:")
    for own, best in found.items():
        print(f"    {own:16s} lr {best['lr']:.2g}, tau {best['tau']:.2g}: best trial {best['score']:.1f}", end="")
        print(f", again {means[own]:.1f}")
    print(f"    default settings at {EPISODES} episodes: {means['default settings']:.1f}")
    for method in METHODS:
        own = [means[f"{method} {seed}"] for seed in range(REPETITIONS)]
        print(f"  {method}: mean of {REPETITIONS} sweeps {statistics.mean(own):.1f} ({min(own):.1f} to {max(own):.1f})")
    pairs = [[means[f"{method} {seed}"] for seed in range(REPETITIONS)] for method in METHODS]
    difference = compare(*(np.array(own) for own in pairs)).difference
    print(
        f"  {' over '.join(METHODS)}: {difference.value:+.1f} (95 %: {difference.low:+.1f} to {difference.high:+.1f})"
    )


def _sweep(folder: Path, method: str, seed: int, options: dict[str, str]) -> dict[str, Any]:
    """The best trial of one sweep."""
    out = folder / f"{method.partition(',')[0]}-{seed}"
    settings = {**SETTINGS, **RANGES, **options, "budget_episodes": BUDGET, "seed": seed}
    done = resume_sweep(out, quiet=True) if is_sweep(out) else sweep(settings, out, quiet=True)
    if done.stopped_by is not None:
        sys.exit(128 + done.stopped_by)
    best, result = done.best, done.result()
    assert best is not None
    print(
        f"  {method} {seed}: {result['finished']} trials finished, {result['pruned']} pruned, "
        f"{result['episodes']:,} episodes; best {best.score:.1f}",
        flush=True,
    )
    return {**best.values, "score": best.score}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
