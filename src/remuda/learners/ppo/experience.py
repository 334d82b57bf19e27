"""The data of a round in the form that PPO learns from: frame stacks, advantages, running moments."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.kernels import kernel


class Experience(NamedTuple):
    """Turns in which neighbouring agents acted, equally many for each, in the order of worlds and then time."""

    stacks: NDArray[Any]  # (agents, rows, frames * obs), in the game's dtype
    states: NDArray[Any]  # (agents, rows, state), or (agents, rows, 0) if the critic does not see it
    actions: NDArray[Any]  # (agents, rows, *action); continuous ones as they were before squashing, flat
    log_probs: NDArray[np.float32]  # (agents, rows): of the actions, by the policy that acted
    advantages: NDArray[np.float32]  # (agents, rows)
    returns: NDArray[np.float32]  # (agents, rows): targets of the critic
    mask: NDArray[np.bool_]  # (agents, rows, actions), or (agents, rows, 0) if all actions are always allowed
    memory: NDArray[np.float32]  # (agents, rows, numbers): recurrent state before the turn; (agents, rows, 0): none
    place: NDArray[np.int64]  # (agents, rows, 1): the turn's number in its sequence; (agents, rows, 0) without memory

    def pick(self, rows: NDArray[np.int64]) -> Experience:
        """Some rows of each agent; `rows` is (agents, picked)."""
        agents = np.arange(len(rows))[:, None]
        picked: list[Any] = [array[agents, rows] for array in self]
        return Experience(*picked)

    def slice(self, first: int, last: int) -> Experience:
        """Rows first … last-1 of every agent, as views."""
        views: list[Any] = [array[:, first:last] for array in self]
        return Experience(*views)


def alive_rows(fragment: Fragment, array: NDArray[Any], agent: int) -> NDArray[Any]:
    """Entries of `array` (turns, worlds, agents, …) in which an agent is alive, world after world: (rows, …)."""
    rows: NDArray[Any] = array[:, :, agent].swapaxes(0, 1)[fragment.alive[:, :, agent].T]
    return rows


def places(fragment: Fragment, length: int) -> NDArray[np.int64]:
    """Each turn's number in its sequence, (turns, worlds, agents, 1): lives are cut after every `length` turns."""
    out = np.zeros(fragment.ages.shape, np.int64)
    for turn in range(1, len(out)):
        out[turn] = np.where(fragment.ages[turn] == 0, 0, out[turn - 1] + 1)
    return (out % length)[..., None]


def sequence_lengths(place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turns of each sequence, from their numbers in it, (rows,)."""
    return np.diff(np.append(np.flatnonzero(place == 0), len(place)))


def privileged_states(fragment: Fragment, size: int) -> NDArray[Any]:
    """The privileged state beside every observation, (turns + 1, worlds, agents, size), as a view; `size` may be 0."""
    shape = (fragment.turns + 1, *fragment.alive.shape[1:], size)
    if not size:
        return np.zeros(shape, np.float32)
    assert fragment.state is not None, "the policy did not ask for the state"
    return np.broadcast_to(fragment.state.reshape(*shape[:2], 1, size), shape)


def frame_stacks(fragment: Fragment, frames: int) -> NDArray[Any]:
    """The last `frames` observations at every turn, oldest first: (turns, worlds, agents, frames * obs).

    Frames that are older than the agent are zero. With one frame this is a view.
    """
    obs = fragment.obs.reshape(*fragment.obs.shape[:3], -1)
    turns, worlds, agents = fragment.alive.shape
    if frames == 1:
        return obs[fragment.before : fragment.before + turns]
    out = np.zeros((turns, worlds, agents, frames * obs.shape[3]), obs.dtype)
    _fill_stacks(obs, fragment.ages, fragment.before, frames, out)
    return out


@kernel
def _fill_stacks(obs: Any, ages: Any, before: int, frames: int, out: Any) -> None:
    turns, worlds, agents = ages.shape
    size = obs.shape[3]
    for t in range(turns):
        for w in range(worlds):
            for a in range(agents):
                for f in range(max(0, frames - 1 - ages[t, w, a]), frames):
                    source = before + t - (frames - 1 - f)
                    for i in range(size):
                        out[t, w, a, f * size + i] = obs[source, w, a, i]


def next_frame_stacks(
    fragment: Fragment, frames: int, turns: NDArray[np.int64], worlds: NDArray[np.int64], agent: int
) -> NDArray[Any]:
    """The frame stack of one agent after each of some turns, (rows, frames * obs); row i is after turns[i].

    It is not the stack of the following turn in `frame_stacks` if the agent's episode ended in between: that one starts
    anew, this one still has the frames of the episode that ended.
    """
    ages = fragment.ages[turns, worlds, agent] + 1  # after the turn
    out = np.zeros((len(turns), frames, *fragment.obs.shape[3:]), fragment.obs.dtype)
    for back in range(frames):
        known = ages >= back
        out[known, frames - 1 - back] = fragment.obs[fragment.before + turns[known] + 1 - back, worlds[known], agent]
    return out.reshape(len(turns), frames * math.prod(fragment.obs.shape[3:]))


@kernel
def generalised_advantages(
    rewards: Any, values: Any, next_values: Any, flags: Any, gamma: Any, decay: float, out: Any
) -> None:
    """Generalised advantage estimation (Schulman et al. 2016), backwards through time; all (turns, worlds, agents)."""
    terminated, ended, alive = flags
    turns, worlds, agents = rewards.shape
    for w in range(worlds):
        for a in range(agents):
            advantage = 0.0
            for t in range(turns - 1, -1, -1):
                if not alive[t, w, a]:
                    advantage = 0.0
                    continue
                future = 0.0 if terminated[t, w, a] else gamma[a] * next_values[t, w, a]
                carry = 0.0 if ended[t, w, a] else gamma[a] * decay * advantage
                advantage = rewards[t, w, a] + future - values[t, w, a] + carry
                out[t, w, a] = advantage


class RunningMoments:
    """Running mean and standard deviation of `size` numbers per agent, by Chan's parallel formula."""

    def __init__(self, agents: int, size: int) -> None:
        self.moments = np.zeros((agents, 1 + 2 * size))  # count, means, sums of squared deviations

    def add(self, agent: int, rows: NDArray[np.float64]) -> None:
        """Include rows (rows, size) of one agent."""
        if not len(rows):
            return
        own, size = self.moments[agent], rows.shape[1]
        count, means, squares = own[0], own[1 : 1 + size], own[1 + size :]
        new_means, total = rows.mean(axis=0), own[0] + len(rows)
        delta = new_means - means
        squares += ((rows - new_means) ** 2).sum(axis=0) + delta**2 * count * len(rows) / total
        means += delta * len(rows) / total
        own[0] = total

    def mean_and_std(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both (agents, size); 0 and 1 for an agent with fewer than two rows."""
        size = (self.moments.shape[1] - 1) // 2
        count, means, squares = np.split(self.moments, [1, 1 + size], axis=1)
        known = count > 1
        std = np.sqrt(squares / np.maximum(count, 1))
        return np.where(known, means, 0.0), np.where(known, std, 1.0)
