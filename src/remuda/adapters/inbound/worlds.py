"""Simulators that have one world each, as a game of many worlds.

An adapter writes a `World`; everything that has to do with batches of worlds, signals and the end of time is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Game, GameSpec
from remuda.core.rng import Keys

SEEDS = np.uint64(2**31 - 1)
"""Seeds are below this: the most that every random generator takes."""
MOST_TURNS = 1000
"""Of an episode, where neither the simulator nor the user says how long it may last."""


class World(ABC):
    """One world of a simulator. Its agents are numbered as in the herd. Write into its arrays: others look at them."""

    def __init__(self, agents: int) -> None:
        self.alive = np.zeros(agents, np.bool_)  # acts when it is asked next
        self.rewards = np.zeros(agents, np.float64)  # not handed over yet
        self.terminated = np.zeros(agents, np.bool_)
        self.truncated = np.zeros(agents, np.bool_)
        self.metrics: dict[str, float] = {}  # of the episode so far, by the names its spec has
        self.over = True

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Start an episode: say who is alive, and set `over` to False."""

    def begin(self) -> None:  # noqa: B027
        """Open a turn: whatever changes by itself changes now."""

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """What an agent sees now, or saw last."""

    def mask(self, agent: int) -> Any:
        """Which actions are allowed to it now."""
        raise NotImplementedError

    @abstractmethod
    def act(self, agent: int, action: int) -> None:
        """Carry out an action of an agent that is alive, or note it until the turn ends."""

    def end(self) -> None:  # noqa: B027
        """Close the turn, where there is something left to do."""

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, if the simulator draws any."""
        return None


class Simulators(Game):
    """Worlds that are objects, stepped one after another."""

    def __init__(self, spec: GameSpec, worlds: Sequence[World]) -> None:
        super().__init__(spec, len(worlds))
        self._worlds = worlds
        self._turns = np.zeros(len(worlds), np.int64)
        self._begins = any(type(world).begin is not World.begin for world in worlds)
        self._alive, self._rewards = self._gather("alive"), self._gather("rewards")
        self._terminated, self._truncated = self._gather("terminated"), self._gather("truncated")

    def _gather(self, name: str) -> NDArray[Any]:
        """An array of the worlds in one piece, (worlds, agents), into which they write from now on."""
        whole = np.stack([getattr(world, name) for world in self._worlds])
        for world, own in zip(self._worlds, whole, strict=True):
            setattr(world, name, own)
        return whole

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Seed each world by its key: the same key, the same episode."""
        for signals in self.signals:
            signals.clear(worlds)
        self._turns[worlds] = 0
        for w, key in zip(worlds.tolist(), keys, strict=True):
            self._worlds[w].reset(int(key % SEEDS))
            self.over[w] = self._worlds[w].over
        self._receive()

    def begin(self) -> None:
        """Open the turn of each world."""
        if not self._begins:
            return
        for world, over in zip(self._worlds, self.over.tolist(), strict=True):
            if not over:
                world.begin()
        self._receive()

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Ask each world for each agent."""
        number = self.spec.first_agent(group)
        for w, world in enumerate(self._worlds):
            for i in range(first, last):
                out[w, i - first] = world.observe(number + i)

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Ask each world for those who act; nothing is asked of the others."""
        number = self.spec.first_agent(group)
        for w, world in enumerate(self._worlds):
            for i in range(first, last):
                if world.alive[number + i]:
                    out[w, i - first] = world.mask(number + i)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Tell each world, agent by agent."""
        number = self.spec.first_agent(group)
        for world, own in zip(self._worlds, actions.tolist(), strict=True):
            if world.over:
                continue
            for agent, action in enumerate(own, number + first):
                if world.alive[agent]:
                    world.act(agent, action)
        if self.spec.in_turn:  # else nobody looks before the turn ends
            self._receive()

    def end(self) -> None:
        """Close the turn of each world, and cut off what lasts longer than the spec allows."""
        for w, world in enumerate(self._worlds):
            if self.over[w]:
                continue
            world.end()
            self._turns[w] += 1
            if self._turns[w] == self.spec.turns and not world.over:
                world.truncated |= ~world.terminated
                world.over = True
            self.over[w] = world.over
        self._receive()

    def render(self, world: int) -> NDArray[np.uint8]:
        """The simulator's own picture."""
        picture = self._worlds[world].render()
        return super().render(world) if picture is None else picture

    def _receive(self) -> None:
        """Take over what has happened in the worlds."""
        first = 0
        for signals, group in zip(self.signals, self.spec.groups, strict=True):
            own = slice(first, first + group.size)
            first += group.size
            signals.rewards += self._rewards[:, own]
            signals.terminated |= self._terminated[:, own]
            signals.truncated |= self._truncated[:, own]
            signals.alive[:] = self._alive[:, own]
            for w, world in enumerate(self._worlds if group.metrics else ()):
                signals.metrics[w] = [world.metrics.get(name, 0.0) for name in group.metrics]
        self._rewards[:] = 0
        self._terminated[:] = False
        self._truncated[:] = False


def longest(env: Any) -> int:
    """The most turns an episode has, as far as an environment says so."""
    limits = (
        getattr(getattr(env, "spec", None), "max_episode_steps", None),
        getattr(getattr(env, "unwrapped", env), "max_cycles", None),
        getattr(getattr(env, "unwrapped", env), "max_steps", None),
    )
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), MOST_TURNS)
