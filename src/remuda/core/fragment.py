"""Fragment: what happened to one group of agents, in some worlds, over consecutive turns.

Papers call it a trajectory segment or a rollout. It is the only datum that goes from playing to learning: a collector
fills one fragment per group, and hands it to the learners of that group. A fragment holds a whole episode of each of
its worlds, or some consecutive turns of it. It has data and no behaviour.

Time is the first axis of every per-turn array, then world, then agent. In turn t of the fragment

    obs[before + t]   is what the agent observed,
    actions[t]        is what it then did, chosen with weights of version versions[t],
    rewards[t]        is all reward that reached it until it acted again,
    terminated[t]     says that its life ended by the rules of the game (do not bootstrap),
    truncated[t]      says that its life was cut off by a limit (bootstrap from obs[before + t + 1]),
    alive[t]          says whether it acted at all.

Where `alive` is False the other entries of that turn, world and agent mean nothing and must not be learned from. To the
learner a *life* is an episode of its own: the turns in which an agent acted until it was terminated or truncated. An
agent may come back after its life has ended and begin another. An agent may also be away within a life: it does not act
for some turns, and no flag is set. `ages` counts its actions in this life. What it was shown while it was away is no
observation of its own, see `remuda.learners.transitions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Group


class Purpose(StrEnum):
    """Why an episode is played. Each purpose has its own random streams."""

    TRAIN = "train"
    EVALUATE = "evaluate"  # during training, to choose the best weights
    TEST = "test"  # afterwards, on episodes that no choice was based on


@dataclass(frozen=True)
class Origin:
    """Where a fragment comes from."""

    group: int  # index in GameSpec.groups
    worlds: NDArray[np.int64]  # (worlds,): numbers in the plan
    episodes: NDArray[np.int64]  # (worlds,): numbers in the plan
    first_turn: int  # of the episode
    purpose: Purpose


@dataclass(frozen=True)
class Fragment:
    """Consecutive turns of one group in some worlds; see the module for what each array means.

    `obs` has `before` more entries in front, for policies that stack frames, and one more at the end, the observation
    that the last action led to. Entries before the first turn of an episode are zero; those before the first turn of a
    later fragment are the last observations that the agent acted on. Of an agent's own observations before turn t only
    the last `ages[t]` belong to its current life; a frame stack must not use older ones.
    """

    origin: Origin
    before: int  # observations in `obs` in front of the first turn
    obs: NDArray[Any]  # (before + turns + 1, worlds, agents, *obs), in the game's own dtype
    actions: NDArray[Any]  # (turns, worlds, agents, *action): whole numbers, or float32 for a Box
    rewards: NDArray[np.float32]  # (turns, worlds, agents)
    terminated: NDArray[np.bool_]  # (turns, worlds, agents)
    truncated: NDArray[np.bool_]  # (turns, worlds, agents); never together with terminated
    alive: NDArray[np.bool_]  # (turns, worlds, agents)
    ages: NDArray[np.int64]  # (turns, worlds, agents): actions of the agent in this life before this one
    versions: NDArray[np.int64]  # (turns, agents): of the weights that acted
    away: NDArray[np.bool_]  # (worlds, agents): it does not act on the last observation: dead, away, or not its turn
    metrics: NDArray[np.float32]  # (worlds, agents, metrics): of the episode up to the last turn
    mask: NDArray[np.bool_] | None  # (turns + 1, worlds, agents, actions): allowed actions, beside each observation
    extras: dict[str, NDArray[np.float32]]  # each (turns, worlds, agents, …): what the policy adds, see Policy.extras
    state: NDArray[Any] | None = None  # (turns + 1, worlds, *state): privileged, as the first agent observes
    memory: NDArray[np.float32] | None = None  # (worlds, agents, numbers): recurrent states at the first turn

    @property
    def turns(self) -> int:
        """How many turns the fragment has."""
        return len(self.actions)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Undiscounted sum of rewards of each agent in each world, (worlds, agents)."""
        total: NDArray[np.float64] = np.where(self.alive, self.rewards, 0).sum(axis=0, dtype=np.float64)
        return total

    @property
    def agent_steps(self) -> int:
        """How many actions the agents took, over all worlds."""
        return int(self.alive.sum())


