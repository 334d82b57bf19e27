"""PettingZoo's environments as games: parallel ones, and those in which agents act one after another (AEC).

(`parallel_env` is the other way: our games as PettingZoo environments.)

Agents are slots, one for each of `possible_agents`: who dies or leaves is not alive and enters no batch, who comes
back is. Agents that see and do the same are a group; every one is still its own learner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.spaces import FlatSpace, count_actions, mask_of
from remuda.adapters.inbound.worlds import Simulators, World, longest
from remuda.core.errors import ConfigError
from remuda.core.game import Game, GameSpec, Group

Slot = tuple[str, FlatSpace, int]
"""An agent's name, how it sees, and the number of its first action."""


def build(name: str, made: Any, make: Callable[[], Any], turns: int | None, worlds: int) -> Game:
    """Worlds of an environment; the first is already made."""
    in_turn = not hasattr(made, "parallel_env") and hasattr(made, "agent_iter")
    groups, slots = _groups(name, made)
    spec = GameSpec(name, groups, turns or longest(made), in_turn=in_turn)
    kind = InTurn if in_turn else ParallelSimulator
    return Simulators(spec, [kind(env, slots) for env in [made, *(make() for _ in range(worlds - 1))]])


def _groups(name: str, env: Any) -> tuple[tuple[Group, ...], list[Slot]]:
    """Agents by what they see and do, in the order of their first; and all of them in the herd's order."""
    if not getattr(env, "possible_agents", None):
        raise ConfigError(f"{name} has no possible_agents: list there every agent that may ever play")
    masks = _masks_in_infos(env)
    alike: dict[tuple[Any, ...], list[Slot]] = {}
    for agent in env.possible_agents:
        who = f"agent {agent!r} of {name}"
        inputs, space = FlatSpace(env.observation_space(agent), who), env.action_space(agent)
        actions = count_actions(space, who)
        shape = (inputs.shape, inputs.dtype, actions, inputs.masked or agent in masks)
        alike.setdefault(shape, []).append((agent, inputs, int(space.start)))
    groups = tuple(
        Group(_common(own), len(own), shape, dtype, actions, masked=masked)
        for (shape, dtype, actions, masked), own in alike.items()
    )
    return groups, [slot for own in alike.values() for slot in own]


def _masks_in_infos(env: Any) -> set[str]:
    """Agents whose masks come beside their observations."""
    env.reset(seed=0)
    infos = getattr(env, "infos", None) or {}
    return {agent for agent, info in infos.items() if mask_of(None, info) is not None}


def _common(slots: Sequence[Slot]) -> str:
    """What the agents of a group are called: adversary for adversary_0 and adversary_1."""
    return slots[0][0].rstrip("0123456789").rstrip("_") or slots[0][0]


class Zoo(World):
    """What both kinds have in common."""

    def __init__(self, env: Any, slots: Sequence[Slot]) -> None:
        super().__init__(len(slots))
        self.env = env
        self.slots = slots
        self.numbers = {name: number for number, (name, _, _) in enumerate(slots)}

    def render(self) -> NDArray[np.uint8] | None:
        """The environment's, if it was made with render_mode=rgb_array."""
        return self.env.render() if getattr(self.env, "render_mode", None) == "rgb_array" else None


class ParallelSimulator(Zoo):
    """All agents act at once."""

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self.seen, self.infos = self.env.reset(seed=seed)
        self.actions: dict[str, int] = {}
        self._look_round()

    def observe(self, agent: int) -> NDArray[Any]:
        """Its observation; the last one, if it is dead; zeros, if it never had one."""
        name, inputs, _ = self.slots[agent]
        return inputs.see(self.seen[name]) if name in self.seen else np.zeros(inputs.shape, inputs.dtype)

    def mask(self, agent: int) -> Any:
        """Which actions are allowed to it."""
        name = self.slots[agent][0]
        mask = mask_of(self.seen[name], self.infos.get(name, {}))
        return True if mask is None else mask

    def act(self, agent: int, action: int) -> None:
        """Note it."""
        name, _, start = self.slots[agent]
        self.actions[name] = action + start

    def end(self) -> None:
        """Everybody acts."""
        seen, rewards, terminated, truncated, self.infos = self.env.step(self.actions)
        self.actions = {}
        self.seen.update(seen)
        for name, number in self.numbers.items():
            self.rewards[number] += rewards.get(name, 0.0)
            self.terminated[number] |= bool(terminated.get(name, False))
            self.truncated[number] |= bool(truncated.get(name, False))
        self._look_round()

    def _look_round(self) -> None:
        present = set(self.env.agents)
        self.alive[:] = [name in present for name, _, _ in self.slots]
        self.over = not present


class InTurn(Zoo):
    """One agent acts after another, in the environment's order.

    An agent whose turn it is not when the herd comes to it waits, and is not alive meanwhile.
    """

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self.env.reset(seed=seed)
        self.steps = 0
        self._kept: dict[int, tuple[int, Any]] = {}
        self._look_round()

    def _raw(self, agent: int) -> Any:
        """What the environment shows it now; what it saw last, if it has left."""
        name = self.slots[agent][0]
        step, kept = self._kept.get(agent, (-1, None))
        if step != self.steps and (name in self.env.agents or kept is None):
            kept = self.env.observe(name)
            self._kept[agent] = self.steps, kept
        return kept

    def observe(self, agent: int) -> NDArray[Any]:
        """What it sees."""
        return self.slots[agent][1].see(self._raw(agent))

    def mask(self, agent: int) -> Any:
        """Which actions are allowed to it."""
        mask = mask_of(self._raw(agent), self.env.infos.get(self.slots[agent][0], {}))
        return True if mask is None else mask

    def act(self, agent: int, action: int) -> None:
        """Act, and let the dead go."""
        self.env.step(action + self.slots[agent][2])
        self.steps += 1
        for name, reward in self.env.rewards.items():
            self.rewards[self.numbers[name]] += reward
        for flags, own in ((self.env.terminations, self.terminated), (self.env.truncations, self.truncated)):
            for name, ended in flags.items():
                own[self.numbers[name]] |= bool(ended)
        self._look_round()

    def _look_round(self) -> None:
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        self.over = not env.agents
        self.alive[:] = False
        if env.agents:
            self.alive[self.numbers[env.agent_selection]] = True
