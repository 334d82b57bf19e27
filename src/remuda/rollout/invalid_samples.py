"""Finding numbers that no agent can learn from: rewards and observations that are not finite or out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.game import GameSpec, Group
from remuda.core.task import InvalidSample


def remove_invalid_samples(fragment: Fragment, spec: GameSpec) -> list[InvalidSample]:
    """Episodes with numbers no agent can learn from; they are taken out of the agent's life, and zeroed."""
    group = spec.groups[fragment.origin.group]
    obs = fragment.obs[fragment.before :].reshape(fragment.turns + 1, *fragment.alive.shape[1:], -1)
    if _within(obs, group) and np.isfinite(fragment.rewards).all():
        return []
    lived = fragment.alive.copy()
    seen = np.concatenate([lived, np.zeros_like(lived[:1])])
    seen[1:] |= lived
    wrong_obs = seen & ~((obs >= group.low) & (obs <= group.high) & np.isfinite(obs)).all(axis=3)
    wrong_rewards = lived & ~np.isfinite(fragment.rewards)
    invalid_samples = []
    for world, agent in np.argwhere(wrong_obs.any(axis=0) | wrong_rewards.any(axis=0)).tolist():
        rewards, sights = np.flatnonzero(wrong_rewards[:, world, agent]), np.flatnonzero(wrong_obs[:, world, agent])
        if len(rewards):
            turn, what = int(rewards[0]), f"a reward of {fragment.rewards[rewards[0], world, agent]}"
        else:
            turn, what = int(sights[0]), f"an observation outside {group.low:g} to {group.high:g}"
        origin, number = fragment.origin, spec.first_agent(fragment.origin.group) + agent
        turn += origin.first_turn
        invalid_samples.append(
            InvalidSample(origin.purpose, int(origin.episodes[world]), int(origin.worlds[world]), number, turn, what)
        )
        fragment.alive[:, world, agent] = False
    fragment.rewards[~np.isfinite(fragment.rewards)] = 0
    obs[~np.isfinite(obs)] = 0
    return invalid_samples


def _within(obs: NDArray[Any], group: Group) -> bool:
    """Whether all observations are numbers of the group's space: a quick look at the extremes."""
    if np.issubdtype(obs.dtype, np.integer):
        limits = np.iinfo(obs.dtype)
        if group.low <= limits.min and group.high >= limits.max:
            return True
    if not obs.size:
        return True
    low, high = obs.min(), obs.max()
    return bool(np.isfinite(low) and np.isfinite(high) and low >= group.low and high <= group.high)
