"""Memory matters: PPO and IQN with and without a memory on Recall, five seeds.

    python -m benchmarks.recall [--seed N] [--tally FILE] [--record] [LEARNER-BODY …]

LEARNER-BODY is e.g. ppo-lstm; by default GRU and MLP of both learners.

The best possible return is 1; an agent without a memory gets 1 / symbols on average. Greedy test episodes; ± is half of
a 95 % interval over the seeds. The networks of a learner have the same widths with and without a memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import remuda
from benchmarks.results import recorded
from benchmarks.seed_tally import SeedTally, half_interval
from remuda.core.machine import machine
from remuda.core.threads import one_thread_each

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


def trained(learner: str, body: str, seed: int) -> dict[str, float]:
    """Mean return of 64 test episodes after training, and processor seconds of training."""
    with tempfile.TemporaryDirectory() as folder, one_thread_each():
        began = time.process_time()
        run = remuda.train(
            "remuda.testing.recall:RECALL", out=Path(folder) / "run", quiet=True, engine="vectorized", n_workers=1,
            learner=learner, body=body, seed=seed, pictures=False, **GAME, **PLANS[learner],
        )  # fmt: skip
        seconds = time.process_time() - began
        return {"return": float(np.mean(remuda.evaluate(run.path, episodes=64).returns)), "cpu_s": seconds}


def main(words: Sequence[str] = ()) -> None:
    """Print the scores of each learner and body, their mean and its interval."""
    reader = argparse.ArgumentParser(prog="python -m benchmarks.recall")
    reader.add_argument("variants", nargs="*", default=VARIANTS)
    reader.add_argument("--seed", type=int, help="this seed alone")
    reader.add_argument("--tally", type=Path, metavar="FILE", help="keep results here; what it has is not run again")
    reader.add_argument("--record", action="store_true", help="write docs/benchmarks.md, too")
    asked = reader.parse_args(words)
    tally = SeedTally(asked.tally)
    for variant in asked.variants:
        for seed in range(SEEDS) if asked.seed is None else [asked.seed]:
            tally.measure(variant, seed, partial(trained, *variant.split("-"), seed))
    with recorded("recall") if asked.record else nullcontext():
        print(f"{machine()}\nbest possible 1.000, without memory {1 / GAME['symbols']:.3f}", flush=True)
        for variant in asked.variants:
            scores, seconds = (np.array([own[name] for own in tally.of(variant)]) for name in ("return", "cpu_s"))
            each = " ".join(f"{value:.3f}" for value in scores)
            mean = f"{scores.mean():.3f} ± {half_interval(scores):.3f}"
            print(f"{variant:8} {mean}, processor {np.median(seconds):.0f} s a seed: {each}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
