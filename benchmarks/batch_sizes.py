"""Would a batch that grows with the spread of its gradients pay? DQN in Treasurehunt, two agents, five seeds.

    python -m benchmarks.batch_sizes [--seeds 5 | --seed N] [--tally FILE] [--record]

The spread is the gradient noise scale (McCandlish et al. 2018): the batch size at which the noise of a gradient is as
long as the gradient itself. `auto` measures it for each agent while training, and takes the next batches as large,
within the fixed sizes that stand beside it. All make the same number of updates. Printed are greedy returns of the
herd, ± half of a 95 % interval over the seeds, and processor seconds of a run; for `auto` also its batch in each
quarter of the run. The second table has the differences of `auto` to each fixed size, seed by seed.
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
import torch
from numpy.typing import NDArray

import remuda
from benchmarks.results import recorded
from benchmarks.seed_tally import SeedTally, half_interval
from remuda.core.learner import LearnerContext
from remuda.core.machine import machine
from remuda.core.threads import one_thread_each
from remuda.learners.registry import find_learner

AGENTS, WORLDS, ROUNDS, UPDATES = 2, 8, 60, 32
SIZES = (16, 64, 256)
VARIANTS = (*map(str, SIZES), "auto")
MEASURED_EVERY, SMOOTHING = 8, 0.9
"""Updates between two measurements of the noise scale, and the weight of the older ones."""
TEST_EPISODES = 100


class AutoBatch(remuda.OffPolicyLearner):
    """Mixed into an off-policy learner: each agent's batch follows the noise scale of its own gradients."""

    batches: list[float]
    """Mean batch of the agents at each measurement, of the learner made last."""

    def __init__(self, context: LearnerContext, options: Any) -> None:
        super().__init__(context, options)
        self.sizes = np.full(context.agents, min(SIZES))
        self.squares = np.zeros((context.agents, 2))  # smoothed: of the true gradient's length, and of its noise
        type(self).batches = []

    def _update(self, first: int, last: int, clock: int) -> None:
        for agent in range(first, last):
            if clock % MEASURED_EVERY == 0:
                self._measure(agent, clock)
            self._with_batch(int(self.sizes[agent]))
            super()._update(agent, agent + 1, clock)
        if clock % MEASURED_EVERY == 0:
            self.batches.append(float(self.sizes.mean()))

    def _with_batch(self, size: int) -> None:
        self.options = self.options.model_copy(update={"batch_size": size})

    def _measure(self, agent: int, clock: int) -> None:
        """Choose the agent's next batches."""
        small, large = (self._squared_length(agent, size, clock) for size in (min(SIZES), max(SIZES)))
        length = (max(SIZES) * large - min(SIZES) * small) / (max(SIZES) - min(SIZES))
        noise = (small - large) / (1 / min(SIZES) - 1 / max(SIZES))
        self.squares[agent] += (1 - SMOOTHING) * (np.array([length, noise]) - self.squares[agent])
        length, noise = self.squares[agent]
        wanted = noise / length if length > 0 else np.inf  # an estimate below zero: it drowns in the noise
        self.sizes[agent] = np.clip(wanted, min(SIZES), max(SIZES))

    def _squared_length(self, agent: int, size: int, clock: int) -> float:
        """Of a gradient over a batch that no update uses."""
        self._with_batch(size)
        one = slice(agent, agent + 1)
        batch = self._batch(agent, agent + 1, self.context.total_updates + clock)
        values = {name: torch.zeros(1) for name in self._schedules}
        gradients, _ = self._gradients((self.weights[one], self.target[one]), batch, values)
        return float(gradients.square().sum())


def trained(variant: str, seed: int) -> dict[str, float]:
    """Greedy return of the herd and processor seconds of one run."""
    dqn: Any = find_learner("dqn:DQN")
    learner = type("AutoDQN", (AutoBatch, dqn), {}) if variant == "auto" else dqn
    size: dict[str, Any] = {} if variant == "auto" else {"batch_size": int(variant)}
    with tempfile.TemporaryDirectory() as folder, one_thread_each():
        began = time.process_time()
        run = remuda.train(
            "treasurehunt", out=Path(folder) / "run", quiet=True, pictures=False, learner=learner, agents=AGENTS,
            worlds=WORLDS, total_episodes=WORLDS * ROUNDS, updates_per_episode=UPDATES // WORLDS, seed=seed,
            learning_starts=max(SIZES), engine="vectorized", n_workers=1, evaluate_every=0, evaluate_episodes=1,
            lr="0.001:0.0001", **size,
        )  # fmt: skip
        seconds = time.process_time() - began
        found = {"return": float(run.evaluate(episodes=TEST_EPISODES).returns.sum(axis=1).mean()), "cpu_s": seconds}
    if variant == "auto":
        quarters = np.array_split(learner.batches, 4)
        found |= {f"batch {number + 1}": float(quarter.mean()) for number, quarter in enumerate(quarters)}
    return found


def column(tally: SeedTally, variant: str, name: str) -> NDArray[np.float64]:
    """One value of a variant, (seeds,)."""
    return np.array([own[name] for own in tally.of(variant)])


def main(words: Sequence[str] = ()) -> None:
    """Run what the tally does not have, then print both tables."""
    reader = argparse.ArgumentParser(prog="python -m benchmarks.batch_sizes")
    reader.add_argument("--seeds", type=int, default=5)
    reader.add_argument("--seed", type=int, help="this seed alone")
    reader.add_argument("--tally", type=Path, metavar="FILE", help="keep results here; what it has is not run again")
    reader.add_argument("--record", action="store_true", help="write docs/benchmarks.md, too")
    asked = reader.parse_args(words)
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    tally = SeedTally(asked.tally)
    for seed in range(asked.seeds) if asked.seed is None else [asked.seed]:
        for variant in VARIANTS:
            tally.measure(variant, seed, partial(trained, variant, seed))
    with recorded("batch_sizes") if asked.record else nullcontext():
        print(machine(), flush=True)
        for variant in VARIANTS:
            returns, seconds = (column(tally, variant, name) for name in ("return", "cpu_s"))
            each = " ".join(f"{value:.0f}" for value in returns)
            print(f"batch {variant:4}: return {returns.mean():6.1f} ± {half_interval(returns):4.1f} ({each}), "
                  f"{np.median(seconds):.0f} s")  # fmt: skip
        quarters = [column(tally, "auto", f"batch {number}").mean() for number in range(1, 5)]
        print(f"mean batch of auto in each quarter: {', '.join(f'{size:.0f}' for size in quarters)}")
        for size in map(str, SIZES):
            gain = column(tally, "auto", "return") - column(tally, size, "return")
            cost = np.median(column(tally, "auto", "cpu_s") / column(tally, size, "cpu_s"))
            print(
                f"auto less batch {size:3}: return {gain.mean():+6.1f} ± {half_interval(gain):4.1f}, time × {cost:.2f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
