"""Gymnasium environments that cost something: the processor a millisecond a step, or time asleep."""

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
    """Episodes of fixed length in which nothing is to be learned; each step is paid for."""

    max_steps = TURNS

    def __init__(self, pay: Callable[[np.random.Generator], None]) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.pay = pay

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.turn = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Pay for it, and see something else."""
        self.pay(self.np_random)
        self.turn += 1
        return self._see(), float(action == 0), False, self.turn >= TURNS, {}

    def _see(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)


def work(chance: np.random.Generator) -> None:
    """Keep a core busy."""
    left = WORK
    while left:
        left -= 1


def nap(chance: np.random.Generator) -> None:
    """Sleep `MEAN_MS` on average, `LONG_MS` with chance `LONG_SHARE`, as a simulator on another machine would."""
    short = (MEAN_MS - LONG_SHARE * LONG_MS) / (1 - LONG_SHARE)
    time.sleep((LONG_MS if chance.random() < LONG_SHARE else short) / 1000)


def cartpole() -> gymnasium.Env[Any, Any]:
    """CartPole as Gymnasium has it; nobody checks its steps for mistakes."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def working() -> gymnasium.Env[Any, Any]:
    """A step is a millisecond of work."""
    return Costly(work)


def napping() -> gymnasium.Env[Any, Any]:
    """A step is 10 ms of sleep on average."""
    return Costly(nap)
