"""Trains RLlib on Treasurehunt through PettingZoo, one policy per agent: `python examples/rllib_treasurehunt.py`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import ray
from gymnasium import spaces
from pettingzoo.utils import BaseParallelWrapper
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from remuda import parallel_env

AGENTS = 2
TURNS = 100


class Floats(BaseParallelWrapper):  # type: ignore[misc]
    """Converts observations to floats, which RLlib's networks need."""

    def observation_space(self, agent: str) -> spaces.Box:
        """The same space with floats."""
        return spaces.Box(0.0, 1.0, self.env.observation_space(agent).shape, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._floats(obs), infos

    def step(self, actions: dict[str, int]) -> Any:
        """Play a turn."""
        obs, *rest = self.env.step(actions)
        return self._floats(obs), *rest

    def _floats(self, obs: dict[str, Any]) -> dict[str, Any]:
        return {agent: array.astype(np.float32) for agent, array in obs.items()}


def make_env(config: dict[str, Any]) -> Any:
    """Two agents in a walled field."""
    return ParallelPettingZooEnv(Floats(parallel_env("treasurehunt", agents=AGENTS)))


def main(iterations: int) -> None:
    """Train, and print the mean return before and after."""
    ray.init("local", include_dashboard=False, log_to_driver=False)
    register_env("treasurehunt", make_env)
    config = (
        PPOConfig()
        .environment("treasurehunt")
        .env_runners(num_env_runners=0)  # episodes are played in this process
        .multi_agent(
            policies={f"agent_{i}" for i in range(AGENTS)}, policy_mapping_fn=lambda agent, episode, **more: agent
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .training(train_batch_size_per_learner=20 * TURNS, minibatch_size=250, num_epochs=4, lr=1e-3, gamma=0.95)
    )
    algorithm = config.build_algo()
    returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(iterations)]
    algorithm.stop()
    ray.shutdown()
    print(f"mean return of both agents: {returns[0]:.1f} at first, {returns[-1]:.1f} after {iterations} iterations")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
