"""Memory matters: PPO with and without a memory on Recall, five seeds.

    python -m benchmarks recall

The best possible return is 1; an agent without a memory gets 1 / symbols on average. Greedy test episodes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import remuda

GAME: dict[str, Any] = {"agents": 1, "symbols": 4, "delay": 3, "turns": 24}
PLAN: dict[str, Any] = {
    "learner": "ppo", "engine": "vectorized", "worlds": 64, "total_episodes": 9600, "layers": [32], "width": 32,
    "sequence": 8, "lr": "0.01:0.001", "minibatches": 4, "passes": 4, "gamma": 0.5, "gae_lambda": 0.5,
    "entropy": 0.001, "pictures": False,
}  # fmt: skip
SEEDS = 5
BODIES = ("mlp", "gru", "lstm")


def score(folder: Path, body: str, seed: int) -> float:
    """Mean return of 64 test episodes after training."""
    run = remuda.train(
        "remuda.testing.recall:RECALL", out=folder / f"{body}-{seed}", quiet=True, body=body, seed=seed, **GAME, **PLAN
    )
    return float(np.mean(remuda.evaluate(run.path, episodes=64).returns))


def main() -> None:
    """Print each body's scores, their mean and the lowest."""
    print(f"best possible 1.000, without memory {1 / GAME['symbols']:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        for body in BODIES:
            scores = [score(Path(folder), body, seed) for seed in range(SEEDS)]
            each = " ".join(f"{value:.3f}" for value in scores)
            print(f"{body:5s} mean {np.mean(scores):.3f}, lowest {min(scores):.3f}: {each}", flush=True)
