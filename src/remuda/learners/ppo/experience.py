"""What agents lived through in a round, as PPO learns from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.kernels import kernel


class Experience(NamedTuple):
    """Turns that neighbouring agents lived through, as many each, agents first and episode after episode."""

    windows: NDArray[Any]  # (agents, rows, frames * obs), in the game's dtype
    actions: NDArray[np.int64]  # (agents, rows)
    log_probs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]
    mask: NDArray[np.bool_]  # (agents, rows, actions), or no actions where all are always allowed

    def pick(self, rows: NDArray[np.int64]) -> Experience:
        """Some rows of each agent, (agents, picked)."""
        agents = np.arange(len(rows))[:, None]
        picked: list[Any] = [array[agents, rows] for array in self]
        return Experience(*picked)

    def cut(self, first: int, last: int) -> Experience:
        """Rows first … last-1 of every agent, as views."""
        views: list[Any] = [array[:, first:last] for array in self]
        return Experience(*views)


def lived(fragment: Fragment, array: NDArray[Any], agent: int) -> NDArray[Any]:
    """The entries (turns, worlds, agents, …) of one agent's own turns, world after world."""
    own: NDArray[Any] = array[:, :, agent].swapaxes(0, 1)[fragment.alive[:, :, agent].T]
    return own


def windows(fragment: Fragment, frames: int, ahead: int = 0) -> NDArray[Any]:
    """Stacked frames of every turn, or of the one after it: (turns, worlds, agents, frames * obs)."""
    obs = fragment.obs.reshape(*fragment.obs.shape[:3], -1)
    turns, worlds, agents = fragment.actions.shape
    if frames == 1:
        first = fragment.before + ahead
        return obs[first : first + turns]
    out = np.zeros((turns, worlds, agents, frames * obs.shape[3]), obs.dtype)
    _windows(obs, fragment.ages, fragment.before, frames, ahead, out)
    return out


@kernel
def _windows(obs: Any, ages: Any, before: int, frames: int, ahead: int, out: Any) -> None:
    turns, worlds, agents = ages.shape
    size = obs.shape[3]
    for t in range(turns):
        for w in range(worlds):
            for a in range(agents):
                for f in range(max(0, frames - 1 - ages[t, w, a] - ahead), frames):
                    source = before + t + ahead - (frames - 1 - f)
                    for i in range(size):
                        out[t, w, a, f * size + i] = obs[source, w, a, i]


@kernel
def discount_advantages(
    rewards: Any, values: Any, following: Any, flags: Any, gamma: Any, decay: float, out: Any
) -> None:
    terminated, ended, alive = flags
    turns, worlds, agents = rewards.shape
    for w in range(worlds):
        for a in range(agents):
            ahead = 0.0
            for t in range(turns - 1, -1, -1):
                if not alive[t, w, a]:
                    ahead = 0.0
                    continue
                beyond = 0.0 if terminated[t, w, a] else gamma[a] * following[t, w, a]
                carry = 0.0 if ended[t, w, a] else gamma[a] * decay * ahead
                ahead = rewards[t, w, a] + beyond - values[t, w, a] + carry
                out[t, w, a] = ahead


class Statistics:
    """Running mean and spread of numbers each agent has seen, (agents, numbers); Chan's parallel formula."""

    def __init__(self, agents: int, numbers: int) -> None:
        self.moments = np.zeros((agents, 1 + 2 * numbers))  # count, means, sums of squared deviations

    def add(self, agent: int, rows: NDArray[np.float64]) -> None:
        """Count rows (rows, numbers) of one agent."""
        if not len(rows):
            return
        own, numbers = self.moments[agent], rows.shape[1]
        count, means, squares = own[0], own[1 : 1 + numbers], own[1 + numbers :]
        fresh, total = rows.mean(axis=0), own[0] + len(rows)
        delta = fresh - means
        squares += ((rows - fresh) ** 2).sum(axis=0) + delta**2 * count * len(rows) / total
        means += delta * len(rows) / total
        own[0] = total

    def scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Centre and spread, (agents, numbers) each; 0 and 1 for an agent that has seen fewer than two rows."""
        numbers = (self.moments.shape[1] - 1) // 2
        count, means, squares = np.split(self.moments, [1, 1 + numbers], axis=1)
        known = count > 1
        spread = np.sqrt(squares / np.maximum(count, 1))
        return np.where(known, means, 0.0), np.where(known, spread, 1.0)