@dataclass(frozen=True)
class FragmentLayout:
    """What the policies of a group want in its fragments, besides what every fragment has."""

    before: int = 0  # observations in front of the first turn
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # names and shapes, see Policy.extras
    state: bool = False  # whether learners read the privileged state
    memory: int = 0  # numbers in the largest recurrent state

    def arrays(self, group: Group, turns: int, worlds: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of every array of a fragment, by name; extras are called extras.NAME."""
        per_turn = (turns, worlds, group.size)
        arrays: dict[str, tuple[tuple[int, ...], Any]] = {
            "obs": ((self.before + turns + 1, worlds, group.size, *group.obs_shape), group.obs_dtype),
            "actions": ((*per_turn, *group.action_shape), group.action_dtype),
            "rewards": (per_turn, np.float32),
            "terminated": (per_turn, np.bool_),
            "truncated": (per_turn, np.bool_),
            "alive": (per_turn, np.bool_),
            "ages": (per_turn, np.int64),
            "versions": ((turns, group.size), np.int64),
            "away": ((worlds, group.size), np.bool_),
            "metrics": ((worlds, group.size, len(group.metrics)), np.float32),
        }
        if group.masked:
            arrays["mask"] = ((turns + 1, worlds, group.size, group.actions), np.bool_)
        for name, shape in self.extras.items():
            arrays[f"extras.{name}"] = ((*per_turn, *shape), np.float32)
        if self.state and group.state_shape is not None:
            arrays["state"] = ((turns + 1, worlds, *group.state_shape), group.state_dtype)
        if self.memory:
            arrays["memory"] = ((worlds, group.size, self.memory), np.float32)
        return arrays

    def fragment(self, origin: Origin, arrays: Mapping[str, NDArray[Any]]) -> Fragment:
        """The fragment of arrays with these names."""
        own: dict[str, Any] = {name: array for name, array in arrays.items() if not name.startswith("extras.")}
        extras = {name: arrays[f"extras.{name}"] for name in self.extras}
        return Fragment(origin=origin, before=self.before, extras=extras, **{"mask": None, **own})


def empty_fragment(
    origin: Origin, group: Group, turns: int, before: int = 0, layout: FragmentLayout | None = None
) -> Fragment:
    """A fragment of `turns` turns for a collector to fill; all zero, all actions allowed."""
    layout = layout or FragmentLayout(before)
    shapes = layout.arrays(group, turns, len(origin.worlds))
    fragment = layout.fragment(origin, {name: np.zeros(*array) for name, array in shapes.items()})
    if fragment.mask is not None:
        fragment.mask[:] = True
    return fragment


def copy_fragment(fragment: Fragment) -> Fragment:
    """A copy whose arrays share no memory with the original."""
    arrays: dict[str, Any] = {
        field.name: value.copy()
        for field in fields(fragment)
        if isinstance(value := getattr(fragment, field.name), np.ndarray)
    }
    extras = {name: extra.copy() for name, extra in fragment.extras.items()}
    return replace(fragment, extras=extras, **arrays)


AGENT_AXIS = {"versions": 1, "away": 1, "metrics": 1, "memory": 1, "state": None}
"""The axis of agents in an array of a fragment, where it is not the third; None: all agents share it."""


def slice_agents(fragment: Fragment, first: int, last: int) -> Fragment:
    """Agents first … last-1 of the group, as views."""
    agents = slice(first, last)
    return Fragment(
        origin=fragment.origin,
        before=fragment.before,
        obs=fragment.obs[:, :, agents],
        actions=fragment.actions[:, :, agents],
        rewards=fragment.rewards[:, :, agents],
        terminated=fragment.terminated[:, :, agents],
        truncated=fragment.truncated[:, :, agents],
        alive=fragment.alive[:, :, agents],
        ages=fragment.ages[:, :, agents],
        versions=fragment.versions[:, agents],
        away=fragment.away[:, agents],
        metrics=fragment.metrics[:, agents],
        mask=None if fragment.mask is None else fragment.mask[:, :, agents],
        extras={name: extra[:, :, agents] for name, extra in fragment.extras.items()},
        state=fragment.state,
        memory=None if fragment.memory is None else fragment.memory[:, agents],
    )


def join_agents(pieces: Sequence[Fragment]) -> Fragment:
    """One fragment with the agents of all."""
    if len(pieces) == 1:
        return pieces[0]
    axes = {field.name: AGENT_AXIS.get(field.name, 2) for field in fields(Fragment)}
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces], axis)
        for name, axis in axes.items()
        if axis is not None and isinstance(getattr(pieces[0], name), np.ndarray)
    }
    names = pieces[0].extras
    extras = {name: np.concatenate([piece.extras[name] for piece in pieces], 2) for name in names}
    return replace(pieces[0], extras=extras, **arrays)


def slice_worlds(fragment: Fragment, worlds: slice, turns: int | None = None) -> Fragment:
    """Some worlds of the fragment and its first `turns` turns (default: all), as views."""
    n = fragment.turns if turns is None else turns
    origin = fragment.origin
    return Fragment(
        origin=Origin(origin.group, origin.worlds[worlds], origin.episodes[worlds], origin.first_turn, origin.purpose),
        before=fragment.before,
        obs=fragment.obs[: fragment.before + n + 1, worlds],
        actions=fragment.actions[:n, worlds],
        rewards=fragment.rewards[:n, worlds],
        terminated=fragment.terminated[:n, worlds],
        truncated=fragment.truncated[:n, worlds],
        alive=fragment.alive[:n, worlds],
        ages=fragment.ages[:n, worlds],
        versions=fragment.versions[:n],
        away=fragment.away[worlds],
        metrics=fragment.metrics[worlds],
        mask=None if fragment.mask is None else fragment.mask[: n + 1, worlds],
        extras={name: extra[:n, worlds] for name, extra in fragment.extras.items()},
        state=None if fragment.state is None else fragment.state[: n + 1, worlds],
        memory=None if fragment.memory is None else fragment.memory[worlds],
    )
