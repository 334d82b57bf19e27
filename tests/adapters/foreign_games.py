"""Environments of other makers that the adapters are tried on, small enough for every engine."""

from __future__ import annotations

from typing import Any

import numpy as np

GAMES: dict[str, dict[str, Any]] = {
    "mpe2.simple_tag_v3:parallel_env": {"max_cycles": 8},  # agents of unequal shape
    "pettingzoo:butterfly/knights_archers_zombies-v11": {"max_cycles": 60, "spawn_delay": 2},  # who die
    "pettingzoo:classic/tictactoe-v3": {},  # one after another, with masks
    "gymnasium:CartPole-v1": {"turns": 20},
    "gymnasium:FrozenLake-v1": {"turns": 12, "agents": 2},
    "gymnasium:Blackjack-v1": {"turns": 9},
}


def with_chance(size: int = 3) -> Any:
    """A Gymnasium environment that is made here."""
    import gymnasium

    class Walk(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-size, size, (1,), np.float64)
        action_space = gymnasium.spaces.Discrete(2, start=1)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.at = int(self.np_random.integers(size))
            return np.array([self.at], float), {}

        def step(self, action: Any) -> Any:
            assert action in (1, 2)
            self.at += 2 * int(action) - 3
            return np.array([self.at], float), float(self.at), abs(self.at) >= size, False, {}

    return Walk()


def with_text() -> Any:
    """An environment that shows what no network takes."""
    env = with_chance()
    env.observation_space = __import__("gymnasium").spaces.Text(5)
    return env


def with_knobs() -> Any:
    """An environment whose actions cannot be counted."""
    env = with_chance()
    env.action_space = __import__("gymnasium").spaces.Box(-1, 1, (2,))
    return env


def nothing() -> int:
    """What is no environment."""
    return 7
