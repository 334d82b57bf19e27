"""Gymnasium environments as games: one agent, or several that each play their own copy.

For the other direction, our games as Gymnasium environments, see `adapters/outbound/gymnasium.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.spaces import ActionSpace, FlatSpace, mask_of
from remuda.adapters.inbound.worlds import SimulatorGame, World, reset_env, reward_of, spec_with_limit
from remuda.core.errors import ConfigError, GameError
from remuda.core.game import Game, GameSpec, Group
from remuda.core.scene import agent_colour

MAX_SHOWN = 4
"""Agents whose environments a picture shows."""


def build(name: str, env: Any, make: Callable[[], Any], turns: int | None, worlds: int, agents: int) -> Game:
    """Worlds of an environment: `env` is the first copy, `make` creates the others."""
    inputs = FlatSpace(_space(name, env, "observation_space"), name)
    actions = ActionSpace(_space(name, env, "action_space"), name)
    obs, info = _reset(env, 0)
    masked = mask_of(obs, info) is not None
    group = Group(
        "all", agents, inputs.shape, inputs.dtype, low=inputs.low, high=inputs.high, masked=masked,
        action_space=actions.declared, raw_space=inputs.raw_space,
    )  # fmt: skip
    spec = spec_with_limit(GameSpec(name, (group,), 0), turns, env)
    envs = iter([env, *(make() for _ in range(worlds * agents - 1))])
    each = [[next(envs) for _ in range(agents)] for _ in range(worlds)]
    return SimulatorGame(spec, [GymnasiumWorld(own, inputs, actions) for own in each])


def _space(name: str, env: Any, attribute: str) -> Any:
    try:
        return getattr(env, attribute)
    except AttributeError as error:
        if error.name != attribute:  # raised by a property
            raise
        raise ConfigError(
            f"{name} has no {attribute}: set it to one of gymnasium.spaces, in its class or __init__"
        ) from error


def _reset(env: Any, seed: int) -> tuple[Any, Mapping[str, Any]]:
    """Begin an episode of an environment."""
    begun = reset_env(env, seed)
    if not (isinstance(begun, tuple | list) and len(begun) == 2 and isinstance(begun[1], Mapping)):
        raise GameError(f"reset returned {_told(begun)}: it should return two values, (observation, info)")
    return begun[0], begun[1]


def _told(returned: Any) -> str:
    """What a method returned, in a few words."""
    many = isinstance(returned, tuple | list)
    return f"{len(returned)} values" if many else f"one value of type {type(returned).__name__}"


class GymnasiumWorld(World):
    """A world in which every agent has its own environment."""

    def __init__(self, envs: Sequence[Any], inputs: FlatSpace, actions: ActionSpace) -> None:
        super().__init__(len(envs))
        self.envs = envs
        self.inputs = inputs
        self.actions = actions

    def reset(self, seed: int) -> None:
        """Begin an episode in every environment, each with its own seed."""
        begun = [_reset(env, seed + i) for i, env in enumerate(self.envs)]
        self.last_obs, self.infos = [obs for obs, _ in begun], [info for _, info in begun]
        self.alive[:] = True
        self.running = len(self.envs)  # environments whose episode has not ended
        self.over = False

    def observe(self, agent: int) -> NDArray[Any]:
        """The last observation of the agent's environment."""
        return self.inputs.as_array(self.last_obs[agent])

    def mask(self, agent: int) -> Any:
        """Which actions the agent may take."""
        mask = mask_of(self.last_obs[agent], self.infos[agent])
        return True if mask is None else mask

    def act(self, agent: int, action: Any) -> None:
        """Step the agent's environment."""
        stepped = self.envs[agent].step(self.actions.for_env(action))
        try:
            obs, reward, terminated, truncated, info = stepped
        except (TypeError, ValueError):
            raise GameError(
                f"step returned {_told(stepped)}: it should return five values, observation, reward, terminated, "
                "truncated and info"
            ) from None
        self.last_obs[agent], self.infos[agent] = obs, info
        self.rewards[agent] += reward_of(reward)
        if terminated or truncated:
            self.terminated[agent], self.truncated[agent] = terminated, truncated
            self.alive[agent] = False
            self.running -= 1
            self.over = not self.running

    def draws(self) -> bool:
        """Whether the environment was made with render_mode=rgb_array."""
        return bool(self.envs[0].render_mode == "rgb_array")

    def render(self) -> NDArray[np.uint8] | None:
        """The environments of the first few agents, side by side, in frames of their colours, if they draw."""
        if not self.draws():
            return None
        pictures = [np.array(env.render()) for env in self.envs[:MAX_SHOWN]]
        if len(self.envs) > 1:
            for number, picture in enumerate(pictures):
                _frame(picture, agent_colour(number))
        return np.concatenate(pictures, axis=1)


def _frame(picture: NDArray[np.uint8], colour: str) -> None:
    """Draw a frame, so that one environment is told from the next."""
    if picture.ndim != 3 or picture.shape[2] != 3:
        return
    width = max(1, min(picture.shape[:2]) // 50)
    inside = picture[width:-width, width:-width].copy()
    picture[:] = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    picture[width:-width, width:-width] = inside
