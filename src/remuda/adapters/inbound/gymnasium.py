"""Gymnasium environments as games: one agent, or several that each play their own copy.

For the other direction, our games as Gymnasium environments, see `adapters/outbound/gymnasium.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.spaces import ActionSpace, FlatSpace, mask_of
from remuda.adapters.inbound.worlds import SimulatorGame, World, max_turns_of
from remuda.core.game import Game, GameSpec, Group

MAX_SHOWN = 4
"""Agents whose environments a picture shows."""


def build(name: str, env: Any, make: Callable[[], Any], turns: int | None, worlds: int, agents: int) -> Game:
    """Worlds of an environment: `env` is the first copy, `make` creates the others."""
    inputs, actions = FlatSpace(env.observation_space, name), ActionSpace(env.action_space, name)
    obs, info = env.reset(seed=0)
    masked = mask_of(obs, info) is not None
    group = Group(
        "all", agents, inputs.shape, inputs.dtype, low=inputs.low, high=inputs.high, masked=masked,
        action_space=actions.declared,
    )  # fmt: skip
    spec = GameSpec(name, (group,), turns or max_turns_of(env))
    envs = iter([env, *(make() for _ in range(worlds * agents - 1))])
    each = [[next(envs) for _ in range(agents)] for _ in range(worlds)]
    return SimulatorGame(spec, [GymnasiumWorld(own, inputs, actions) for own in each])


class GymnasiumWorld(World):
    """A world in which every agent has its own environment."""

    def __init__(self, envs: Sequence[Any], inputs: FlatSpace, actions: ActionSpace) -> None:
        super().__init__(len(envs))
        self.envs = envs
        self.inputs = inputs
        self.actions = actions

    def reset(self, seed: int) -> None:
        """Begin an episode in every environment, each with its own seed."""
        begun = [env.reset(seed=seed + i) for i, env in enumerate(self.envs)]
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
        obs, reward, terminated, truncated, info = self.envs[agent].step(self.actions.for_env(action))
        self.last_obs[agent], self.infos[agent] = obs, info
        self.rewards[agent] += float(reward)
        if terminated or truncated:
            self.terminated[agent], self.truncated[agent] = terminated, truncated
            self.alive[agent] = False
            self.running -= 1
            self.over = not self.running

    def draws(self) -> bool:
        """Whether the environment was made with render_mode=rgb_array."""
        return bool(self.envs[0].render_mode == "rgb_array")

    def render(self) -> NDArray[np.uint8] | None:
        """The environments of the first few agents, side by side, if they draw."""
        if not self.draws():
            return None
        return np.concatenate([np.asarray(env.render()) for env in self.envs[:MAX_SHOWN]], axis=1)
