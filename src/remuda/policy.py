"""Who chooses actions: weights, one row per agent, and `act`; no memory, no optimiser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.game import Group
from remuda.rng import Keys, uniforms


@dataclass(frozen=True)
class Sight:
    """What some neighbouring agents of a group have before them when they choose."""

    obs: NDArray[Any]  # (frames, worlds, agents, *obs), oldest first
    ages: NDArray[np.int64]  # (worlds, agents): turns lived before this one; older frames are not theirs
    mask: NDArray[np.bool_] | None  # (worlds, agents, actions)
    keys: Keys  # (worlds, agents): all chance of this turn derives from them
    exploration: float | None  # None: as the policy likes; 0: greedy; p: a random action with chance p


@dataclass(frozen=True)
class Choice:
    """What they chose, and what the policy wants remembered about it."""

    actions: NDArray[np.int64]  # (worlds, agents)
    extras: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # (worlds, agents)


class Policy(ABC):
    """Plays for `agents` neighbouring agents of one group, each with its own row of weights."""

    frames: int = 1
    extras: tuple[str, ...] = ()
    version: int = 0

    def __init__(self, group: Group, agents: int) -> None:
        self.group = group
        self.agents = agents

    @abstractmethod
    def act(self, sight: Sight, first: int, last: int) -> Choice:
        """Choose for agents first … last-1 of this policy."""

    @property
    def rows(self) -> NDArray[np.float32]:
        """All that acting depends on, one row per agent; no columns for a player without weights."""
        return np.zeros((self.agents, 0), np.float32)

    def load(self, rows: NDArray[np.float32], version: int) -> None:
        """Take over published rows. Only called between turns."""
        self.version = version

    def weights(self) -> list[dict[str, NDArray[np.float32]]]:
        """`named` of the rows it plays with."""
        return self.named(self.rows)

    def named(self, rows: NDArray[np.float32]) -> list[dict[str, NDArray[np.float32]]]:
        """Per agent, the arrays of its row that a person would want to read, without padding."""
        return [{} for _ in rows]

    def load_weights(self, weights: list[dict[str, NDArray[np.float32]]]) -> None:
        """Take over what `weights` gave, one entry per agent."""
        del weights  # a player without weights has nothing to take


def explore(greedy: NDArray[np.int64], chance: NDArray[np.float64], sight: Sight, actions: int) -> NDArray[np.int64]:
    """Replace greedy actions by uniformly random allowed ones, each with its chance."""
    u = uniforms(sight.keys, 2)
    random = (u[..., 1] * actions).astype(np.int64)
    if sight.mask is not None:
        allowed = sight.mask.cumsum(axis=-1)
        wanted = (u[..., 1] * allowed[..., -1]).astype(np.int64) + 1
        random = (allowed >= wanted[..., None]).argmax(axis=-1)
    return np.where(u[..., 0] < chance, random, greedy)


class RandomPolicy(Policy):
    """Any allowed action, uniformly."""

    def act(self, sight: Sight, first: int, last: int) -> Choice:
        """Throw a die."""
        nothing = np.zeros(sight.keys.shape, np.int64)
        return Choice(explore(nothing, np.ones(sight.keys.shape), sight, self.group.actions))
