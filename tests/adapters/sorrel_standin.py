"""A stand-in for Sorrel with the interface of the original, and a small game like those in its examples.

Berries grow at random; agents walk along a line and eat them. Agents see each other, so the order of acting matters.
Random numbers come from NumPy's and Python's global generators, as in the original.
"""

# ruff: noqa: NPY002 (Sorrel draws from the global generator)

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from pydantic import Field

from remuda.adapters.inbound import sorrel
from remuda.adapters.inbound.global_random_state import GlobalRandomState
from remuda.core.game import Game, GameEntry, StepCost
from remuda.core.options import Options


class Entity:
    def __init__(self) -> None:
        self.location: tuple[int, ...] | None = None
        self.value = 0.0
        self.passable = False
        self.has_transitions = False
        self.kind = type(self).__name__

    def transition(self, world: Any) -> None:
        pass


class Gridworld:
    def __init__(self, height: int, width: int, layers: int, default_entity: Entity) -> None:
        self.height, self.width, self.layers, self.default_entity = height, width, layers, default_entity
        self.create_world()
        self.total_reward = 0.0
        self.is_done = False

    def create_world(self) -> None:
        self.map = np.empty((self.height, self.width, self.layers), object)
        for index in np.ndindex(self.map.shape):
            self.add(index, type(self.default_entity)())
        self.total_reward = 0.0

    def add(self, location: tuple[int, ...], entity: Entity) -> None:
        entity.location = location
        self.map[location] = entity

    def observe(self, location: tuple[int, ...]) -> Entity:
        found: Entity = self.map[location]
        return found

    def move(self, entity: Entity, location: tuple[int, ...]) -> bool:
        if not self.map[location].passable:
            return False
        assert entity.location is not None
        self.add(entity.location, type(self.default_entity)())
        self.add(location, entity)
        return True


class ActionSpec:
    def __init__(self, actions: list[str]) -> None:
        self.n_actions = len(actions)
        self.actions = dict(enumerate(actions))

    def get_readable_action(self, action: int) -> str:
        return self.actions[action]


class Buffer:
    """A model's memory; raises if the adapter uses or copies it instead of dropping the model."""

    def __init__(self, capacity: int, obs_shape: Sequence[int], n_frames: int = 1) -> None:
        self.states = np.zeros((capacity, *obs_shape), np.float32)
        self.n_frames = n_frames
        self.extra_data: dict[str, Any] = {}

    def current_state(self) -> Any:
        return self.states[: self.n_frames - 1]

    def add(self, obs: Any, action: int, reward: float, done: bool, **more: Any) -> None:
        raise AssertionError("its own model should not learn")

    def __deepcopy__(self, memo: Any) -> Buffer:
        raise AssertionError("its own model should not be copied")


class BaseModel:
    def __init__(self, input_size: Sequence[int], action_space: int, memory_size: int, epsilon: float = 0.0) -> None:
        self.input_size, self.action_space, self.epsilon = input_size, action_space, epsilon
        self.memory = Buffer(memory_size, input_size, n_frames=3)

    def take_action(self, state: Any) -> int:
        raise AssertionError("its own model should not be asked")

    def reset(self) -> None:
        raise AssertionError("its own model should not be reset")


class Agent(Entity):
    def __init__(self, observation_spec: Any, action_spec: ActionSpec, model: BaseModel) -> None:
        super().__init__()
        self.observation_spec, self.action_spec, self.model = observation_spec, action_spec, model
        self.has_transitions = True

    def add_memory(self, state: Any, action: int, reward: float, done: bool) -> None:
        if "positions" in self.model.memory.extra_data:
            self.model.memory.add(state, action, reward, done, positions=self.location)
        else:
            self.model.memory.add(state, action, reward, done)

    def transition(self, world: Any) -> None:
        state = self.pov(world)
        action = self.get_action(state)
        reward = self.act(world, action)
        done = self.is_done(world)
        world.total_reward += reward
        self.add_memory(state, action, reward, done)

    def pov(self, world: Any) -> Any:
        raise NotImplementedError

    def get_action(self, state: Any) -> int:
        raise NotImplementedError

    def act(self, world: Any, action: int) -> float:
        raise NotImplementedError

    def is_done(self, world: Any) -> bool:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError


