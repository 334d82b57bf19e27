"""CAGE 2 with a policy: collecting on two engines, and the whole training of the preset `workflow_rl`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Claim, compare, machine, rate, remuda
from remuda.core.game import make_game
from remuda.core.machine import cores
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.stack import init_keys
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout

STEPS = 100
EPISODES = 100_000


def collecting(worlds: int, one_by_one: bool) -> Callable[[], float]:
    """Steps per second of processor time, with the networks of the preset."""
    game = make_game(find_game("cage2"), {"steps": STEPS}, range(worlds))
    policy = PPO.make_policy(game.spec.groups[0], 1, PPOOptions(), "fp32", "cpu")
    rows = policy.rows.copy()
    rows[:, : policy.layout.size] = policy.layout.initial_rows(init_keys(0, np.arange(1)))
    policy.load(rows, 0)
    rollout = Rollout(game, [PolicyBinding(0, 0, 1, policy)], RolloutConfig(0, worlds, one_by_one=one_by_one))

    def work() -> int:
        rollout.start(Task(tuple(range(worlds))))
        rollout.play(rollout.empty_fragments())
        return worlds * STEPS

    return lambda: rate(work, 0.5)


def train(*words: str) -> None:
    """Train the preset in its own process and print where the time went."""
    settings = ("preset=workflow_rl", "pictures=false", f"checkpoint_every={EPISODES}", "evaluate_episodes=100", *words)
    with tempfile.TemporaryDirectory() as folder:
        result = remuda("train", *settings, "--total-episodes", str(EPISODES), "--out", f"{folder}/run")
    seconds = {side: spent["cpu"] for side, spent in result["seconds"].items()}
    ideal = sum(seconds.values()) / cores()
    print(f"\nCAGE 2, preset workflow_rl {' '.join(words)}, {EPISODES:,} episodes on {cores()} cores\n  {machine()}")
    print(f"  wall {result['wall_s']:.0f} s, {result['episodes_per_s']:.0f} episodes/s (wanted under 300 s)")
    print("  processor seconds: " + ", ".join(f"{side} {cpu:.0f}" for side, cpu in seconds.items()))
    print(f"  of what the cores allow: {ideal / result['wall_s']:.2f} (wanted at least 0.8)")
    print(f"  mean return of the last tenth {result['mean_return'][0]:.1f}", flush=True)


def main() -> None:
    """Print the tables."""
    with one_thread_each():
        compare(
            "CAGE 2, collecting with the policy, one core, steps per second of processor time",
            {
                "vectorized, 1,000 worlds": collecting(1000, one_by_one=False),
                "vectorized, 100 worlds": collecting(100, one_by_one=False),
                "sequential": collecting(1, one_by_one=True),
            },
            [Claim("vectorized over sequential", "vectorized, 1,000 worlds", "sequential", 25)],
            "steps/s",
            repeats=5,
        )
    train("engine=vectorized")
    train("engine=vectorized", "lag=1")
    train("engine=executor")
