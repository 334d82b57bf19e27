"""Steps a game with actions that come from outside; what `Rollout` does with policies.

Both the Gymnasium and the PettingZoo environments are built on `GameStepper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray

from remuda.adapters.inbound.spaces import MASK
from remuda.core import rng
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameEntry, Group, make_game
from remuda.core.policy import actions_fit
from remuda.core.rng import Stream
from remuda.games.registry import find_game

OBSERVATION = "observation"
RENDER_MODES = ("rgb_array", "ansi")
METADATA: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 10}


@dataclass(frozen=True)
class StepResult:
    """What the agents of a group observe now, and what has reached them since they last observed."""

    obs: NDArray[Any]  # (worlds, agents, *obs)
    mask: NDArray[np.int8] | None  # (worlds, agents, actions): 1 where an action is allowed
    rewards: NDArray[np.float32]  # (worlds, agents)
    terminated: NDArray[np.bool_]  # (worlds, agents)
    truncated: NDArray[np.bool_]  # (worlds, agents)
    alive: NDArray[np.bool_]  # (worlds, agents): whether the next action counts
    metrics: NDArray[np.float32]  # (worlds, agents, metrics): of the episode so far


class GameStepper:
    """Worlds 0 … worlds-1 of a game, stepped turn by turn: `act` with every agent's action, then `observe`.

    All randomness of an episode derives from the world's seed and from how many episodes the world has begun since it
    was given that seed.
    """

    def __init__(
        self, game: str | GameEntry, options: Mapping[str, Any], worlds: int = 1, render_mode: str | None = None
    ) -> None:
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise UnknownName("render_mode", render_mode, RENDER_MODES)
        entry = find_game(game) if isinstance(game, str) else game
        self.game = make_game(entry, options, range(worlds))
        self.groups = self.game.spec.groups
        self.render_mode = render_mode
        if self.game.spec.in_turn and self.game.spec.agents > 1:
            raise ConfigError(
                f"in {self.game.spec.name} agents act one after another: it cannot take the actions of all at once"
            )
        self._seeds: NDArray[np.uint64] | None = None  # (worlds,)
        self._episodes = np.zeros(worlds, np.int64)  # begun with the current seed
        self._just_reset = np.zeros(worlds, np.bool_)  # no agent has observed this episode yet

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Give each world a seed; a world with None keeps its seed, which at first is an arbitrary one."""
        if self._seeds is None:
            arbitrary = seeding.np_random()[1]
            self._seeds = np.array([_to_64_bits(arbitrary + world) for world in range(len(seeds))], np.uint64)
        for world, seed in enumerate(seeds):
            if seed is not None:
                self._seeds[world] = _to_64_bits(seed)
                self._episodes[world] = 0

    def reset(self, worlds: NDArray[np.int64]) -> None:
        """Begin the next episode in these worlds."""
        assert self._seeds is not None, "seed first"
        keys = rng.keys(rng.keys(rng.keys(self._seeds[worlds], 0), int(Stream.OUTSIDE)), self._episodes[worlds])
        self._episodes[worlds] += 1
        self.game.reset(worlds, keys)
        self._just_reset[worlds] = True

    def act(self, actions: Sequence[NDArray[Any]]) -> None:
        """Carry out every agent's action, (worlds, agents, *action) for each group, and end the turn."""
        for g, group in enumerate(self.groups):
            self.game.act(g, 0, group.size, actions[g])
        self.game.end()

    def observe(self) -> list[StepResult]:
        """Begin the next turn; returns a result for each group."""
        if not self.game.over.all():
            self.game.begin()
        results = [self._observe_group(g) for g in range(len(self.groups))]
        self._just_reset[:] = False
        return results

    def _observe_group(self, g: int) -> StepResult:
        game, group = self.game, self.groups[g]
        signals = game.signals[g]
        for array in (signals.rewards, signals.terminated, signals.truncated):
            array[self._just_reset] = 0  # it happened before the first observation, so it belongs to no action
        rewards, terminated = signals.rewards.copy(), signals.terminated.copy()
        truncated = (signals.truncated | game.over[:, None]) & ~terminated
        signals.forget(0, group.size)
        obs = np.empty((game.worlds, group.size, *group.obs_shape), group.obs_dtype)
        game.observe(g, 0, group.size, obs)
        mask = None
        if group.masked:
            allowed = np.ones((game.worlds, group.size, group.actions), np.bool_)
            game.mask(g, 0, group.size, allowed)
            mask = allowed.astype(np.int8)
        return StepResult(obs, mask, rewards, terminated, truncated, signals.alive.copy(), signals.metrics.copy())

    def render(self, world: int = 0) -> Any:
        """One world as a picture (rgb_array) or as text (ansi); None without a render mode."""
        if self.render_mode is None:
            return None
        return self.game.text(world) if self.render_mode == "ansi" else self.game.render(world)


def observation_space(group: Group) -> spaces.Space[Any]:
    """The observation space of a group's agents; if the group is masked, a Dict with the observation and the mask."""
    dtype: Any = np.dtype(group.obs_dtype)
    low, high = group.low, group.high
    if dtype.kind in "iu":
        low, high = max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max)
    elif dtype.kind == "b":
        low, high = 0, 1
    lowest, highest = (np.full(group.obs_shape, int(b) if dtype.kind in "iub" else b, dtype) for b in (low, high))
    box: spaces.Space[Any] = spaces.Box(lowest, highest, group.obs_shape, dtype.type)
    if not group.masked:
        return box
    return spaces.Dict({OBSERVATION: box, MASK: spaces.Box(0, 1, (group.actions,), np.int8)})


def observation_at(result: StepResult, index: Any) -> Any:
    """The observation at an index of `obs`, e.g. (world, agent), together with its mask if there is one."""
    obs = result.obs[index]
    return obs if result.mask is None else {OBSERVATION: obs, MASK: result.mask[index]}


def _to_64_bits(seed: int) -> int:
    """A seed of any size, reduced to 64 bits."""
    return int(seed) % 2**64


def checked_actions(actions: NDArray[Any], worlds: int, group: Group) -> NDArray[Any]:
    """Actions of one agent as the game takes them, (worlds, 1, *action).

    They are checked here because compiled games use them as array indices without a check.
    """
    if group.action_space is not None:
        own = actions.astype(group.action_dtype) if actions.dtype.kind in "iuf" else actions
        if actions.shape != (worlds, *group.action_shape) or not actions_fit(own, group):
            raise ConfigError(f"an action is {actions}: give one of {group.action_space}")
        return own[:, None]
    if actions.shape != (worlds,) or actions.dtype.kind not in "iu":
        raise ConfigError(f"actions are {actions.dtype} of shape {actions.shape}: give {worlds} whole numbers")
    if actions.min() < 0 or actions.max() >= group.actions:
        wrong = actions[(actions < 0) | (actions >= group.actions)][0]
        raise ConfigError(f"an action is {wrong}: give numbers from 0 to {group.actions - 1}")
    return actions.astype(np.int64)[:, None]
