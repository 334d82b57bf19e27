"""Stable-Baselines3's side of `benchmarks.yardsticks`: trains one seed and prints what it reached, as JSON.

    PYTHON benchmarks/yardsticks_sb3.py GAME SEED TURNS TEST_EPISODES

It imports nothing of remuda, so any Python with Stable-Baselines3 runs it. The settings are those of the RL Baselines3
Zoo, hyperparams/ppo.yml at commit 22e3ff2, which tuned them for these games; only TURNS may be fewer than there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

TEST_ENVS = 20
ZOO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "ent_coef": 0.0, "learning_rate": lambda left: 0.001 * left, "clip_range": lambda left: 0.2 * left,
    },
    "Acrobot-v1": {
        "normalize": True, "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4,
        "ent_coef": 0.0,
    },
    "Pendulum-v1": {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 0.001, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
    "LunarLander-v3": {
        "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
        "ent_coef": 0.01,
    },
}  # fmt: skip


def train(game: str, seed: int, turns: int, test_episodes: int) -> dict[str, float]:
    """Train and test one seed; seconds are of training alone."""
    settings = dict(ZOO[game])
    normalised = settings.pop("normalize", False)
    env: Any = make_vec_env(game, settings.pop("n_envs"), seed=seed)
    if normalised:
        env = VecNormalize(env, gamma=settings["gamma"])
    wall, cpu = time.perf_counter(), time.process_time()
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings)
    model.learn(turns)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    test: Any = make_vec_env(game, TEST_ENVS, seed=1_000_000 + seed)
    if normalised:
        test = VecNormalize(test, training=False, norm_reward=False)
        test.obs_rms = env.obs_rms
    mean, _ = evaluate_policy(model, test, n_eval_episodes=test_episodes)
    return {"return": float(mean), "wall_s": wall, "cpu_s": cpu, "turns": model.num_timesteps}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(train(sys.argv[1], *map(int, sys.argv[2:]))))
