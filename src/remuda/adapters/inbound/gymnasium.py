"""Gymnasium's environments as games: a herd of one, or of several that each play a copy of their own.

(`WorldEnv` and `WorldsEnv` are the other way: our games as Gymnasium environments.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.spaces import FlatSpace, count_actions, mask_of
from remuda.adapters.inbound.worlds import Simulators, World, longest
from remuda.core.game import Game, GameSpec, Group


def build(name: str, made: Any, make: Callable[[], Any], turns: int | None, worlds: int, agents: int) -> Game:
    """Worlds of an environment; the first is already made."""
    inputs, actions = FlatSpace(made.observation_space, name), count_actions(made.action_space, name)
    obs, info = made.reset(seed=0)
    masked = mask_of(obs, info) is not None
    spec = GameSpec(
        name, (Group("all", agents, inputs.shape, inputs.dtype, actions, masked=masked),), turns or longest(made)
    )
    envs = iter([made, *(make() for _ in range(worlds * agents - 1))])
    return Simulators(spec, [Copies([next(envs) for _ in range(agents)], inputs) for _ in range(worlds)])


class Copies(World):
    """A world in which every agent has an environment to itself."""

    def __init__(self, envs: Sequence[Any], inputs: FlatSpace) -> None:
        super().__init__(len(envs))
        self.envs = envs
        self.inputs = inputs
        self.start = int(envs[0].action_space.start)

    def reset(self, seed: int) -> None:
        """Begin an episode in every copy, each with chance of its own."""
        begun = [env.reset(seed=seed + i) for i, env in enumerate(self.envs)]
        self.seen, self.infos = [obs for obs, _ in begun], [info for _, info in begun]
        self.alive[:] = True
        self.left = len(self.envs)  # copies that go on
        self.over = False

    def observe(self, agent: int) -> NDArray[Any]:
        """What its copy shows."""
        return self.inputs.see(self.seen[agent])

    def mask(self, agent: int) -> Any:
        """Which actions are allowed to it."""
        mask = mask_of(self.seen[agent], self.infos[agent])
        return True if mask is None else mask

    def act(self, agent: int, action: int) -> None:
        """Step its copy."""
        obs, reward, terminated, truncated, info = self.envs[agent].step(action + self.start)
        self.seen[agent], self.infos[agent] = obs, info
        self.rewards[agent] += float(reward)
        if terminated or truncated:
            self.terminated[agent], self.truncated[agent] = terminated, truncated
            self.alive[agent] = False
            self.left -= 1
            self.over = not self.left

    def render(self) -> NDArray[np.uint8] | None:
        """The first copy, if it was made with render_mode=rgb_array."""
        env = self.envs[0]
        return np.asarray(env.render()) if env.render_mode == "rgb_array" else None
