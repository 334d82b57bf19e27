"""The one datum: what happened to one group in some worlds over some turns."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Group


class Purpose(StrEnum):
    """Why an episode is played."""

    TRAIN = "train"
    EVALUATE = "evaluate"  # during training, to choose the best weights
    TEST = "test"  # afterwards, on episodes that chose nothing


@dataclass(frozen=True)
class Origin:
    """Where a fragment comes from."""

    group: int
    worlds: NDArray[np.int64]  # (worlds,)
    episodes: NDArray[np.int64]  # (worlds,)
    first_turn: int
    purpose: Purpose


@dataclass(frozen=True)
class Fragment:
    """Time first. `before` frames precede the first turn and one observation follows the last.

    The observation of turn t is `obs[before + t]`. `alive[t]` says whether the agent acted in turn t;
    where it is False the rest of that entry means nothing.
    """

    origin: Origin
    before: int
    obs: NDArray[Any]  # (before + turns + 1, worlds, agents, *obs), in the game's own dtype
    actions: NDArray[np.int64]  # (turns, worlds, agents)
    rewards: NDArray[np.float32]  # (turns, worlds, agents)
    terminated: NDArray[np.bool_]  # (turns, worlds, agents)
    truncated: NDArray[np.bool_]  # (turns, worlds, agents)
    alive: NDArray[np.bool_]  # (turns, worlds, agents)
    ages: NDArray[np.int64]  # (turns, worlds, agents): turns the agent has lived before this one
    versions: NDArray[np.int64]  # (turns, agents): of the weights that acted
    metrics: NDArray[np.float32]  # (worlds, agents, metrics): of the episode up to the last turn
    mask: NDArray[np.bool_] | None  # (turns + 1, worlds, agents, actions)
    extras: dict[str, NDArray[np.float32]]  # (turns, worlds, agents): what the policy adds

    @property
    def turns(self) -> int:
        """How many turns the fragment holds."""
        return len(self.actions)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Undiscounted reward of each agent in each world, (worlds, agents)."""
        total: NDArray[np.float64] = np.where(self.alive, self.rewards, 0).sum(axis=0, dtype=np.float64)
        return total

    @property
    def agent_steps(self) -> int:
        """How many actions agents took."""
        return int(self.alive.sum())


def blank(origin: Origin, group: Group, turns: int, before: int, extras: tuple[str, ...] = ()) -> Fragment:
    """A fragment with room for `turns` turns, to be filled by a collector."""
    worlds = len(origin.worlds)
    per_turn = (turns, worlds, group.size)
    return Fragment(
        origin=origin,
        before=before,
        obs=np.zeros((before + turns + 1, worlds, group.size, *group.obs_shape), group.obs_dtype),
        actions=np.zeros(per_turn, np.int64),
        rewards=np.zeros(per_turn, np.float32),
        terminated=np.zeros(per_turn, np.bool_),
        truncated=np.zeros(per_turn, np.bool_),
        alive=np.zeros(per_turn, np.bool_),
        ages=np.zeros(per_turn, np.int64),
        versions=np.zeros((turns, group.size), np.int64),
        metrics=np.zeros((worlds, group.size, len(group.metrics)), np.float32),
        mask=np.ones((turns + 1, worlds, group.size, group.actions), np.bool_) if group.masked else None,
        extras={name: np.zeros(per_turn, np.float32) for name in extras},
    )


def copied(fragment: Fragment) -> Fragment:
    """The same in memory of its own."""
    arrays: dict[str, Any] = {
        field.name: value.copy()
        for field in fields(fragment)
        if isinstance(value := getattr(fragment, field.name), np.ndarray)
    }
    extras = {name: extra.copy() for name, extra in fragment.extras.items()}
    return replace(fragment, extras=extras, **arrays)


def of_agents(fragment: Fragment, first: int, last: int) -> Fragment:
    """The part of a fragment that concerns agents first … last-1 of its group, as views."""
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
        metrics=fragment.metrics[:, agents],
        mask=None if fragment.mask is None else fragment.mask[:, :, agents],
        extras={name: extra[:, :, agents] for name, extra in fragment.extras.items()},
    )


def cut(fragment: Fragment, worlds: slice, turns: int | None = None) -> Fragment:
    """The part of a fragment that concerns some worlds and its first `turns` turns, as views."""
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
        metrics=fragment.metrics[worlds],
        mask=None if fragment.mask is None else fragment.mask[: n + 1, worlds],
        extras={name: extra[:n, worlds] for name, extra in fragment.extras.items()},
    )
