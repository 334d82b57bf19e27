"""Memory matters: PPO and IQN with and without a memory on Recall, five seeds.

    python -m benchmarks.recall [LEARNER-BODY …]      e.g. ppo-lstm; by default GRU and MLP of both

The best possible return is 1; an agent without a memory gets 1 / symbols on average. Greedy test episodes; ± is half of
a 95 % interval over the seeds. The networks of a learner have the same widths with and without a memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import remuda

GAME: dict[str, Any] = {"agents": 1, "symbols": 4, "delay": 3, "turns": 24}
PLANS: dict[str, dict[str, Any]] = {
    "ppo": {
        "worlds": 64, "total_episodes": 9600, "layers": [32], "features": 32, "sequence": 8, "lr": "0.01:0.001",
        "minibatches": 4, "passes": 4, "gamma": 0.5, "gae_lambda": 0.5, "entropy": 0.001,
    },
    "iqn": {
        "worlds": 32, "total_episodes": 2560, "layer": 32, "frames": 1, "batch_size": 128, "sequence": 8, "burn_in": 4,
        "lr": "0.005:0.0005", "tau": 0.02, "gamma": 0.5, "epsilon": "0.3:0.02:0.6",
    },
}  # fmt: skip
SEEDS = 5
VARIANTS = ("ppo-gru", "ppo-mlp", "iqn-gru", "iqn-mlp")


def score(folder: Path, learner: str, body: str, seed: int) -> float:
    """Mean return of 64 test episodes after training."""
    run = remuda.train(
        "remuda.testing.recall:RECALL", out=folder / f"{learner}-{body}-{seed}", quiet=True, engine="vectorized",
        learner=learner, body=body, seed=seed, pictures=False, **GAME, **PLANS[learner],
    )  # fmt: skip
    return float(np.mean(remuda.evaluate(run.path, episodes=64).returns))


def main(variants: Sequence[str] = ()) -> None:
    """Print the scores of each learner and body, their mean and the lowest."""
    print(f"best possible 1.000, without memory {1 / GAME['symbols']:.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for variant in variants or VARIANTS:
            began = time.process_time()
            scores = [score(Path(folder), *variant.split("-"), seed) for seed in range(SEEDS)]
            half = stats.t.ppf(0.975, SEEDS - 1) * np.std(scores, ddof=1) / np.sqrt(SEEDS)
            each = " ".join(f"{value:.3f}" for value in scores)
            seconds = (time.process_time() - began) / SEEDS
            print(
                f"{variant:8} {np.mean(scores):.3f} ± {half:.3f}, processor {seconds:.0f} s a seed: {each}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
