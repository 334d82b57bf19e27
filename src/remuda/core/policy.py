"""Policy: weights, one row per agent, and `act`. It has no replay buffer and no optimiser.

In each turn the rollout calls `act` with a `PolicyInput` for some neighbouring agents in all its worlds, and writes the
`PolicyOutput` into the fragment. Between turns newer rows may be loaded. Scripted players are policies without weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below, normals, uniform, uniforms
from remuda.core.spaces import bounds_of

UNVERSIONED = -1
"""The version of a policy that is not being trained."""


@dataclass(frozen=True)
class PolicyInput:
    """What neighbouring agents of a group choose their actions from, in one turn of all worlds."""

    obs: NDArray[Any]  # (frames, worlds, agents, *obs): the last observations that it acted on, oldest first, and now's
    ages: NDArray[np.int64]  # (worlds, agents): as in Fragment; older frames are of another life
    mask: NDArray[np.bool_] | None  # (worlds, agents, actions): allowed actions; None: all
    keys: Keys  # (worlds, agents): all randomness of this turn derives from them
    exploration: float | None  # None: as in training; 0: greedy; p: greedy, but random with probability p
    memory: NDArray[np.float32] | None = None  # (worlds, agents, memory_size): recurrent state, zero where ages are 0


@dataclass(frozen=True)
class PolicyOutput:
    """The chosen actions, and what the policy wants stored in the fragment beside them."""

    actions: NDArray[Any]  # (worlds, agents, *action)
    extras: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # each (worlds, agents, *shape)
    memory: NDArray[np.float32] | None = None  # (worlds, agents, memory_size): recurrent state after this turn


class Policy(ABC):
    """Acts for `agents` neighbouring agents of one group, each with its own row of weights."""

    frames: int = 1
    """How many observations, the newest included, `act` is given."""
    extras: tuple[str, ...] = ()
    """Names of the extras in its outputs, e.g. log-probabilities for the learner."""
    extra_shapes: Mapping[str, tuple[int, ...]] = {}
    """Shapes of extras that are more than one number per agent, by name."""
    reads_state: bool = False
    """Whether fragments should have the game's privileged state, for the learner; `act` never gets it."""
    memory_size: int = 0
    """Numbers in the recurrent state of an agent; 0: the policy has none."""

    def __init__(self, group: Group, agents: int) -> None:
        self.group = group
        self.agents = agents
        self.versions = np.full(agents, UNVERSIONED)  # of each agent's row

    @abstractmethod
    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose actions for agents first … last-1 of this policy, each from its own inputs and its own row alone."""

    @property
    def rows(self) -> NDArray[np.float32]:
        """All that acting depends on, (agents, columns); no columns for a policy without weights."""
        return np.zeros((self.agents, 0), np.float32)

    def load(self, rows: NDArray[np.float32], versions: int | NDArray[np.int64]) -> None:
        """Use published rows and their versions from now on. Only called between turns."""
        self.versions[:] = versions

    def weights(self) -> list[dict[str, NDArray[np.float32]]]:
        """`named_arrays` of the rows it acts with."""
        return self.named_arrays(self.rows)

    def named_arrays(self, rows: NDArray[np.float32]) -> list[dict[str, NDArray[np.float32]]]:
        """Rows (agents, columns) as named arrays per agent, such as layer weights, without padding."""
        return [{} for _ in rows]

    def load_weights(self, weights: list[dict[str, NDArray[np.float32]]]) -> None:
        """Use named arrays as `weights` returns them, one entry per agent."""
        del weights  # a policy without weights has nothing to load


def explore(
    greedy: NDArray[np.int64], epsilon: NDArray[np.float64], inputs: PolicyInput, actions: int
) -> NDArray[np.int64]:
    """ε-greedy: actions (worlds, agents), replaced by random allowed ones with each agent's ε, (agents,).

    It uses draws 0 and 1 of `inputs.keys`.
    """
    chosen = np.empty(greedy.shape, np.int64)
    if inputs.mask is None:
        _explore(greedy, epsilon, inputs.keys, actions, chosen)
    else:
        _explore_allowed(greedy, epsilon, inputs.keys, inputs.mask, chosen)
    return chosen


@kernel
def _explore(greedy: Any, epsilon: Any, keys: Any, actions: int, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = greedy[w, a]
            if uniform(keys[w, a], 0) < epsilon[a]:
                out[w, a] = below(keys[w, a], 1, actions)


@kernel
def _explore_allowed(greedy: Any, epsilon: Any, keys: Any, mask: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = greedy[w, a]
            if uniform(keys[w, a], 0) < epsilon[a]:
                left = below(keys[w, a], 1, mask[w, a].sum())
                for action in range(mask.shape[2]):
                    if mask[w, a, action]:
                        if left == 0:
                            out[w, a] = action
                            break
                        left -= 1


def random_actions(group: Group, keys: Keys) -> NDArray[Any]:
    """Uniform actions of a space that is not Discrete, (worlds, agents, *action); normal where a Box has no bounds."""
    if group.choices:
        draws: NDArray[np.float64] = uniforms(keys, len(group.choices)) * np.array(group.choices)
        return draws.astype(np.int64).reshape(*keys.shape, *group.action_shape)
    low, high = bounds_of(group.action_space)
    bounded = np.isfinite(low) & np.isfinite(high)
    inside = np.where(bounded, low, 0) + np.where(bounded, high - low, 0) * uniforms(keys, len(low))
    drawn: NDArray[np.float64] = np.clip(np.where(bounded, inside, normals(keys, len(low))), low, high)
    return drawn.astype(np.float32).reshape(*keys.shape, *group.action_shape)


def actions_fit(actions: NDArray[Any], group: Group) -> bool:
    """Whether actions (…, *action) have the type and the range of the group's: compiled games do not check them."""
    if actions.dtype != group.action_dtype:
        return False
    if group.choices:
        limit = group.choices[0] if group.action_space is None else np.array(group.choices)
        return bool((actions >= 0).all() and (actions < limit).all())
    low, high = group.action_space.low, group.action_space.high
    return bool((actions >= low.astype(np.float32)).all() and (actions <= high.astype(np.float32)).all())


class RandomPolicy(Policy):
    """Chooses uniformly among the allowed actions."""

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Explore with ε = 1."""
        if self.group.action_space is not None:
            return PolicyOutput(random_actions(self.group, inputs.keys))
        greedy = np.zeros(inputs.keys.shape, np.int64)
        return PolicyOutput(explore(greedy, np.ones(last - first), inputs, self.group.actions))


@dataclass(frozen=True)
class PolicyBinding:
    """Agents first … last-1 of a group, and the policy that acts for them."""

    group: int  # index in GameSpec.groups
    first: int
    last: int
    policy: Policy
    sampled: bool = False  # whether it acts as in training, whatever a task's exploration is
