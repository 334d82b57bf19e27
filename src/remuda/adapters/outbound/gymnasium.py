"""Our games with one agent as Gymnasium environments: one world, or many stepped at once in arrays.

An option that differs between worlds (a list) is dealt out over the worlds of a vector environment; a single
environment is world 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from remuda.adapters.outbound.turns import FPS, RENDER_MODES, News, TurnDriver, check_mode, observation_space, shown
from remuda.core.errors import ConfigError, OrderError
from remuda.core.game import GameEntry, Group

METADATA: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": FPS}


class WorldEnv(gymnasium.Env[Any, Any]):
    """One world of a game with one agent. `info` has the game's metrics of the episode so far."""

    metadata = METADATA

    def __init__(self, game: str | GameEntry, render_mode: str | None = None, **options: Any) -> None:
        self._turns = TurnDriver(game, options, worlds=1)
        self.game = self._turns.game
        self._group = only_agent(self._turns)
        self.render_mode = check_mode(render_mode)
        self.observation_space = observation_space(self._group)
        self.action_space = spaces.Discrete(self._group.actions)
        self._going = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the first of a seed, or without one the next. There are no options."""
        super().reset(seed=seed)
        self._turns.seed([seed])
        self._turns.start(np.zeros(1, np.int64))
        self._going = True
        (news,) = self._turns.look()
        return shown(news, (0, 0)), self._info(news)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a turn."""
        if not self._going:
            raise OrderError("no episode is under way: call reset before step")
        self._turns.act([as_actions(np.reshape(action, 1), 1, self._group)])
        (news,) = self._turns.look()
        terminated, truncated = bool(news.terminated[0, 0]), bool(news.truncated[0, 0])
        self._going = not terminated and not truncated
        return shown(news, (0, 0)), float(news.rewards[0, 0]), terminated, truncated, self._info(news)

    def render(self) -> Any:
        """A picture (rgb_array) or text (ansi)."""
        return self._turns.picture(self.render_mode)

    def _info(self, news: News) -> dict[str, Any]:
        return dict(zip(self._group.metrics, news.metrics[0, 0].tolist(), strict=True))


class WorldsEnv(VectorEnv[Any, Any, Any]):
    """Many worlds of a game with one agent. A world that has ended begins anew at the next step, which plays no turn.

    World w plays what `WorldEnv` plays with the seed that w was given.
    """

    def __init__(
        self, game: str | GameEntry, num_envs: int = 1, render_mode: str | None = None, **options: Any
    ) -> None:
        self._turns = TurnDriver(game, options, num_envs)
        self.game = self._turns.game
        self._group = only_agent(self._turns)
        self.metadata = {**METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.render_mode = check_mode(render_mode)
        self.single_observation_space = observation_space(self._group)
        self.single_action_space = spaces.Discrete(self._group.actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended: NDArray[np.bool_] | None = None  # (worlds,): these begin anew at the next step

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every world. `seed` is one for each world, or that of world 0: world w has seed + w."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None or isinstance(seed, int | np.integer):
            seed = [None if seed is None else int(seed) + world for world in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigError(f"seed has {len(seed)} entries: give one for each of the {self.num_envs} worlds")
        self._turns.seed(seed)
        self._turns.start(np.arange(self.num_envs))
        self._ended = np.zeros(self.num_envs, np.bool_)
        (news,) = self._turns.look()
        return shown(news, (slice(None), 0)), self._infos(news)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Play a turn in every world that goes on; the others begin their next episode."""
        if self._ended is None:
            raise OrderError("no episode is under way: call reset before step")
        self.game.over |= self._ended  # also where only the agent has ended
        self._turns.act([as_actions(np.asarray(actions), self.num_envs, self._group)])
        if self._ended.any():
            self._turns.start(np.flatnonzero(self._ended))
        (news,) = self._turns.look()
        terminated, truncated = news.terminated[:, 0], news.truncated[:, 0]
        self._ended = terminated | truncated
        obs, rewards = shown(news, (slice(None), 0)), news.rewards[:, 0].astype(np.float64)
        return obs, rewards, terminated, truncated, self._infos(news)

    def render(self) -> tuple[Any, ...] | None:
        """A picture of each world."""
        if self.render_mode is None:
            return None
        return tuple(self._turns.picture(self.render_mode, world) for world in range(self.num_envs))

    def _infos(self, news: News) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, np.bool_)
        values = {name: news.metrics[:, 0, i].astype(np.float64) for i, name in enumerate(self._group.metrics)}
        return values | {f"_{name}": everywhere.copy() for name in values}


def only_agent(turns: TurnDriver) -> Group:
    """The group of the one agent there is."""
    spec = turns.game.spec
    if spec.agents != 1:
        raise ConfigError(
            f"{spec.name} has {spec.agents} agents with these options and a Gymnasium environment has one: "
            "give agents=1, or use remuda.adapters.pettingzoo.parallel_env"
        )
    return spec.groups[0]


def as_actions(actions: NDArray[Any], worlds: int, group: Group) -> NDArray[np.int64]:
    """Actions as the game takes them, (worlds, 1); compiled games trust them, so they are looked at here."""
    if actions.shape != (worlds,) or actions.dtype.kind not in "iu":
        raise ConfigError(f"actions are {actions.dtype} of shape {actions.shape}: give {worlds} whole numbers")
    if actions.min() < 0 or actions.max() >= group.actions:
        wrong = actions[(actions < 0) | (actions >= group.actions)][0]
        raise ConfigError(f"an action is {wrong}: give numbers from 0 to {group.actions - 1}")
    return actions.astype(np.int64)[:, None]
