"""Sorrel environments as games: Sorrel's own world, entities and agents, played by our policies.

A Sorrel agent takes its turn in `transition`: it observes with `pov`, asks its model for an action, carries it out with
`act` and stores the reward in its model's memory. We replace the model by a `ModelProxy`, which returns our action and
records the reward.

The environment's `take_turn` moves the entities first and the agents after them. We call it with `transition` disabled,
then call each agent's `transition` when its action is known. If a subclass does something in `take_turn` after the
agents have moved, it happens before them here.

Every episode starts from a copy of the environment as it was created, then reset. So what Sorrel's `reset` does not
reset (in Tag, which agent is "it") cannot carry over from the episode before. The models the environment was created
with are dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.global_random_state import GlobalRandomState
from remuda.adapters.inbound.worlds import SimulatorGame, World
from remuda.core import rng
from remuda.core.errors import ConfigError, GameError
from remuda.core.game import Game, GameSpec, Group


def is_sorrel_env(env: Any) -> bool:
    """Whether it is an instance of Sorrel's Environment or of a subclass; Sorrel is not imported for this."""
    return is_sorrel_class(type(env))


def is_sorrel_class(kind: type) -> bool:
    """Whether it is Sorrel's Environment or a subclass."""
    return any((own.__module__, own.__name__) == ("sorrel.environment", "Environment") for own in kind.__mro__)


def build(name: str, env: Any, make: Callable[[], Any], turns: int | None, worlds: int) -> Game:
    """Worlds of an environment, each created when it is first played; `env` shows the shape of all."""
    groups = _groups(name, env)
    spec = GameSpec(name, groups, turns or _max_turns(name, env), in_turn=True)
    return SimulatorGame(spec, [SorrelWorld(make, spec.agents) for _ in range(worlds)])


def _max_turns(name: str, env: Any) -> int:
    """The most turns of an episode, from where Sorrel's own experiments read it."""
    experiment = getattr(getattr(env, "config", None), "experiment", None)
    turns = getattr(experiment, "max_turns", None)
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"{name} has no config.experiment.max_turns: say how long an episode is, e.g. turns=100")
    return turns


def _groups(name: str, env: Any) -> tuple[Group, ...]:
    """Neighbouring agents of the same class and shapes, in the order in which they act."""
    if not env.agents:
        raise ConfigError(f"{name} has no agents: its setup_agents() should make some")
    shapes = [_shape(name, env, i) for i in range(len(env.agents))]
    runs = [(shape, len(list(run))) for shape, run in groupby(shapes)]
    groups = []
    for i, ((kind, inputs, actions), size) in enumerate(runs):
        unique = sum(shape[0] == kind for shape, _ in runs) == 1
        groups.append(Group(kind if unique else f"{kind}_{i}", size, inputs, np.float32, actions))
    return tuple(groups)


def _shape(name: str, env: Any, number: int) -> tuple[str, tuple[int, ...], int]:
    """An agent's class, the shape of its observations, and how many actions it has."""
    agent = env.agents[number]
    try:
        with GlobalRandomState().installed():
            inputs = _as_array(agent.pov(env.world)).shape
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"agent {number} of {name} does not observe an array of numbers: change its pov() ({error})"
        ) from error
    actions = getattr(getattr(agent, "action_spec", None), "n_actions", None)
    if not isinstance(actions, int):
        raise ConfigError(f"agent {number} of {name} has no action_spec.n_actions: give it an ActionSpec")
    return type(agent).__name__, inputs, actions


def _as_array(state: Any) -> NDArray[np.float32]:
    """An observation without the leading axis of length 1 that Sorrel's models want."""
    array = np.asarray(state, np.float32)
    return array[0] if array.ndim > 1 and len(array) == 1 else array


