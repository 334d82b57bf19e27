"""PettingZoo environments as games: parallel ones, and those in which agents act one after another (AEC).

For the other direction, our games as PettingZoo environments, see `adapters/outbound/pettingzoo.py`.

Every one of `possible_agents` is an agent of the herd. An agent that dies or leaves is not alive and enters no batch;
if it comes back without having died, its life goes on. Agents with equal observation and action spaces form a group;
each is still its own learner. What `state()` of the environment returns is the privileged state of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.spaces import ActionSpace, FlatSpace, mask_of
from remuda.adapters.inbound.worlds import SimulatorGame, World, reset_env, reward_of, spec_with_limit
from remuda.core.errors import ConfigError, GameError
from remuda.core.game import Game, GameSpec, Group

MAX_NAMED = 4
"""Agents that a remark names."""


class PettingZooAgent(NamedTuple):
    """One of an environment's possible agents."""

    name: str
    inputs: FlatSpace
    actions: ActionSpace


def build(name: str, env: Any, make: Callable[[], Any], turns: int | None, worlds: int) -> Game:
    """Worlds of an environment: `env` is the first, `make` creates the others."""
    in_turn = not hasattr(env, "parallel_env") and hasattr(env, "agent_iter")
    groups, agents = _groups(name, env)
    spec = spec_with_limit(GameSpec(name, groups, 0, in_turn=in_turn), turns, env)
    kind = AecWorld if in_turn else ParallelWorld
    return SimulatorGame(spec, [kind(each, agents) for each in [env, *(make() for _ in range(worlds - 1))]])


def _groups(name: str, env: Any) -> tuple[tuple[Group, ...], list[PettingZooAgent]]:
    """Agents grouped by their spaces, and all agents in the herd's order."""
    if not getattr(env, "possible_agents", None):
        raise ConfigError(f"{name} has no possible_agents: list there every agent that may ever play")
    if len(set(env.possible_agents)) < len(env.possible_agents):
        raise ConfigError(f"{name} lists an agent twice in possible_agents: {list(env.possible_agents)}")
    masks = _masks_in_infos(env)
    alike: dict[tuple[Any, ...], list[PettingZooAgent]] = {}
    for agent in env.possible_agents:
        who = f"agent {agent!r} of {name}"
        inputs = FlatSpace(_space(name, env, "observation_space", agent), who)
        actions = ActionSpace(_space(name, env, "action_space", agent), who)
        shape = (inputs.shape, inputs.dtype, inputs.masked or agent in masks, actions.key)
        alike.setdefault(shape, []).append(PettingZooAgent(agent, inputs, actions))
    state = _state_of(env)
    shown: dict[str, Any] = {} if state is None else {"state_shape": state.shape, "state_dtype": state.dtype}
    groups = tuple(
        Group(
            _common_name(agents),
            len(agents),
            shape,
            dtype,
            masked=masked,
            low=min(agent.inputs.low for agent in agents),
            high=max(agent.inputs.high for agent in agents),
            action_space=agents[0].actions.declared,
            raw_space=_common_space(agents),
            **shown,
        )
        for (shape, dtype, masked, _), agents in alike.items()
    )
    return groups, [agent for agents in alike.values() for agent in agents]


def _space(name: str, env: Any, method: str, agent: str) -> Any:
    """A space of an agent. PettingZoo's own methods look it up in `observation_spaces` and `action_spaces`."""
    try:
        found = getattr(env, method)
        if callable(found):
            return found(agent)
    except AttributeError as error:
        if error.name not in (method, f"{method}s"):
            raise
    raise ConfigError(f"{name} has no method {method}: write {method}(self, agent), which returns the agent's space")


def _common_space(agents: list[PettingZooAgent]) -> Any:
    """The space that all agents of a group observe, where it is flattened."""
    first, *others = (agent.inputs.raw_space for agent in agents)
    return first if all(other == first for other in others) else None


