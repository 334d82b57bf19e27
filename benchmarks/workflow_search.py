"""Which search method finds the better order of repair? CAGE 2, equal budgets, scored on fresh episodes.

Each method chooses an order from its training results. Printed is the return of that order's policy on fresh episodes.
The interval over seeds (Student's t) covers the variation between trainings; the ± of a single seed does not.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from benchmarks.harness import machine, remuda
from remuda.core.machine import cores
from remuda.runs.recorder import standard_error

METHODS = ("gp-ucb", "halving", "random", "conditioned")
SEEDS = 3
EPISODES = 50_000
SETTINGS = ("compliance_threshold=0.9", "n_workers=1")
WORLDS = {"conditioned": ("worlds=130",)}  # twice each of the 65 games


def run_search(method: str, seed: int, folder: Path) -> dict[str, Any]:
    """One search in its own process."""
    out = folder / f"{method}-{seed}"
    words = (f"method={method}", f"total_episodes={EPISODES}", f"seed={seed}", *SETTINGS, *WORLDS.get(method, ()))
    result: dict[str, Any] = remuda("search", "cage2", "--out", str(out), *words)
    chosen = result["chosen"] or {"env_return": float("nan"), "env_return_ci95": 0, "compliance": 0, "workflow": "none"}
    print(
        f"  {method}, seed {seed}: {chosen['env_return']:.2f} ± {chosen['env_return_ci95']:.2f}, compliance "
        f"{chosen['compliance']:.3f}, {chosen['workflow']}; {result['trials']} trials, {result['trials_that_passed']} "
        f"passed, {result['seconds']['wall']:.0f} s",
        flush=True,
    )
    return result


def main() -> None:
    """Run every method and seed, as many at a time as there are cores."""
    print(f"\nSearching the order of repair, {EPISODES:,} episodes each, B_line, 100 steps\n  {machine()}")
    print(f"  remuda search cage2 total_episodes={EPISODES} method=… seed=… {' '.join(SETTINGS)}", flush=True)
    jobs = [(method, seed) for seed in range(SEEDS) for method in METHODS]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores()) as pool:
        results = list(pool.map(lambda job: run_search(*job, Path(folder)), jobs))
    for method in METHODS:
        of_method = [result for (name, _), result in zip(jobs, results, strict=True) if name == method]
        returns = np.array([result["chosen"]["env_return"] for result in of_method if result["chosen"]])
        width = t.ppf(0.975, len(returns) - 1) * float(standard_error(returns)) if len(returns) > 1 else float("nan")
        print(f"  {method}: {returns.mean():.2f} ± {width:.2f} over {len(returns)} seeds that chose one")
