"""Our games as PettingZoo environments.

Everybody observes, all actions are given, and they are carried out in the agents' order. An agent that died or was cut
off leaves. PettingZoo knows no way back: if the game brings such an agent to life again it is not heard of any more,
and does what its first allowed action does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from remuda.adapters.outbound.turns import FPS, RENDER_MODES, News, TurnDriver, check_mode, observation_space, shown
from remuda.core.errors import ConfigError, OrderError
from remuda.core.game import GameEntry, GameSpec

Infos = dict[str, dict[str, Any]]


class HerdEnv(ParallelEnv[str, Any, int]):  # type: ignore[misc]  # PettingZoo has no types
    """One world of a game. `infos` have the game's metrics of the episode so far."""

    def __init__(self, game: str | GameEntry, render_mode: str | None = None, **options: Any) -> None:
        self._turns = TurnDriver(game, options, worlds=1)
        self.game = self._turns.game
        spec = self.game.spec
        self.render_mode = check_mode(render_mode)
        self.metadata = {"name": f"{spec.name}_v0", "render_modes": list(RENDER_MODES), "render_fps": FPS}
        self._places = places(spec)
        self.possible_agents = list(self._places)
        self.agents: list[str] = []
        groups = {name: spec.groups[g] for name, (g, _) in self._places.items()}
        self.observation_spaces = {name: observation_space(group) for name, group in groups.items()}
        self.action_spaces = {name: spaces.Discrete(group.actions) for name, group in groups.items()}
        self._news: list[News] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """A Box; Dict(observation, action_mask) where the game forbids actions."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        """As many actions as the agent's group has."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Infos]:
        """Begin an episode: the first of a seed, or without one the next. There are no options."""
        del options
        self._turns.seed([seed])
        self._turns.start(np.zeros(1, np.int64))
        self._news = self._turns.look()
        self.agents = list(self.possible_agents)
        return self._observations(), self._infos()

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Play a turn with an action for everybody in `agents`."""
        if not self.agents:
            raise OrderError("no episode is under way: call reset before step")
        self._turns.act(self._rows(actions))
        self._news = self._turns.look()
        rewards = {name: float(own.rewards[0, i]) for name, own, i in self._of_agents()}
        terminated = {name: bool(own.terminated[0, i]) for name, own, i in self._of_agents()}
        truncated = {name: bool(own.truncated[0, i]) for name, own, i in self._of_agents()}
        result = self._observations(), rewards, terminated, truncated, self._infos()
        self.agents = [name for name in self.agents if not terminated[name] and not truncated[name]]
        return result

    def render(self) -> Any:
        """A picture (rgb_array) or text (ansi)."""
        return self._turns.picture(self.render_mode)

    def close(self) -> None:
        """Nothing is held open."""

    def _of_agents(self) -> list[tuple[str, News, int]]:
        """Who is there, with its group's news and its number in the group."""
        return [(name, self._news[self._places[name][0]], self._places[name][1]) for name in self.agents]

    def _observations(self) -> dict[str, Any]:
        return {name: shown(own, (0, i)) for name, own, i in self._of_agents()}

    def _infos(self) -> Infos:
        metrics = {name: self.game.spec.groups[g].metrics for name, (g, _) in self._places.items()}
        return {
            name: dict(zip(metrics[name], own.metrics[0, i].tolist(), strict=True))
            for name, own, i in self._of_agents()
        }

    def _rows(self, actions: Mapping[str, Any]) -> list[NDArray[np.int64]]:
        """Actions as the game takes them; who has left does its first allowed one."""
        rows = []
        for group, own in zip(self.game.spec.groups, self._news, strict=True):
            first = np.zeros((1, group.size), np.int64) if own.mask is None else own.mask.argmax(axis=2)
            rows.append(first.astype(np.int64))
        for name in self.agents:
            g, i = self._places[name]
            count = self.game.spec.groups[g].actions
            if name not in actions:
                raise ConfigError(f"step has no action for {name}: give one for each of {', '.join(self.agents)}")
            if not 0 <= int(actions[name]) < count:  # compiled games trust their indices
                raise ConfigError(f"the action of {name} is {actions[name]}: give a number from 0 to {count - 1}")
            rows[g][0, i] = int(actions[name])
        return rows


def parallel_env(game: str | GameEntry, render_mode: str | None = None, **options: Any) -> HerdEnv:
    """A game by name (`treasurehunt`, `cage2`, `module:entry`) with its options, as a PettingZoo environment."""
    return HerdEnv(game, render_mode, **options)


def places(spec: GameSpec) -> dict[str, tuple[int, int]]:
    """Group and number of every agent by its name: agent_0, or where there are several groups walkers_0."""
    several = len(spec.groups) > 1
    return {
        f"{group.name if several else 'agent'}_{i}": (g, i)
        for g, group in enumerate(spec.groups)
        for i in range(group.size)
    }
