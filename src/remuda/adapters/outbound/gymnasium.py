"""Our games with one agent as Gymnasium environments: one world, or many worlds stepped at once in arrays.

An option that is a list gives each world of a vector environment its own value; a single environment is world 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from remuda.adapters.outbound.stepper import (
    METADATA,
    GameStepper,
    StepResult,
    checked_actions,
    observation_at,
    observation_space,
)
from remuda.core.errors import ConfigError, OrderError
from remuda.core.game import GameEntry, Group


class WorldEnv(gymnasium.Env[Any, Any]):
    """One world of a game with one agent. `info` has the game's metrics of the episode so far."""

    metadata = METADATA

    def __init__(self, game: str | GameEntry, render_mode: str | None = None, **options: Any) -> None:
        self._stepper = GameStepper(game, options, render_mode=render_mode)
        self.game = self._stepper.game
        self._group = single_agent_group(self._stepper)
        self.render_mode = render_mode
        self.observation_space = observation_space(self._group)
        self.action_space = self._group.gymnasium_actions
        self._episode_runs = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the first episode of a seed, or without a seed the next episode. `options` is ignored."""
        super().reset(seed=seed)
        self._stepper.seed([seed])
        self._stepper.reset(np.zeros(1, np.int64))
        self._episode_runs = True
        (result,) = self._stepper.observe()
        return observation_at(result, (0, 0)), self._info(result)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a turn."""
        if not self._episode_runs:
            raise OrderError("no episode is running: call reset before step")
        self._stepper.act([checked_actions(np.reshape(action, (1, *self._group.action_shape)), 1, self._group)])
        (result,) = self._stepper.observe()
        terminated, truncated = bool(result.terminated[0, 0]), bool(result.truncated[0, 0])
        self._episode_runs = not terminated and not truncated
        obs = observation_at(result, (0, 0))
        return obs, float(result.rewards[0, 0]), terminated, truncated, self._info(result)

    def render(self) -> Any:
        """A picture (rgb_array) or text (ansi)."""
        return self._stepper.render()

    def _info(self, result: StepResult) -> dict[str, Any]:
        return dict(zip(self._group.metrics, result.metrics[0, 0].tolist(), strict=True))


class WorldsEnv(VectorEnv[Any, Any, Any]):
    """Many worlds of a game with one agent.

    A world whose episode has ended begins the next one at the following step, which plays no turn there. World w plays
    what `WorldEnv` plays with the seed of world w.
    """

    def __init__(
        self, game: str | GameEntry, num_envs: int = 1, render_mode: str | None = None, **options: Any
    ) -> None:
        self._stepper = GameStepper(game, options, num_envs, render_mode)
        self.game = self._stepper.game
        self._group = single_agent_group(self._stepper)
        self.metadata = {**METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = observation_space(self._group)
        self.single_action_space = self._group.gymnasium_actions
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended: NDArray[np.bool_] | None = None  # (worlds,): these are reset at the next step

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every world. `seed` is one seed per world, or a number: then world w has seed + w."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None or isinstance(seed, int | np.integer):
            seed = [None if seed is None else int(seed) + world for world in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigError(f"seed has {len(seed)} entries: give one for each of the {self.num_envs} worlds")
        self._stepper.seed(seed)
        self._stepper.reset(np.arange(self.num_envs))
        self._ended = np.zeros(self.num_envs, np.bool_)
        (result,) = self._stepper.observe()
        return observation_at(result, (slice(None), 0)), self._infos(result)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Play a turn in every world whose episode runs; the others begin their next episode."""
        if self._ended is None:
            raise OrderError("no episode is running: call reset before step")
        self.game.over |= self._ended  # also where the agent has ended but the world has not
        self._stepper.act([checked_actions(np.asarray(actions), self.num_envs, self._group)])
        if self._ended.any():
            self._stepper.reset(np.flatnonzero(self._ended))
        (result,) = self._stepper.observe()
        terminated, truncated = result.terminated[:, 0], result.truncated[:, 0]
        self._ended = terminated | truncated
        obs, rewards = observation_at(result, (slice(None), 0)), result.rewards[:, 0].astype(np.float64)
        return obs, rewards, terminated, truncated, self._infos(result)

    def render(self) -> tuple[Any, ...] | None:
        """A picture of each world."""
        if self.render_mode is None:
            return None
        return tuple(self._stepper.render(world) for world in range(self.num_envs))

    def _infos(self, result: StepResult) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, np.bool_)
        values = {name: result.metrics[:, 0, i].astype(np.float64) for i, name in enumerate(self._group.metrics)}
        return values | {f"_{name}": everywhere.copy() for name in values}


def single_agent_group(stepper: GameStepper) -> Group:
    """The group of the game's only agent."""
    spec = stepper.game.spec
    if spec.agents != 1:
        raise ConfigError(
            f"{spec.name} has {spec.agents} agents with these options and a Gymnasium environment has one: "
            "give agents=1, or use remuda.parallel_env"
        )
    return spec.groups[0]
