"""Environments of other libraries for tests of the adapters, small enough for every engine."""

from __future__ import annotations

from typing import Any

import numpy as np

GAMES: dict[str, dict[str, Any]] = {
    "mpe2.simple_tag_v3:parallel_env": {"max_cycles": 8},  # agents of unequal shape
    "pettingzoo:butterfly/knights_archers_zombies-v11": {"max_cycles": 25, "spawn_delay": 2},  # agents die
    "pettingzoo:classic/tictactoe-v3": {"turns": 9},  # one after another, with masks
    "gymnasium:CartPole-v1": {"turns": 20},
    "gymnasium:FrozenLake-v1": {"turns": 12, "agents": 2},
    "gymnasium:Blackjack-v1": {"turns": 9},
}


def random_walk(size: int = 3) -> Any:
    """A small Gymnasium environment with random starts."""
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


def text_observations() -> Any:
    """An environment whose observations cannot be flattened."""
    env = random_walk()
    env.observation_space = __import__("gymnasium").spaces.Text(5)
    return env


def continuous_actions() -> Any:
    """An environment with continuous actions."""
    env = random_walk()
    env.action_space = __import__("gymnasium").spaces.Box(-1, 1, (2,))
    return env


def no_environment() -> int:
    """A factory that makes no environment."""
    return 7


def out_of_turn() -> Any:
    """Two agents that act in an irregular order; every move pays both, differently, and the last ends the game."""
    import gymnasium
    from pettingzoo import AECEnv

    class OutOfTurn(AECEnv[str, Any, int]):
        metadata: dict[str, Any] = {"name": "out_of_turn"}  # noqa: RUF012
        possible_agents = ["a", "b"]  # noqa: RUF012
        order = "abbaaabab"

        def observation_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(0, 99, (1,), np.int64)

        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed: int | None = None, options: Any = None) -> None:
            self.agents = list(self.possible_agents)
            self.first = int(np.random.default_rng(seed).integers(50))
            self.moves = 0
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
            self.agent_selection = self.order[0]

        def observe(self, agent: str) -> Any:
            return np.array([self.first + self.moves])

        def step(self, action: int) -> None:
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self.moves += 1
            self.rewards = {"a": 1.0 * 2**self.moves, "b": -1.0 * 2**self.moves}
            if self.moves == len(self.order):
                self.terminations = dict.fromkeys(self.agents, True)
            else:
                self.agent_selection = self.order[self.moves]

    return OutOfTurn()


def outside(value: float = 3.0) -> Any:
    """An environment whose observations leave their Box in the second turn."""
    import gymnasium

    class Outside(gymnasium.Env[Any, int]):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        turn = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.turn = 0
            return self.np_random.random(2).astype(np.float32), {}

        def step(self, action: int) -> Any:
            self.turn += 1
            return np.full(2, value if self.turn == 2 else 0.5, np.float32), 1.0, False, self.turn == 4, {}

    return Outside()


def keeps_its_dict() -> Any:
    """A parallel environment that returns the dict it counts with from `reset`, as it may."""
    import gymnasium
    from pettingzoo import ParallelEnv

    class Keeps(ParallelEnv[str, Any, int]):
        metadata: dict[str, Any] = {"name": "keeps"}  # noqa: RUF012
        possible_agents = ["a"]  # noqa: RUF012

        def observation_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(0, 1000, (1,), np.float32)

        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents, self.turn = ["a"], 0
            self.kept = {"a": np.ones(1, np.float32)}
            return self.kept, {}

        def step(self, actions: Any) -> Any:
            self.turn += 1
            reward, over = {"a": float(self.kept["a"][0])}, {"a": self.turn == 5}
            self.agents = [] if over["a"] else ["a"]
            return {"a": np.full(1, 100.0, np.float32)}, reward, over, {"a": False}, {"a": {}}

    return Keeps()
