"""Sorrel's environments as they are: world, entities and agents are its own, our learners its agents' models.

An agent's turn is its own `transition`: it sees by `pov`, asks its model, does `act` and gives its model's memory the
reward. Where the model was sit `Reins`. The environment's turn is its own `take_turn` with the agents held back until
they are asked, so entities come first; what a `take_turn` of one's own does after the agents, it does before them here.

An episode starts from the environment as it was made, then reset: what Sorrel's `reset` leaves as it is (in Tag, who
is it) cannot depend on the episode before. The models it was made with are let go.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.global_generators import GlobalGenerators
from remuda.adapters.inbound.worlds import Simulators, World
from remuda.core import rng
from remuda.core.errors import ConfigError, GameError
from remuda.core.game import Game, GameSpec, Group


def recognise(made: Any) -> bool:
    """Whether it is one of Sorrel's environments, of whatever class."""
    return any((kind.__module__, kind.__name__) == ("sorrel.environment", "Environment") for kind in type(made).__mro__)


def build(name: str, made: Any, make: Callable[[], Any], turns: int | None, worlds: int) -> Game:
    """Worlds of an environment, each made when it is first played; `made` shows the shape of all."""
    groups = _groups(name, made)
    spec = GameSpec(name, groups, turns or _turns(name, made), in_turn=True)
    return Simulators(spec, [Sorrel(make, spec.agents) for _ in range(worlds)])


def _turns(name: str, made: Any) -> int:
    """The most turns an episode has, where Sorrel's own experiments look for it."""
    experiment = getattr(getattr(made, "config", None), "experiment", None)
    turns = getattr(experiment, "max_turns", None)
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"{name} has no config.experiment.max_turns: say how long an episode is, e.g. turns=100")
    return turns


def _groups(name: str, made: Any) -> tuple[Group, ...]:
    """Neighbours that see and do the same, in the order in which they act."""
    if not made.agents:
        raise ConfigError(f"{name} has no agents: its setup_agents() should make some")
    shapes = [_shape(name, made, i) for i in range(len(made.agents))]
    runs = [(shape, len(list(run))) for shape, run in groupby(shapes)]
    groups = []
    for i, ((kind, inputs, actions), size) in enumerate(runs):
        alone = sum(shape[0] == kind for shape, _ in runs) == 1
        groups.append(Group(kind if alone else f"{kind}_{i}", size, inputs, np.float32, actions))
    return tuple(groups)


def _shape(name: str, made: Any, agent: int) -> tuple[str, tuple[int, ...], int]:
    """What kind of agent it is, the shape of what it sees, and how many actions it has."""
    own = made.agents[agent]
    try:
        with GlobalGenerators().lent():
            inputs = _numbers(own.pov(made.world)).shape
    except (TypeError, ValueError) as error:
        raise ConfigError(f"agent {agent} of {name} sees no array of numbers: change its pov() ({error})") from error
    actions = getattr(getattr(own, "action_spec", None), "n_actions", None)
    if not isinstance(actions, int):
        raise ConfigError(f"agent {agent} of {name} has no action_spec.n_actions: give it an ActionSpec")
    return type(own).__name__, inputs, actions


def _numbers(state: Any) -> NDArray[np.float32]:
    """What an agent sees, without the axis in front that Sorrel's models want."""
    array = np.asarray(state, np.float32)
    return array[0] if array.ndim > 1 and len(array) == 1 else array


class Reins:
    """Sits where an agent's model and its memory were: gives it our action, takes what it wants remembered."""

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
        """What our learner chose."""
        return self.action

    def add(self, state: Any, action: Any, reward: Any, done: Any, **more: Any) -> None:
        """What the model would learn from."""
        self.reward += float(reward)
        self.done |= bool(done)

    def current_state(self) -> Any:
        """Frames before this one; whoever stacks them does so in vain."""
        return self._frames

    def add_empty(self) -> None:
        """No gap between games is needed."""

    def reset(self) -> None:
        """Nothing is kept."""


class Sorrel(World):
    """One environment of Sorrel's."""

    def __init__(self, make: Callable[[], Any], agents: int) -> None:
        super().__init__(agents)
        self._make = make
        self._fresh: Any = None  # as it was made
        self._env: Any = None  # as it is played
        self._chance = GlobalGenerators()
        self._seen: dict[int, Any] = {}

    def reset(self, seed: int) -> None:
        """Forget everything, then its own reset."""
        if self._fresh is None:
            self._fresh = self._made()
        self._env = copy.deepcopy(self._fresh)
        self._chance.seed(seed)
        with self._chance.lent():
            self._env.reset()
        self._seen.clear()
        self.alive[:] = True
        self.over = False

    def begin(self) -> None:
        """Its own turn, with the agents held back."""
        self._seen.clear()
        for agent in self._env.agents:
            agent.transition = _wait
        try:
            with self._chance.lent():
                self._env.take_turn()
        finally:
            for agent in self._env.agents:
                del agent.transition

    def observe(self, agent: int) -> NDArray[np.float32]:
        """Its own point of view."""
        with self._chance.lent():
            self._seen[agent] = self._env.agents[agent].pov(self._env.world)
        return _numbers(self._seen[agent])

    def act(self, agent: int, action: int) -> None:
        """Its own transition, which need not look again at what was just seen."""
        rider = self._env.agents[agent]
        reins = rider.model
        reins.action, reins.reward, reins.done = action, 0.0, False
        if agent in self._seen:
            seen = self._seen.pop(agent)
            rider.pov = lambda world: seen
        try:
            with self._chance.lent():
                rider.transition(self._env.world)
        finally:
            rider.__dict__.pop("pov", None)
        self.rewards[agent] += reins.reward
        self.terminated[agent] |= reins.done

    def end(self) -> None:
        """The world may be done, where that ends the game."""
        if self._env.stop_if_done and self._env.world.is_done:
            self.terminated[:] = True
            self.over = True

    def render(self) -> NDArray[np.uint8] | None:
        """Sorrel's own sprites, one layer upon the other."""
        try:
            draw = import_module("sorrel.utils.visualization")
        except ImportError:
            return None
        return np.asarray(draw.image_from_array(draw.render_sprite(self._env.world)).convert("RGB"), np.uint8)

    def _made(self) -> Any:
        """A new environment, the same whenever it is made, with our reins on its agents."""
        self._chance.seed(0)
        with self._chance.lent(), rng.torch_seeded(np.uint64(0)):
            env = self._make()
        if len(env.agents) != len(self.alive):
            raise GameError(
                f"the environment was made with {len(env.agents)} agents, and before with {len(self.alive)}"
            )
        for agent in env.agents:
            agent.model = Reins(agent.model)
        return env


def _wait(world: Any) -> None:
    """Stands for an agent's transition until it is asked."""
