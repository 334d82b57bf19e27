"""A game of many worlds, made of simulators that have one world each.

An adapter implements `World` for one simulator. `SimulatorGame` does the rest: batches of worlds, signals, time limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import GameError
from remuda.core.game import Game, GameSpec
from remuda.core.options import short_repr
from remuda.core.rng import Keys

SEED_LIMIT = np.uint64(2**31 - 1)
"""Seeds are below this, the largest that every random generator takes."""
DEFAULT_MAX_TURNS = 1000
"""The most turns of an episode where neither the simulator nor the user gives a limit."""


class World(ABC):
    """One world of a simulator; its agents are numbered as in the herd.

    Write into its arrays and do not replace them: `SimulatorGame` keeps views of them.
    """

    def __init__(self, agents: int) -> None:
        self.alive = np.zeros(agents, np.bool_)  # acts when it is asked next
        self.rewards = np.zeros(agents, np.float64)  # not collected yet
        self.terminated = np.zeros(agents, np.bool_)
        self.truncated = np.zeros(agents, np.bool_)
        self.metrics: dict[str, float] = {}  # of the episode so far, by the names in the spec
        self.over = True
        self.remarks: dict[str, str] = {}  # what an author should know, by kind, each the first time; `check` tells it

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Start an episode: fill `alive`, and set `over` to False."""

    def begin(self) -> None:  # noqa: B027
        """Begin a turn: let everything change that changes by itself."""

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """What an agent observes now, or observed last."""

    def mask(self, agent: int) -> Any:
        """Which actions an agent may take now."""
        raise NotImplementedError

    def state(self) -> Any:
        """The privileged state of the world, if the spec declares one."""
        raise NotImplementedError

    @abstractmethod
    def act(self, agent: int, action: Any) -> None:
        """Carry out the action of an agent that is alive, or keep it until the turn ends."""

    def end(self) -> None:  # noqa: B027
        """End the turn."""

    def draws(self) -> bool:
        """Whether `render` returns pictures."""
        return False

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, if the simulator draws any."""
        return None


class SimulatorGame(Game):
    """A game whose worlds are `World` objects, stepped one after another."""

    def __init__(self, spec: GameSpec, worlds: Sequence[World]) -> None:
        super().__init__(spec, len(worlds))
        self._worlds = worlds
        self._turns = np.zeros(len(worlds), np.int64)
        self._any_begins = any(type(world).begin is not World.begin for world in worlds)
        self._alive, self._rewards = self._share("alive"), self._share("rewards")
        self._terminated, self._truncated = self._share("terminated"), self._share("truncated")

    def _share(self, name: str) -> NDArray[Any]:
        """One array (worlds, agents) for all worlds; from now on each world writes into its row."""
        rows = np.stack([getattr(world, name) for world in self._worlds])
        for world, row in zip(self._worlds, rows, strict=True):
            setattr(world, name, row)
        return rows

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Seed each world from its key: the same key gives the same episode."""
        for signals in self.signals:
            signals.clear(worlds)
        self._turns[worlds] = 0
        for w, key in zip(worlds.tolist(), keys, strict=True):
            self._worlds[w].reset(int(key % SEED_LIMIT))
            self.over[w] = self._worlds[w].over
        self._collect_signals()

    def begin(self) -> None:
        """Begin the turn in each world."""
        if not self._any_begins:
            return
        for world, over in zip(self._worlds, self.over.tolist(), strict=True):
            if not over:
                world.begin()
        self._collect_signals()

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Ask each world for each agent's observation."""
        number = self.spec.first_agent(group)
        for w, world in enumerate(self._worlds):
            for i in range(first, last):
                try:
                    out[w, i - first] = world.observe(number + i)
                except GameError as error:
                    raise GameError(f"agent {number + i}: {error}") from None

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Ask each world for the masks of the agents that are alive."""
        number = self.spec.first_agent(group)
        for w, world in enumerate(self._worlds):
            for i in range(first, last):
                if world.alive[number + i]:
                    out[w, i - first] = world.mask(number + i)

    def observe_state(self, group: int, out: NDArray[Any]) -> None:
        """Ask each world for its state, the same for every group."""
        for w, world in enumerate(self._worlds):
            out[w] = world.state()

    def act(self, group: int, first: int, last: int, actions: NDArray[Any]) -> None:
        """Give each world the actions of its living agents, in order: Python's integers, or arrays."""
        number = self.spec.first_agent(group)
        for world, row in zip(self._worlds, actions.tolist() if actions.ndim == 2 else actions, strict=True):
            if world.over:
                continue
            for agent, action in enumerate(row, number + first):
                if world.alive[agent]:
                    world.act(agent, action)
        if self.spec.in_turn:  # otherwise no agent observes before the turn ends
            self._collect_signals()

    def end(self) -> None:
        """End the turn in each world, and truncate episodes that reach the spec's limit."""
        for w, world in enumerate(self._worlds):
            if self.over[w]:
                continue
            world.end()
            self._turns[w] += 1
            if self._turns[w] == self.spec.turns and not world.over:
                world.truncated |= ~world.terminated & world.alive
                world.over = True
            self.over[w] = world.over
        self._collect_signals()

    def can_be_seen(self) -> bool:
        """Whether the simulator draws pictures."""
        return self._worlds[0].draws()

    def render(self, world: int) -> NDArray[np.uint8]:
        """The simulator's own picture."""
        picture = self._worlds[world].render()
        return super().render(world) if picture is None else picture

    @property
    def remarks(self) -> list[str]:
        """What the author of the simulator should know about the episodes played so far."""
        return [*{kind: remark for world in reversed(self._worlds) for kind, remark in world.remarks.items()}.values()]

    def _collect_signals(self) -> None:
        """Move what has happened in the worlds into the signals of the groups."""
        first = 0
        for signals, group in zip(self.signals, self.spec.groups, strict=True):
            columns = slice(first, first + group.size)
            first += group.size
            signals.rewards += self._rewards[:, columns]
            signals.terminated |= self._terminated[:, columns]
            signals.truncated |= self._truncated[:, columns]
            signals.alive[:] = self._alive[:, columns]
            for w, world in enumerate(self._worlds if group.metrics else ()):
                signals.metrics[w] = [world.metrics.get(name, 0.0) for name in group.metrics]
        self._rewards[:] = 0
        self._terminated[:] = False
        self._truncated[:] = False


def reset_env(env: Any, seed: int) -> Any:
    """What `reset` of an environment returns; GameError if it takes no seed."""
    try:
        return env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in str(error):
            raise
        raise GameError(f"{error}: reset should take seed and options, reset(self, seed=None, options=None)") from error


def reward_of(given: Any) -> float:
    """A reward as a number; GameError if it is none."""
    try:
        if isinstance(given, str | bytes):  # float() would read it
            raise TypeError
        return float(given)
    except (TypeError, ValueError):
        raise GameError(f"step returned the reward {short_repr(given)}: it should be a number") from None


def spec_with_limit(spec: GameSpec, turns: int | None, env: Any) -> GameSpec:
    """The spec with the most turns of an episode: what the user says, else the environment, else remuda."""
    limit = turns or stated_turns(env)
    return replace(spec, turns=limit or DEFAULT_MAX_TURNS, turns_assumed=limit is None)


def stated_turns(env: Any) -> int | None:
    """The most turns of an episode, if the environment states it."""
    limits = (
        getattr(getattr(env, "spec", None), "max_episode_steps", None),
        getattr(getattr(env, "unwrapped", env), "max_cycles", None),
        getattr(getattr(env, "unwrapped", env), "max_steps", None),
    )
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
