"""Invalid samples: rewards that are not finite, observations that are not finite or out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.game import GameSpec, Group
from remuda.core.task import InvalidSample


def remove_invalid_samples(fragment: Fragment, spec: GameSpec) -> list[InvalidSample]:
    """Find invalid samples; returns at most one per world and agent, the first.

    An agent with an invalid sample learns nothing from that world: `alive` becomes False in all its turns. Values that
    are not finite become zero, so that sums over the arrays stay finite.
    """
    group = spec.groups[fragment.origin.group]
    obs = fragment.obs[fragment.before :].reshape(fragment.turns + 1, *fragment.alive.shape[1:], -1)
    wrong_states = _worlds_with_wrong_states(fragment)
    if _within(obs, group) and np.isfinite(fragment.rewards).all() and not wrong_states.any():
        return []
    alive = fragment.alive.copy()
    observed = np.concatenate([alive, np.zeros_like(alive[:1])])  # (turns + 1, worlds, agents)
    observed[1:] |= alive & (fragment.terminated | fragment.truncated)  # also what the agent's last action led to
    observed[-1] |= alive[-1] & ~fragment.away
    wrong_obs = observed & ~((obs >= group.low) & (obs <= group.high) & np.isfinite(obs)).all(axis=3)
    wrong_rewards = alive & ~np.isfinite(fragment.rewards)
    invalid_samples = []
    wrong = wrong_obs.any(axis=0) | wrong_rewards.any(axis=0)
    wrong |= np.any(wrong_states, axis=0, keepdims=True).T & alive.any(axis=0)
    for world, agent in np.argwhere(wrong).tolist():
        reward_turns = np.flatnonzero(wrong_rewards[:, world, agent])
        obs_turns = np.flatnonzero(wrong_obs[:, world, agent])
        if len(reward_turns):
            turn, message = int(reward_turns[0]), f"a reward of {fragment.rewards[reward_turns[0], world, agent]}"
        elif not len(obs_turns):
            turn, message = int(np.argmax(wrong_states[:, world])), "a privileged state that is not finite"
        else:
            turn, message = int(obs_turns[0]), f"an observation outside {group.low:g} to {group.high:g}"
        origin, number = fragment.origin, spec.first_agent(fragment.origin.group) + agent
        turn += origin.first_turn
        invalid_samples.append(
            InvalidSample(origin.purpose, int(origin.episodes[world]), int(origin.worlds[world]), number, turn, message)
        )
        fragment.alive[:, world, agent] = False
    fragment.rewards[~np.isfinite(fragment.rewards)] = 0
    obs[~np.isfinite(obs)] = 0
    if fragment.state is not None:
        fragment.state[wrong_states] = 0
    return invalid_samples


def _worlds_with_wrong_states(fragment: Fragment) -> NDArray[np.bool_]:
    """Where the privileged state has numbers that are not finite, (turns + 1, worlds)."""
    shape = (fragment.turns + 1, fragment.alive.shape[1])
    if fragment.state is None or fragment.state.dtype.kind != "f":
        return np.zeros(shape, np.bool_)
    wrong: NDArray[np.bool_] = ~np.isfinite(fragment.state).reshape(*shape, -1).all(axis=2)
    return wrong


def _within(obs: NDArray[Any], group: Group) -> bool:
    """Whether all observations are in the group's range. Looks at the extremes only, which is fast."""
    if np.issubdtype(obs.dtype, np.integer):
        limits = np.iinfo(obs.dtype)
        if group.low <= limits.min and group.high >= limits.max:
            return True
    if not obs.size:
        return True
    low, high = obs.min(), obs.max()
    return bool(np.isfinite(low) and np.isfinite(high) and low >= group.low and high <= group.high)
