"""Collecting: its rate as a share of the rate of the forward passes alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness import Claim, compare, rate
from remuda.core.game import make_game
from remuda.core.machine import cores
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.inline import InlineCollectors
from remuda.games.registry import find_game
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.stack import chunks, init_keys
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout

TURNS = 100
SECONDS = 0.6


def policy_for(agents: int) -> IQNPolicy:
    """Fresh networks of the default size."""
    group = make_game(find_game("treasurehunt"), {"agents": agents}, [0]).spec.groups[0]
    policy = IQN.make_policy(group, agents, IQNOptions(), "fp32", "cpu")
    assert isinstance(policy, IQNPolicy)
    rows = policy.network.initial_rows(init_keys(0, np.arange(agents)))
    policy.load(np.pad(rows, ((0, 0), (0, 1))), 0)
    return policy


def collecting(agents: int, worlds: int, one_by_one: bool = False) -> Callable[[], int]:
    """Collects whole episodes on one thread."""
    game = make_game(find_game("treasurehunt"), {"agents": agents}, range(worlds))
    rollout = Rollout(
        game, [PolicyBinding(0, 0, agents, policy_for(agents))], RolloutConfig(0, worlds, one_by_one=one_by_one)
    )

    def work() -> int:
        rollout.start(Task(tuple(range(worlds))))
        rollout.play(rollout.empty_fragments())
        return agents * worlds * TURNS

    return work


def bare_stacked(agents: int, worlds: int) -> Callable[[], int]:
    """Only the stacked forward passes of an episode, in the same chunks."""
    policy = policy_for(agents)
    x = torch.rand(agents, worlds, policy.network.inputs)
    ranges = list(chunks(agents, policy.network.acting_bytes(worlds)))

    @torch.no_grad()
    def work() -> int:
        for _ in range(TURNS):
            for low, high in ranges:
                policy.network.mean_advantages(policy.agent_arrays(low, high), x[low:high])
        return agents * worlds * TURNS

    return work


def bare_single(agents: int) -> Callable[[], int]:
    """One world: only compiled steps, and one forward pass per agent and turn."""
    policy = policy_for(agents)
    game = make_game(find_game("treasurehunt"), {"agents": agents}, [0])
    x = torch.rand(agents, 4, policy.network.inputs)
    views = np.zeros((1, agents, *policy.group.obs_shape), np.uint8)
    actions = np.zeros((1, agents), np.int64)

    @torch.no_grad()
    def work() -> int:
        game.reset(np.zeros(1, np.int64), np.zeros(1, np.uint64))
        for _ in range(TURNS):
            game.begin()
            game.observe(0, 0, agents, views)
            for agent in range(agents):
                policy.network.mean_advantages(policy.agent_arrays(agent, agent + 1), x[agent : agent + 1])
            game.act(0, 0, agents, actions)
            game.end()
        return agents * TURNS

    return work


def on_all_cores(agents: int, worlds: int) -> Callable[[], int]:
    """The collectors of the vectorized engine."""
    entry = find_game("treasurehunt")
    collectors = InlineCollectors(
        entry,
        {"agents": agents},
        [PolicyBinding(0, 0, agents, policy_for(agents))],
        RolloutConfig(0, worlds),
        cores(),
        lambda: None,
    )
    collectors.start()

    def work() -> int:
        collectors.send(Task(tuple(range(worlds))))
        collectors.recv(timeout_s=60)
        return agents * worlds * TURNS

    return work


def measure(work: Callable[[], int]) -> Callable[[], float]:
    """The rate of `work` in processor time."""
    return lambda: rate(work, SECONDS)


def main() -> None:
    """Print the tables."""
    with one_thread_each():
        for agents, worlds in ((2, 16), (10, 64)):
            compare(
                f"Collecting, {agents} agents in {worlds} worlds, one core, agent-steps per second of processor time",
                {
                    "collecting": measure(collecting(agents, worlds)),
                    "bare stacked forward passes": measure(bare_stacked(agents, worlds)),
                },
                [Claim("collecting over bare", "collecting", "bare stacked forward passes", 0.7)],
                "agent-steps/s",
            )
        compare(
            "Sequential collecting, 2 agents in 1 world, agent-steps per second of processor time",
            {
                "sequential": measure(collecting(2, 1, one_by_one=True)),
                "bare single forward passes and steps": measure(bare_single(2)),
            },
            [Claim("sequential over bare", "sequential", "bare single forward passes and steps", 0.6)],
            "agent-steps/s",
        )
        vectorized, sequential = on_all_cores(2, 16), collecting(2, 1, one_by_one=True)
        compare(
            f"Engines, collecting with 2 agents, {cores()} cores, agent-steps per second of wall time",
            {
                "vectorized, 16 worlds": lambda: rate(vectorized, SECONDS, time.perf_counter),
                "sequential": lambda: rate(sequential, SECONDS, time.perf_counter),
            },
            [Claim("vectorized over sequential", "vectorized, 16 worlds", "sequential")],
            "agent-steps/s",
        )
