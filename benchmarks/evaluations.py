"""What evaluations while training cost: processor time of runs with them, over that of the same runs without.

    python -m benchmarks.evaluations

By default a run plays one episode of evaluation for thirty of training, chooses `best` by them, and evaluates once more
at its end. Without them a single episode is evaluated, at the end. Both kinds of runs take turns, and their weights are
the same. In CartPole greedy episodes are longer than those of training, which is the hard case.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import remuda
from remuda.core.machine import machine
from remuda.core.threads import one_thread_each

PAIRS = 9
WITHOUT: dict[str, Any] = {"evaluate_every": 0, "evaluate_episodes": 1}
PLANS: dict[str, dict[str, Any]] = {
    "cage2, ppo": {"game": "cage2", "learner": "ppo", "total_episodes": 1600, "evaluate_episodes": 16},
    "treasurehunt, iqn": {"game": "treasurehunt", "agents": 2, "total_episodes": 320, "evaluate_episodes": 4},
    "CartPole, ppo": {
        "game": "gymnasium:CartPole-v1", "learner": "ppo", "total_episodes": 320, "evaluate_episodes": 4,
        "gamma": 0.98, "gae_lambda": 0.8, "entropy": 0.0, "passes": 10, "worlds": 8,
    },
}  # fmt: skip


def trained(seed: int, **plan: Any) -> tuple[float, str]:
    """Processor seconds of a run, and the hash of its weights."""
    with tempfile.TemporaryDirectory() as folder, one_thread_each():
        began = time.process_time()
        run = remuda.train(
            out=Path(folder) / "run", quiet=True, pictures=False, engine="vectorized", n_workers=1, seed=seed, **plan
        )
        return time.process_time() - began, str(run.result["weights_sha256"])


def main() -> None:
    """Print a line per game."""
    print(machine(), flush=True)
    for name, plan in PLANS.items():
        trained(0, **{**plan, **WITHOUT, "total_episodes": 32})  # compile
        costs, seconds = [], []
        for seed in range(PAIRS):
            (evaluated, one), (plain, other) = trained(seed, **plan), trained(seed, **{**plan, **WITHOUT})
            assert one == other, "evaluations changed the weights"
            costs.append(100 * (evaluated / plain - 1))
            seconds.append(plain)
        spread = f"({min(costs):.1f} to {max(costs):.1f})"
        print(f"{name:18} evaluations cost {median(costs):.1f} % {spread} of {median(seconds):.1f} s", flush=True)


if __name__ == "__main__":
    main()
