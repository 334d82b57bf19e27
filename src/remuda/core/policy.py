"""Who chooses actions: weights, one row per agent, and `act`; no memory, no optimiser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below, uniform

UNVERSIONED = -1
"""The version of players that are not being trained."""


@dataclass(frozen=True)
class PolicyInput:
    """What some neighbouring agents of a group have before them when they choose."""

    obs: NDArray[Any]  # (frames, worlds, agents, *obs), oldest first
    ages: NDArray[np.int64]  # (worlds, agents): turns lived before this one; older frames are not theirs
    mask: NDArray[np.bool_] | None  # (worlds, agents, actions)
    keys: Keys  # (worlds, agents): all chance of this turn derives from them
    exploration: float | None  # None: as the policy likes; 0: greedy; p: a random action with chance p


@dataclass(frozen=True)
class PolicyOutput:
    """What they chose, and what the policy wants remembered about it."""

    actions: NDArray[np.int64]  # (worlds, agents)
    extras: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # (worlds, agents)


class Policy(ABC):
    """Plays for `agents` neighbouring agents of one group, each with its own row of weights."""

    frames: int = 1
    extras: tuple[str, ...] = ()

    def __init__(self, group: Group, agents: int) -> None:
        self.group = group
        self.agents = agents
        self.versions = np.full(agents, UNVERSIONED)  # of each agent's row

    @abstractmethod
    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose for agents first … last-1 of this policy."""

    @property
    def rows(self) -> NDArray[np.float32]:
        """All that acting depends on, one row per agent; no columns for a player without weights."""
        return np.zeros((self.agents, 0), np.float32)

    def load(self, rows: NDArray[np.float32], versions: int | NDArray[np.int64]) -> None:
        """Take over published rows and their versions. Only called between turns."""
        self.versions[:] = versions

    def weights(self) -> list[dict[str, NDArray[np.float32]]]:
        """`named` of the rows it plays with."""
        return self.named(self.rows)

    def named(self, rows: NDArray[np.float32]) -> list[dict[str, NDArray[np.float32]]]:
        """Per agent, the arrays of its row that a person would want to read, without padding."""
        return [{} for _ in rows]

    def load_weights(self, weights: list[dict[str, NDArray[np.float32]]]) -> None:
        """Take over what `weights` gave, one entry per agent."""
        del weights  # a player without weights has nothing to take


def explore(
    greedy: NDArray[np.int64], chance: NDArray[np.float64], inputs: PolicyInput, actions: int
) -> NDArray[np.int64]:
    """Greedy actions (worlds, agents), replaced by random allowed ones with each agent's chance (agents,)."""
    chosen = np.empty(greedy.shape, np.int64)
    if inputs.mask is None:
        _explore(greedy, chance, inputs.keys, actions, chosen)
    else:
        _explore_allowed(greedy, chance, inputs.keys, inputs.mask, chosen)
    return chosen


@kernel
def _explore(greedy: Any, chance: Any, keys: Any, actions: int, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = greedy[w, a]
            if uniform(keys[w, a], 0) < chance[a]:
                out[w, a] = below(keys[w, a], 1, actions)


@kernel
def _explore_allowed(greedy: Any, chance: Any, keys: Any, mask: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = greedy[w, a]
            if uniform(keys[w, a], 0) < chance[a]:
                left = below(keys[w, a], 1, mask[w, a].sum())
                for action in range(mask.shape[2]):
                    if mask[w, a, action]:
                        if left == 0:
                            out[w, a] = action
                            break
                        left -= 1


class RandomPolicy(Policy):
    """Any allowed action, uniformly."""

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Throw a die."""
        nothing = np.zeros(inputs.keys.shape, np.int64)
        return PolicyOutput(explore(nothing, np.ones(last - first), inputs, self.group.actions))


@dataclass(frozen=True)
class PolicyBinding:
    """Who plays for neighbouring agents of a group."""

    group: int
    first: int
    last: int
    policy: Policy
