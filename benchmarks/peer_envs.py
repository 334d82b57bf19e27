"""Gymnasium environments whose steps cost a millisecond of processor time, or time asleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

TURNS = 50
WORK = 44_000
"""Steps of plain Python that take about a millisecond of a core."""
MEAN_MS, LONG_MS, LONG_SHARE = 10.0, 50.0, 0.05


class Costly(gymnasium.Env[NDArray[np.float32], int]):
    """Episodes of fixed length with random observations; each step calls `cost`."""

    max_steps = TURNS

    def __init__(self, cost: Callable[[np.random.Generator], None]) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.cost = cost

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.turn = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Spend the time of a step, and draw the next observation."""
        self.cost(self.np_random)
        self.turn += 1
        return self._observe(), float(action == 0), False, self.turn >= TURNS, {}

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)


def work(random: np.random.Generator) -> None:
    """Compute for about a millisecond."""
    left = WORK
    while left:
        left -= 1


def sleep(random: np.random.Generator) -> None:
    """Sleep `MEAN_MS` on average, and `LONG_MS` with probability `LONG_SHARE`, like a remote simulator."""
    short = (MEAN_MS - LONG_SHARE * LONG_MS) / (1 - LONG_SHARE)
    time.sleep((LONG_MS if random.random() < LONG_SHARE else short) / 1000)


def cartpole() -> gymnasium.Env[Any, Any]:
    """Gymnasium's CartPole without its checker."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def working() -> gymnasium.Env[Any, Any]:
    """Each step computes for a millisecond."""
    return Costly(work)


def sleeping() -> gymnasium.Env[Any, Any]:
    """Each step sleeps 10 ms on average."""
    return Costly(sleep)
