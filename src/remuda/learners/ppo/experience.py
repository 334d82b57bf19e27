"""The data of a round in the form that PPO learns from: rows of agents, frame stacks, advantages."""

from __future__ import annotations

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


def rows_of(array: NDArray[Any], which: NDArray[np.bool_], agent: int) -> NDArray[Any]:
    """Entries of `array` (turns, worlds, agents, …) where `which` is true, world after world: (rows, …)."""
    rows: NDArray[Any] = array[:, :, agent].swapaxes(0, 1)[which[:, :, agent].T]
    return rows


def places(fragment: Fragment, length: int) -> NDArray[np.int64]:
    """Each action's number in its sequence, (turns, worlds, agents, 1): lives are cut after every `length` actions."""
    out = np.zeros(fragment.ages.shape, np.int64)
    number = np.full(fragment.ages.shape[1:], -1)
    for turn, acted in enumerate(fragment.alive):
        number = np.where(acted, np.where(fragment.ages[turn] == 0, 0, number + 1), number)
        out[turn] = number
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
    """The last `frames` observations acted on, at every turn, oldest first: (turns, worlds, agents, frames * obs).

    Frames of earlier lives are zero. With one frame this is a view.
    """
    obs = fragment.obs.reshape(*fragment.obs.shape[:3], -1)
    turns, worlds, agents = fragment.alive.shape
    if frames == 1:
        return obs[fragment.before : fragment.before + turns]
    out = np.zeros((turns, worlds, agents, frames * obs.shape[3]), obs.dtype)
    _fill_stacks(obs, fragment.alive, fragment.ages, fragment.before, frames, out)
    return out


@kernel
def _fill_stacks(obs: Any, alive: Any, ages: Any, before: int, frames: int, out: Any) -> None:
    turns, worlds, agents = ages.shape
    for t in range(turns):
        for w in range(worlds):
            for a in range(agents):
                if alive[t, w, a]:
                    fill_stack(obs, alive, before, (before + t, t, w, a), frames, ages[t, w, a], out[t, w, a])


@kernel
def fill_stack(obs: Any, alive: Any, before: int, where: Any, frames: int, age: int, out: Any) -> None:
    """Write the observation at `newest`, and of those before `turn` the last ones that the agent acted on."""
    newest, turn, w, a = where
    size = obs.shape[3]
    source, older = newest, before + turn - 1
    for f in range(frames - 1, max(-1, frames - 2 - age), -1):
        for i in range(size):
            out[f * size + i] = obs[source, w, a, i]
        while older >= before and not alive[older - before, w, a]:
            older -= 1
        if older < 0:
            break
        source, older = older, older - 1


def next_frame_stacks(
    fragment: Fragment, after: NDArray[np.int64], frames: int, rows: tuple[NDArray[np.int64], ...], agent: int
) -> NDArray[Any]:
    """The frame stack of one agent after each of some turns, (rows, frames * obs); `rows` are turns and worlds.

    The newest observation is the one that `after` names, see `Transitions`. It is not the stack of that turn in
    `frame_stacks` if the agent's life ended in between: that one starts anew, this one has the frames of the old life.
    """
    obs = fragment.obs.reshape(*fragment.obs.shape[:3], -1)
    out = np.zeros((len(rows[0]), frames * obs.shape[3]), obs.dtype)
    _fill_next_stacks(obs, fragment.alive, fragment.ages, after, fragment.before, frames, (*rows, agent), out)
    return out


@kernel
def _fill_next_stacks(
    obs: Any, alive: Any, ages: Any, after: Any, before: int, frames: int, which: Any, out: Any
) -> None:
    turns, worlds, a = which
    for row in range(len(turns)):
        t, w = turns[row], worlds[row]
        where = (before + after[t, w, a], t + 1, w, a)
        fill_stack(obs, alive, before, where, frames, ages[t, w, a] + 1, out[row])


@kernel
def generalised_advantages(
    rewards: Any, values: Any, after: Any, flags: Any, elapsed: Any, gamma: float, decay: float, out: Any
) -> None:
    """Generalised advantage estimation (Schulman et al. 2016), backwards through an agent's turns, (rows,) each.

    `flags` are terminated and cut off. A turn that is neither is followed by the next row. `after` has the values of
    the observations after turns that are cut off, in their order. `elapsed` turns discount the value after a turn.
    """
    terminated, cut_off = flags
    advantage, left = 0.0, len(after)
    for i in range(len(rewards) - 1, -1, -1):
        discount, future, carry = gamma, 0.0, 0.0
        for _ in range(1, elapsed[i]):
            discount *= gamma
        if cut_off[i]:
            left -= 1
            future = discount * after[left]
        elif not terminated[i]:
            future = discount * values[i + 1]
            carry = discount * decay * advantage
        advantage = rewards[i] + future - values[i] + carry
        out[i] = advantage
