"""Trains Stable-Baselines3 on CAGE 2 through Gymnasium: `python examples/sb3_cage2.py [STEPS]`."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

import remuda_envs  # noqa: F401 (registers the environments)

WORLDS = 16
EPISODES = 50


def make_env() -> gymnasium.Env[object, object]:
    """CAGE 2 against B_line, 30 steps."""
    return gymnasium.make("remuda/cage2-v0", red="b_line", steps=30)


def mean_return(model: PPO) -> float:
    """The mean return of greedy play, always on the same episodes."""
    env, returns = make_env(), []
    for episode in range(EPISODES):
        (obs, _), total, over = env.reset(seed=10_000 + episode), 0.0, False
        while not over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main(steps: int) -> None:
    """Train, and print the mean return before and after."""
    envs = DummyVecEnv([make_env] * WORLDS)
    model = PPO("MlpPolicy", envs, n_steps=60, batch_size=240, n_epochs=6, learning_rate=1e-3, seed=0, device="cpu")
    before = mean_return(model)
    model.learn(steps)
    print(f"mean return of {EPISODES} episodes: {before:.1f} before, {mean_return(model):.1f} after {steps:,} steps")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
