"""Transitions: which of an agent's actions can be learned from, and what it saw after each.

An agent acts, is away for some turns, acts again: that is one life, and the observation after the first action is the
one before the second. What the agent was shown in between it never acted on. So no value is taken from it, and frame
stacks and sequences leave it out.

While an agent is away its time goes on: the value of what it sees when it is back is discounted once for every turn
(Sutton, Precup and Singh 1999). In games where agents act one after another no time passes while an agent waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.kernels import kernel


class Transitions(NamedTuple):
    """What follows each action of a fragment, all (turns, worlds, agents)."""

    after: NDArray[np.int64]
    """Index in obs[before:] of the observation after it; 0 where there is nothing to learn from.

    That is where the agent did not act, and where nobody knows what its action led to, because the agent was still away
    when the data ended.
    """
    elapsed: NDArray[np.int64]  # turns until that observation, which discount its value
    ends: NDArray[np.bool_]  # whether it is the last one of its life that can be learned from

    @property
    def learnable(self) -> NDArray[np.bool_]:
        """Where there is something to learn from."""
        return self.after > 0


def find_transitions(fragment: Fragment, in_turn: bool) -> Transitions:
    """What follows the actions of a fragment; `in_turn` as in LearnerContext."""
    turns, shape = len(fragment.alive), fragment.alive.shape
    ended = fragment.terminated | fragment.truncated
    after = np.zeros(shape, np.int64)
    _find_after(fragment.alive, fragment.ages, ended, fragment.away, after)
    elapsed = np.ones(shape, np.int64) if in_turn else after - np.arange(turns)[:, None, None]
    # No row of the fragment holds the observation after the last action, or one after which no action was taken.
    known = np.concatenate([after > 0, np.zeros((1, *shape[1:]), np.bool_)])
    return Transitions(after, elapsed, (after > 0) & (ended | ~np.take_along_axis(known, after, axis=0)))


@kernel
def _find_after(alive: Any, ages: Any, ended: Any, away: Any, out: Any) -> None:
    turns, worlds, agents = alive.shape
    for w in range(worlds):
        for a in range(agents):
            following = turns  # the next turn in which it acts
            for t in range(turns - 1, -1, -1):
                if not alive[t, w, a]:
                    continue
                if ended[t, w, a]:
                    out[t, w, a] = t + 1
                elif not away[w, a] if following == turns else ages[following, w, a] > 0:
                    out[t, w, a] = following
                following = t


def segments_of(found: Transitions, world: int, agent: int) -> Iterator[tuple[NDArray[np.int64], int]]:
    """For each life of one agent: the turns that can be learned from, and the index of the observation after them."""
    after = found.after[:, world, agent]
    turns = np.flatnonzero(after)
    lasts = np.flatnonzero(found.ends[turns, world, agent])
    first = 0
    for last in lasts.tolist():
        yield turns[first : last + 1], int(after[turns[last]])
        first = last + 1