class ModelProxy:
    """Replaces an agent's model and that model's memory: returns our action, and records the reward."""

    def __init__(self, model: Any) -> None:
        self.input_size = getattr(model, "input_size", None)
        self.action_space = getattr(model, "action_space", None)
        self.epsilon = 0.0
        self.memory = self
        self.extra_data: dict[str, Any] = {}
        self.action = 0
        self.reward = 0.0
        self.done = False
        memory = getattr(model, "memory", None)
        self._frames = np.zeros_like(memory.current_state()) if memory is not None else np.zeros(0)

    def take_action(self, state: Any) -> int:
        """The action that our policy chose."""
        return self.action

    def add(self, state: Any, action: Any, reward: Any, done: Any, **more: Any) -> None:
        """Record what the model would have learned from."""
        self.reward += float(reward)
        self.done |= bool(done)

    def current_state(self) -> Any:
        """Earlier frames, all zero: agents that stack them before asking the model do not change our action."""
        return self._frames

    def add_empty(self) -> None:
        """Do nothing: no gap between games is needed."""

    def reset(self) -> None:
        """Do nothing: the proxy keeps nothing."""


class SorrelWorld(World):
    """One environment of Sorrel."""

    def __init__(self, make: Callable[[], Any], agents: int) -> None:
        super().__init__(agents)
        self._make = make
        self._template: Any = None  # the environment as it was created
        self._env: Any = None  # the copy that is played
        self._random_state = GlobalRandomState()
        self._last_obs: dict[int, Any] = {}

    def reset(self, seed: int) -> None:
        """Copy the environment as it was created, and call its own reset."""
        if self._template is None:
            self._template = self._create()
        self._env = copy.deepcopy(self._template)
        self._random_state.seed(seed)
        with self._random_state.installed():
            self._env.reset()
        self._last_obs.clear()
        self.alive[:] = True
        self.over = False

    def begin(self) -> None:
        """Call the environment's take_turn while its agents do nothing."""
        self._last_obs.clear()
        for agent in self._env.agents:
            agent.transition = _no_transition
        try:
            with self._random_state.installed():
                self._env.take_turn()
        finally:
            for agent in self._env.agents:
                del agent.transition

    def observe(self, agent: int) -> NDArray[np.float32]:
        """The agent's own point of view."""
        with self._random_state.installed():
            self._last_obs[agent] = self._env.agents[agent].pov(self._env.world)
        return _as_array(self._last_obs[agent])

    def act(self, agent: int, action: int) -> None:
        """Call the agent's transition; it is given the observation just made instead of computing it again."""
        sorrel_agent = self._env.agents[agent]
        proxy = sorrel_agent.model
        proxy.action, proxy.reward, proxy.done = action, 0.0, False
        if agent in self._last_obs:
            obs = self._last_obs.pop(agent)
            sorrel_agent.pov = lambda world: obs
        try:
            with self._random_state.installed():
                sorrel_agent.transition(self._env.world)
        finally:
            sorrel_agent.__dict__.pop("pov", None)
        self.rewards[agent] += proxy.reward
        self.terminated[agent] |= proxy.done

    def end(self) -> None:
        """Terminate every agent if the world is done and the environment stops then."""
        if self._env.stop_if_done and self._env.world.is_done:
            self.terminated[:] = True
            self.over = True

    def draws(self) -> bool:
        """Whether this Sorrel has its drawing code."""
        try:
            import_module("sorrel.utils.visualization")
        except ImportError:
            return False
        return True

    def render(self) -> NDArray[np.uint8] | None:
        """Sorrel's own sprites, all layers."""
        if not self.draws():
            return None
        draw = import_module("sorrel.utils.visualization")
        return np.asarray(draw.image_from_array(draw.render_sprite(self._env.world)).convert("RGB"), np.uint8)

    def _create(self) -> Any:
        """A new environment, always the same one, with proxies for its agents' models."""
        self._random_state.seed(0)
        with self._random_state.installed(), rng.torch_seeded(np.uint64(0)):
            env = self._make()
        if len(env.agents) != len(self.alive):
            raise GameError(
                f"the environment was created with {len(env.agents)} agents, but before with {len(self.alive)}"
            )
        for agent in env.agents:
            agent.model = ModelProxy(agent.model)
        return env


def _no_transition(world: Any) -> None:
    """Replaces an agent's transition during take_turn."""
