"""Our games as PettingZoo environments.

All agents observe, all actions are given, and the game carries them out in the agents' order. An agent that died or was
truncated leaves for good, because PettingZoo agents cannot come back. If the game revives such an agent, it is not
reported any more, and takes its first allowed action in every turn. An agent that is only away stays: its observations
and actions mean nothing until it is back, and `infos` say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from remuda.adapters.outbound.stepper import (
    METADATA,
    GameStepper,
    StepResult,
    checked_actions,
    observation_at,
    observation_space,
)
from remuda.core.errors import ConfigError, OrderError
from remuda.core.game import GameEntry, GameSpec

Infos = dict[str, dict[str, Any]]


class HerdEnv(ParallelEnv[str, Any, int]):  # type: ignore[misc]  # PettingZoo has no types
    """One world of a game. `infos` have the game's metrics of the episode so far, and `away` while an agent is away."""

    def __init__(self, game: str | GameEntry, render_mode: str | None = None, **options: Any) -> None:
        self._stepper = GameStepper(game, options, render_mode=render_mode)
        self.game = self._stepper.game
        spec = self.game.spec
        self.render_mode = render_mode
        self.metadata = {**METADATA, "name": f"{spec.name}_v0"}
        self._indices = agent_indices(spec)
        self.possible_agents = list(self._indices)
        self.agents: list[str] = []
        groups = {name: spec.groups[g] for name, (g, _) in self._indices.items()}
        self.observation_spaces = {name: observation_space(group) for name, group in groups.items()}
        self.action_spaces = {name: group.gymnasium_actions for name, group in groups.items()}
        self._results: list[StepResult] = []  # per group

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """A Box; Dict(observation, action_mask) where the game forbids actions."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """The space of the agent's group."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Infos]:
        """Begin the first episode of a seed, or without a seed the next episode. `options` is ignored."""
        del options
        self._stepper.seed([seed])
        self._stepper.reset(np.zeros(1, np.int64))
        self._results = self._stepper.observe()
        self.agents = list(self.possible_agents)
        return self._observations(), self._infos()

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Play a turn with an action for each of `agents`."""
        if not self.agents:
            raise OrderError("no episode is running: call reset before step")
        self._stepper.act(self._action_arrays(actions))
        self._results = self._stepper.observe()
        rewards = {name: float(result.rewards[0, i]) for name, result, i in self._present()}
        terminated = {name: bool(result.terminated[0, i]) for name, result, i in self._present()}
        truncated = {name: bool(result.truncated[0, i]) for name, result, i in self._present()}
        returned = self._observations(), rewards, terminated, truncated, self._infos()
        self.agents = [name for name in self.agents if not terminated[name] and not truncated[name]]
        return returned

    def render(self) -> Any:
        """A picture (rgb_array) or text (ansi)."""
        return self._stepper.render()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _present(self) -> list[tuple[str, StepResult, int]]:
        """The agents that have not left: name, the group's result, and the agent's number in the group."""
        return [(name, self._results[self._indices[name][0]], self._indices[name][1]) for name in self.agents]

    def _observations(self) -> dict[str, Any]:
        return {name: observation_at(result, (0, i)) for name, result, i in self._present()}

    def _infos(self) -> Infos:
        metrics = {name: self.game.spec.groups[g].metrics for name, (g, _) in self._indices.items()}
        return {
            name: dict(zip(metrics[name], result.metrics[0, i].tolist(), strict=True))
            | ({} if result.alive[0, i] else {"away": True})
            for name, result, i in self._present()
        }

    def _action_arrays(self, actions: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Actions as the game takes them, (1, agents, …) per group; an agent that has left takes its first one."""
        arrays = []
        for group, result in zip(self.game.spec.groups, self._results, strict=True):
            shape = (1, group.size, *group.action_shape)
            first = np.zeros(shape) if result.mask is None else result.mask.argmax(axis=2)
            arrays.append(first.astype(group.action_dtype))
        for name in self.agents:
            g, i = self._indices[name]
            group = self.game.spec.groups[g]
            if name not in actions:
                raise ConfigError(f"step has no action for {name}: give one for each of {', '.join(self.agents)}")
            if group.action_space is not None:
                arrays[g][0, i] = checked_actions(np.asarray(actions[name])[None], 1, group)[0, 0]
            elif not 0 <= int(actions[name]) < group.actions:  # compiled games use actions as indices without a check
                raise ConfigError(
                    f"the action of {name} is {actions[name]}: give a number from 0 to {group.actions - 1}"
                )
            else:
                arrays[g][0, i] = int(actions[name])
        return arrays


def parallel_env(game: str | GameEntry, render_mode: str | None = None, **options: Any) -> HerdEnv:
    """A game by name (`treasurehunt`, `cage2`, `module:entry`) with its options, as a PettingZoo environment."""
    return HerdEnv(game, render_mode, **options)


def agent_indices(spec: GameSpec) -> dict[str, tuple[int, int]]:
    """Each agent's group and number in it, by the agent's name.

    The name is agent_0 if the game has one group, otherwise the group's name and the number: walkers_0.
    """
    several = len(spec.groups) > 1
    return {
        f"{group.name if several else 'agent'}_{i}": (g, i)
        for g, group in enumerate(spec.groups)
        for i in range(group.size)
    }