def _masks_in_infos(env: Any) -> set[str]:
    """Agents whose masks come in `infos`, not in their observations."""
    reset_env(env, 0)
    infos = getattr(env, "infos", None) or {}
    return {agent for agent, info in infos.items() if mask_of(None, info) is not None}


def _state_of(env: Any) -> NDArray[Any] | None:
    """The privileged state of an environment that was reset; None if it has none."""
    try:
        state = np.asarray(env.state())
    except (NotImplementedError, AttributeError):  # by PettingZoo's base classes, and by wrappers of such environments
        return None
    return None if state.dtype.kind not in "biuf" else state.astype(np.float32) if state.dtype.kind == "f" else state


def _common_name(agents: Sequence[PettingZooAgent]) -> str:
    """The name of a group: adversary for adversary_0 and adversary_1, agent for those that have none in common."""
    names = {_without_number(str(agent.name)) for agent in agents}  # PettingZoo takes anything hashable for a name
    return names.pop() if len(names) == 1 else "agent"


def _without_number(name: str) -> str:
    return name.rstrip("0123456789").rstrip("_") or name


class PettingZooWorld(World):
    """What parallel and AEC environments have in common."""

    def __init__(self, env: Any, agents: Sequence[PettingZooAgent]) -> None:
        super().__init__(len(agents))
        self.env = env
        self.agents = agents
        self.numbers = {agent.name: number for number, agent in enumerate(agents)}
        self._last_state: Any = 0

    def state(self) -> Any:
        """The environment's state; the last one, if every agent has left."""
        if self.env.agents:
            self._last_state = self.env.state()
        return self._last_state

    def draws(self) -> bool:
        """Whether the environment was made with render_mode=rgb_array."""
        return getattr(self.env, "render_mode", None) == "rgb_array"

    def render(self) -> NDArray[np.uint8] | None:
        """The environment's picture, if it draws any."""
        return self.env.render() if self.draws() else None


class ParallelWorld(PettingZooWorld):
    """A parallel environment: all agents act at once, when the turn ends."""

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        obs, self.infos = reset_env(self.env, seed)
        self.last_obs = dict(obs)  # a copy: the environment may keep the one that it gave us
        self.actions: dict[str, Any] = {}
        self._turn = 0
        self._update_alive()
        self._seen, self._flagged = self.alive.copy(), np.zeros(len(self.agents), np.bool_)

    def observe(self, agent: int) -> NDArray[Any]:
        """The agent's last observation; zeros if it never had one."""
        name, inputs, _ = self.agents[agent]
        return inputs.as_array(self.last_obs[name]) if name in self.last_obs else np.zeros(inputs.shape, inputs.dtype)

    def mask(self, agent: int) -> Any:
        """Which actions the agent may take."""
        name = self.agents[agent].name
        mask = mask_of(self.last_obs[name], self.infos.get(name, {}))
        return True if mask is None else mask

    def act(self, agent: int, action: Any) -> None:
        """Keep the action until the turn ends."""
        name, _, actions = self.agents[agent]
        self.actions[name] = actions.for_env(action)

    def end(self) -> None:
        """Step the environment with all actions."""
        obs, rewards, terminated, truncated, self.infos = self.env.step(self.actions)
        self._remark_on_keys(obs, rewards=rewards, terminations=terminated, truncations=truncated)
        self.actions = {}
        self.last_obs.update(obs)
        missing = [name for name in self.env.agents if name not in obs and name in self.numbers]
        if missing:  # it would act on what it saw before
            raise GameError(f"step() returned no observation of {missing[0]!r}, which is among `agents`")
        for name, number in self.numbers.items():
            self.rewards[number] += reward_of(rewards.get(name, 0.0))
            self.terminated[number] |= bool(terminated.get(name, False))
            self.truncated[number] |= bool(truncated.get(name, False))
        self._update_alive()
        self._seen |= self.alive
        self._flagged |= self.terminated | self.truncated
        if self.over:
            self._remark_on_end()
        self._turn += 1

    def _remark_on_end(self) -> None:
        """Note agents that were never said to have ended, though the world is over."""
        left = [repr(self.agents[i].name) for i in np.flatnonzero(self._seen & ~self._flagged).tolist()]
        if left:
            who = ", ".join(left[:MAX_NAMED]) + (f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else "")
            self.remarks.setdefault(
                "end",
                f"the list of agents became empty in turn {self._turn}, but no flag says that {who} ended: an empty "
                "list ends the episode; keep somebody in it while all are away, or set the flags",
            )

    def _remark_on_keys(self, obs: Mapping[str, Any], **each: Mapping[str, Any]) -> None:
        """Note agents that `step` names and nobody knows, and those that acted, stay, and are left out."""
        if not obs.keys() <= self.numbers.keys():
            strangers = ", ".join(sorted(map(repr, obs.keys() - self.numbers.keys())))
            self.remarks.setdefault(
                "observations",
                f"step returns observations of {strangers}, not among `possible_agents`: they reach nobody",
            )
        for field, given in each.items():
            if len(given) < len(self.actions) and field not in self.remarks:
                missing = sorted(map(repr, self.actions.keys() & {*self.env.agents} - given.keys()))
                if missing:
                    taken = "0" if field == "rewards" else "False"
                    self.remarks[field] = f"step returns no {field} of {', '.join(missing)}: {taken} is assumed"

    def _update_alive(self) -> None:
        present = set(self.env.agents)
        if not present <= self.numbers.keys():
            strangers = sorted(map(repr, present - self.numbers.keys()))
            raise GameError(f"{', '.join(strangers)} is among `agents`, but not among `possible_agents`")
        self.alive[:] = [agent.name in present for agent in self.agents]
        self.over = not present


