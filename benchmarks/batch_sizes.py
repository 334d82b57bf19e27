"""Would a batch that grows with the spread of its gradients (`batch_size=auto`) pay? DQN in Treasurehunt, two agents.

    python -m benchmarks.batch_sizes

First the gradient noise scale (McCandlish et al. 2018) while training: the batch size at which the noise of a gradient
equals its length, and which an automatic batch would follow. Then what fixed batches reach with the same number of
updates: greedy return of the herd, mean of three seeds, and processor seconds of a run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import remuda
from remuda.core.fragment import Fragment, copy_fragment
from remuda.core.game import make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.learners.registry import find_learner
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout

AGENTS, WORLDS, ROUNDS, UPDATES = 2, 8, 60, 32
SMALL, LARGE, DRAWS = 32, 4096, 16
SIZES, SEEDS = (16, 64, 256), 3


def noise_scales() -> dict[int, list[float]]:
    """The noise scale of each agent after some rounds, from gradients over small and large batches."""
    spec = make_game(find_game("treasurehunt"), {"agents": AGENTS}, [0]).spec
    kind: Any = find_learner("dqn:DQN")
    context = LearnerContext(spec.groups[0], 0, 0, AGENTS, 0, 0, spec.turns, WORLDS, ROUNDS * UPDATES)
    own = kind(context, kind.options_type().read({"replay_size": 50_000}, "dqn:DQN"))
    found = {}
    for round_ in range(ROUNDS):
        own.take(_played(own, round_))
        own.update(UPDATES)
        if round_ + 1 in (5, 20, ROUNDS):
            found[round_ + 1] = _noise_scale(own)
    return found


def _played(own: Any, round_: int) -> Fragment:
    policy = own.make_policy(own.context.group, AGENTS, own.options, "fp32", "cpu")
    policy.load(own.rows(), 0)
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS}, range(WORLDS))
    rollout = Rollout(game, [PolicyBinding(0, 0, AGENTS, policy)], RolloutConfig(0, WORLDS))
    rollout.start(Task(tuple(range(round_ * WORLDS, (round_ + 1) * WORLDS))))
    return copy_fragment(rollout.play(rollout.empty_fragments())[0])


def _noise_scale(own: Any) -> list[float]:
    """Trace of the covariance over the squared length of the true gradient, both estimated without bias."""
    small, large = (np.mean([_squared_norms(own, size, i) for i in range(DRAWS)], axis=0) for size in (SMALL, LARGE))
    length = (LARGE * large - SMALL * small) / (LARGE - SMALL)
    spread = (small - large) / (1 / SMALL - 1 / LARGE)
    return [float(own_scale) for own_scale in spread / length]


def _squared_norms(own: Any, size: int, draw: int) -> Any:
    """Squared lengths of the gradients of all agents over a new batch, (agents,)."""
    kept, own.options = own.options, own.options.model_copy(update={"batch_size": size})
    batch = own._batch(0, AGENTS, 1_000_000 + draw)
    own.options = kept
    values = {name: torch.zeros(AGENTS) for name in own._schedules}
    gradients, _ = own._gradients((own.weights, own.target), batch, values)
    return gradients.square().sum(dim=1).numpy()


def trained(size: int, seed: int) -> tuple[float, float]:
    """Greedy return of the herd and processor seconds of one run with a fixed batch."""
    with tempfile.TemporaryDirectory() as folder, one_thread_each():
        began = time.process_time()
        run = remuda.train(
            "treasurehunt", out=Path(folder) / "run", quiet=True, pictures=False, learner="dqn:DQN", agents=AGENTS,
            worlds=WORLDS, total_episodes=WORLDS * ROUNDS, updates_per_episode=UPDATES // WORLDS, batch_size=size,
            seed=seed, engine="vectorized", n_workers=1, evaluate_every=0, evaluate_episodes=1, lr="0.001:0.0001",
        )  # fmt: skip
        seconds = time.process_time() - began
        return float(run.evaluate(episodes=100).returns.sum(axis=1).mean()), seconds


def main() -> None:
    """Print both."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    for round_, scales in noise_scales().items():
        print(f"round {round_:3}: noise scale {', '.join(f'{scale:,.0f}' for scale in scales)}", flush=True)
    for size in SIZES:
        returns, seconds = np.array([trained(size, seed) for seed in range(SEEDS)]).T
        each = " ".join(f"{value:.0f}" for value in returns)
        print(f"batch_size={size:4}: return {returns.mean():6.1f} ({each}), {np.median(seconds):.0f} s", flush=True)


if __name__ == "__main__":
    main()