class Environment:
    """As in sorrel/environment.py; the adapter recognises it by its module and name."""

    __module__ = "sorrel.environment"
    agents: list[Any]

    def __init__(self, world: Gridworld, config: dict[str, Any], stop_if_done: bool = False) -> None:
        self.config = SimpleNamespace(**{name: SimpleNamespace(**part) for name, part in config.items()})
        self.world = world
        self.turn = 0
        self.world.create_world()
        self.stop_if_done = stop_if_done
        self.setup_agents()
        self.populate_environment()

    def setup_agents(self) -> None:
        raise NotImplementedError

    def populate_environment(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        self.turn = 0
        self.world.is_done = False
        self.world.create_world()
        self.populate_environment()
        for agent in self.agents:
            agent.reset()

    def take_turn(self) -> None:
        self.turn += 1
        for _, entity in np.ndenumerate(self.world.map):
            if entity.has_transitions and not isinstance(entity, Agent):
                entity.transition(self.world)
        for agent in self.agents:
            agent.transition(self.world)


class Grass(Entity):
    def __init__(self) -> None:
        super().__init__()
        self.passable = True
        self.has_transitions = True

    def transition(self, world: Any) -> None:
        if np.random.random() < 0.3:
            world.add(self.location, Berry(random.choice([1.0, 2.0])))


class Berry(Entity):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.passable = True
        self.value = value


class Walker(Agent):
    """Counts its steps; its own reset does not set the count back."""

    walked = 0

    def pov(self, world: Any) -> Any:
        kinds = ("Grass", "Berry", "Walker", "Runner")
        cells = [kinds.index(entity.kind) for entity in world.map.ravel()]
        assert self.location is not None
        return np.array([*cells, self.location[1], self.walked]).reshape(1, -1)

    def get_action(self, state: Any) -> int:
        stacked = np.vstack((self.model.memory.current_state(), state))
        return self.model.take_action(stacked.reshape(1, -1))

    def act(self, world: Any, action: int) -> float:
        assert self.location is not None
        step = {"left": -1, "right": 1, "stay": 0}[self.action_spec.get_readable_action(action)]
        target = (0, (self.location[1] + step) % world.width, 0)
        reward = world.observe(target).value
        self.walked += world.move(self, target)
        return float(reward)

    def is_done(self, world: Any) -> bool:
        return bool(world.is_done)

    def reset(self) -> None:
        self.model.reset()


class Runner(Walker):
    """Has one more action; ends the game when it reaches the left edge after at least three steps."""

    def act(self, world: Any, action: int) -> float:
        reward = super().act(world, min(action, 2))
        assert self.location is not None
        world.is_done = self.location[1] == 0 and self.walked >= 3
        return reward


class Meadow(Environment):
    __module__ = "sorrel_standin"

    def setup_agents(self) -> None:
        kinds = self.config.model.kinds
        cells = self.world.map.size + 2
        self.agents = []
        for kind in kinds:
            actions = ActionSpec(["left", "right", "stay", "rest"][: 4 if kind is Runner else 3])
            self.agents.append(kind(None, actions, BaseModel((cells,), actions.n_actions, 8, epsilon=0.7)))
        self.agents[np.random.choice(len(kinds))].walked = 1  # as Tag chooses which agent is "it"

    def populate_environment(self) -> None:
        places = np.random.choice(self.world.width, size=len(self.agents), replace=False)
        for place, agent in zip(places, self.agents, strict=True):
            self.world.add((0, int(place), 0), agent)


def meadow(kinds: Sequence[type[Walker]] = (Walker, Walker), stop_if_done: bool = False, **experiment: Any) -> Meadow:
    config = {"experiment": experiment or {"max_turns": 9}, "model": {"kinds": kinds}}
    return Meadow(Gridworld(1, 7, 1, Grass()), config, stop_if_done)


class MeadowOptions(Options):
    runners: int = Field(0, description="of the agents, the last")
    turns: int | None = Field(None, description="most turns of an episode")
    stop: bool = Field(False, description="whether a world that is done ends the episode")


def _make(options: MeadowOptions, worlds: Sequence[int]) -> Game:
    def make() -> Meadow:
        return meadow((*[Walker] * 2, *[Runner] * options.runners), options.stop)

    with GlobalRandomState().installed():  # other threads may be playing worlds at the same time
        env = make()
    return sorrel.build("meadow", env, make, options.turns, len(worlds))


ENTRY = GameEntry("meadow", "walkers and berries", MeadowOptions, _make, step_cost=StepCost.FAST)