class AecWorld(PettingZooWorld):
    """An AEC environment: agents act one after another, in the environment's order.

    Only the agent whose turn it is in the environment is alive; the others wait.
    """

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        reset_env(self.env, seed)
        self.steps = 0
        self._last_obs: dict[int, tuple[int, Any]] = {}  # by agent: after how many steps, and what it observed
        self._update_alive()

    def _raw(self, agent: int) -> Any:
        """The agent's observation as the environment gives it; the last one, if the agent has left."""
        name = self.agents[agent].name
        step, obs = self._last_obs.get(agent, (-1, None))
        if step != self.steps and (name in self.env.agents or obs is None):
            obs = self.env.observe(name)
            self._last_obs[agent] = self.steps, obs
        return obs

    def observe(self, agent: int) -> NDArray[Any]:
        """The agent's observation."""
        return self.agents[agent].inputs.as_array(self._raw(agent))

    def mask(self, agent: int) -> Any:
        """Which actions the agent may take."""
        mask = mask_of(self._raw(agent), self.env.infos.get(self.agents[agent].name, {}))
        return True if mask is None else mask

    def act(self, agent: int, action: Any) -> None:
        """Step the environment with the agent's action."""
        self.env.step(self.agents[agent].actions.for_env(action))
        self.steps += 1
        for name, reward in self.env.rewards.items():
            self.rewards[self.numbers[name]] += reward_of(reward)
        for flags, row in ((self.env.terminations, self.terminated), (self.env.truncations, self.truncated)):
            for name, ended in flags.items():
                row[self.numbers[name]] |= bool(ended)
        for name, ended in self.env.truncations.items():
            if ended:
                self._raw(self.numbers[name])  # what it is cut off from; the environment does not show it afterwards
        self._update_alive()

    def _update_alive(self) -> None:
        """Mark the agent that acts next; agents that have ended must first take the step `None`, which removes them."""
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        self.over = not env.agents
        self.alive[:] = False
        if env.agents:
            self.alive[self.numbers[env.agent_selection]] = True
