"""Whether PPO's compiled form learns as well as its readable one: `workflow_rl`, the same seeds of either, TOST.

A score is the mean return of the last tenth of the training episodes, actions drawn from the policy.

    python -m benchmarks speed_learning    # an hour and more on one core
    SEEDS=20 ROUNDS=200 python -m benchmarks speed_learning
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.speed import Form
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.studies.statistics import equivalence

SEEDS, ROUNDS = int(os.environ.get("SEEDS", "20")), int(os.environ.get("ROUNDS", "1000"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
MARGIN = 1.0
PLAN: dict[str, Any] = {"preset": "workflow_rl", "red": "b_line"}


def score(seed: int, rounds: int, compiled: bool) -> float:
    """The mean return at the end of a training."""
    form = Form.of({**PLAN, "seed": seed, "total_episodes": 100 * rounds}, compiled)
    for number in range(rounds):
        form.round(number)
    return float(np.mean(form.returns[-max(1, rounds // 10) :]))


def main() -> None:
    """Train both forms by seeds; print each pair, the means and the test."""
    keep_freed_memory()
    print(f"\nworkflow_rl, {ROUNDS} rounds of 100 episodes: readable, compiled\n  {machine()}", flush=True)
    scores = np.zeros((SEEDS, 2))
    with one_thread_each():
        for row, seed in enumerate(range(FIRST_SEED, FIRST_SEED + SEEDS)):
            scores[row] = [score(seed, ROUNDS, compiled) for compiled in (False, True)]
            print(f"  seed {seed}: {scores[row, 0]:.2f}  {scores[row, 1]:.2f}", flush=True)
    readable, compiled = scores.T
    print(
        f"  means {readable.mean():.2f} and {compiled.mean():.2f}, standard deviations {readable.std(ddof=1):.2f} and "
        f"{compiled.std(ddof=1):.2f}; TOST within ±{MARGIN:g}: p = {equivalence(readable, compiled, MARGIN):.4f}"
    )
