"""What agents remember: for each, a ring of stretches, never of interleaved worlds.

A stretch is consecutive turns in which one agent was alive, stored with its last observation and the
frames before its first turn, in one piece. Whole stretches are forgotten, oldest first, so no window
crosses a seam or the write head, and every frame in a window belongs to it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import CheckpointError
from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below


class TransitionBatch(NamedTuple):
    """Transitions for some agents, agents first. Windows are in the game's dtype, oldest frame first."""

    obs: NDArray[Any]  # (agents, batch, frames * obs)
    actions: NDArray[np.int64]  # (agents, batch)
    returns: NDArray[np.float32]  # (agents, batch): discounted reward of the next n turns, or to the end
    next_obs: NDArray[Any]  # (agents, batch, frames * obs): the window after those turns
    discounts: NDArray[np.float32]  # (agents, batch): of what comes after; 0 where the stretch terminated
    next_mask: NDArray[np.bool_] | None  # (agents, batch, actions)


@dataclass(frozen=True)
class Segment:
    """Where a stretch lies: slots begin … end-1, its turns from `first` on, then the last observation."""

    begin: int
    first: int
    end: int

    @property
    def turns(self) -> int:
        """How many transitions it offers."""
        return self.end - self.first - 1


class ReplayBuffer:
    """Private memories of neighbouring agents, with one allocation for all."""

    def __init__(self, group: Group, agents: int, capacity: int, frames: int) -> None:
        self.agents = agents
        self.capacity = capacity
        self.frames = frames
        self.choices = group.actions
        size = int(np.prod(group.obs_shape))
        slots = (agents, capacity)
        self.obs = np.zeros((*slots, size), group.obs_dtype)
        self.actions = np.zeros(slots, np.int32)
        self.rewards = np.zeros(slots, np.float32)
        self.terminated = np.zeros(slots, np.bool_)
        self.mask = np.ones((*slots, group.actions), np.bool_) if group.masked else None
        self.segments: list[deque[Segment]] = [deque() for _ in range(agents)]
        self.heads = [0] * agents
        self.counts = np.zeros(agents, np.int64)  # transitions each agent can draw from
        self._table: NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all agents' memories."""
        mask = 0 if self.mask is None else self.mask.nbytes
        return self.obs.nbytes + self.actions.nbytes + self.rewards.nbytes + self.terminated.nbytes + mask

    def take(self, fragment: Fragment) -> None:
        """Remember the stretches of a fragment that holds this memory's agents and nobody else."""
        assert fragment.actions.shape[2] == self.agents, "the fragment holds other agents too"
        self._table = None
        for agent in range(self.agents):
            for world in range(len(fragment.origin.worlds)):
                for start, stop in _runs(fragment, world, agent):
                    self._store(fragment, world, agent, start, stop)

    def _store(self, fragment: Fragment, world: int, agent: int, start: int, stop: int) -> None:
        lead = min(int(fragment.ages[start, world, agent]), self.frames - 1, fragment.before + start)
        place = self._make_room(agent, lead, stop - start)
        source = fragment.before + start - lead
        self.obs[agent, place.begin : place.end] = fragment.obs[
            source : fragment.before + stop + 1, world, agent
        ].reshape(place.end - place.begin, -1)
        turns = slice(place.first, place.end - 1)
        self.actions[agent, turns] = fragment.actions[start:stop, world, agent]
        self.rewards[agent, turns] = fragment.rewards[start:stop, world, agent]
        self.terminated[agent, turns] = fragment.terminated[start:stop, world, agent]
        if self.mask is not None and fragment.mask is not None:
            self.mask[agent, place.first : place.end] = fragment.mask[start : stop + 1, world, agent]

    def _make_room(self, agent: int, lead: int, turns: int) -> Segment:
        """Forget what is in the way of the next stretch; it begins again at 0 where the end is too near."""
        length = lead + turns + 1
        head = self.heads[agent]
        segments = self.segments[agent]
        if head + length > self.capacity:
            while segments and segments[0].begin >= head:
                self.counts[agent] -= segments.popleft().turns
            head = 0
        while segments and head <= segments[0].begin < head + length:
            self.counts[agent] -= segments.popleft().turns
        place = Segment(head, head + lead, head + length)
        segments.append(place)
        self.heads[agent] = place.end
        self.counts[agent] += turns
        return place

    def sample(
        self, first: int, last: int, keys: Keys, batch: int, n_step: int, gamma: NDArray[np.float64]
    ) -> TransitionBatch:
        """Draw transitions uniformly, with replacement, for agents first … last-1 with one key each."""
        if self._table is None:
            self._table = self._tabulate()
        agents = last - first
        width = self.frames * self.obs.shape[2]
        out = TransitionBatch(
            obs=np.zeros((agents, batch, width), self.obs.dtype),
            actions=np.zeros((agents, batch), np.int64),
            returns=np.zeros((agents, batch), np.float32),
            next_obs=np.zeros((agents, batch, width), self.obs.dtype),
            discounts=np.zeros((agents, batch), np.float32),
            next_mask=None,
        )
        ahead = np.zeros((agents, batch), np.int64)
        kept = (self.obs, self.actions, self.rewards, self.terminated, self._table, self.counts)
        _sample(tuple(array[first:last] for array in kept), keys, self.frames, n_step, gamma, out[:5], ahead)
        if self.mask is None:
            return out
        return out._replace(next_mask=self.mask[np.arange(first, last)[:, None], ahead])

    def _tabulate(self) -> NDArray[np.int64]:
        """Per agent and stretch: transitions before it, first turn, begin, end; (agents, stretches, 4)."""
        most = max((len(segments) for segments in self.segments), default=0)
        table = np.full((self.agents, most, 4), np.iinfo(np.int64).max)
        for agent, segments in enumerate(self.segments):
            before = 0
            for i, segment in enumerate(segments):
                table[agent, i] = (before, segment.first, segment.begin, segment.end)
                before += segment.turns
        return table

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything, one row per agent; a stretch is noted where it begins, as its lead and length."""
        leads = np.zeros((self.agents, self.capacity), np.int32)
        lengths = np.zeros((self.agents, self.capacity), np.int32)
        for agent, segments in enumerate(self.segments):
            for segment in segments:
                leads[agent, segment.begin] = segment.first - segment.begin
                lengths[agent, segment.begin] = segment.end - segment.begin
        arrays = {
            "obs": self.obs,
            "actions": self.actions,
            "rewards": self.rewards,
            "terminated": self.terminated,
            "leads": leads,
            "lengths": lengths,
            "heads": np.array(self.heads, np.int64),
        }
        return arrays if self.mask is None else {**arrays, "mask": self.mask}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become the memory that `state` was taken from, whose shapes and types the learner has checked.

        Compiled code trusts the rest, so that is checked first.
        """
        mine = self.state()
        for agent in range(self.agents):
            _check_ring(state["leads"][agent], state["lengths"][agent], int(state["heads"][agent]))
        if state["actions"].min() < 0 or state["actions"].max() >= self.choices:
            raise CheckpointError("the checkpoint's memory has actions that this game has not")
        for name in ("obs", "actions", "rewards", "terminated", "mask"):
            if name in mine:
                mine[name][:] = state[name]
        self.heads = [int(head) for head in state["heads"]]
        self._table = None
        for agent in range(self.agents):
            begins = np.flatnonzero(state["lengths"][agent])
            begins = np.concatenate([begins[begins >= self.heads[agent]], begins[begins < self.heads[agent]]])
            self.segments[agent] = deque(
                Segment(
                    int(begin),
                    int(begin + state["leads"][agent, begin]),
                    int(begin + state["lengths"][agent, begin]),
                )
                for begin in begins
            )
            self.counts[agent] = sum(segment.turns for segment in self.segments[agent])


def _check_ring(leads: NDArray[np.int32], lengths: NDArray[np.int32], head: int) -> None:
    """Raise unless stretches lie one after the other inside the ring, each with room for a turn."""
    begins = np.flatnonzero(lengths)
    ends = begins + lengths[begins]
    good = (
        0 <= head <= len(lengths)
        and (ends <= len(lengths)).all()
        and (begins[1:] >= ends[:-1]).all()
        and (leads[begins] >= 0).all()
        and (lengths[begins] >= leads[begins] + 2).all()
        and not leads[lengths == 0].any()
        and not ((begins < head) & (ends > head)).any()
    )
    if not good:
        raise CheckpointError("the checkpoint's memory points outside itself: it was altered")


def _runs(fragment: Fragment, world: int, agent: int) -> list[tuple[int, int]]:
    """The stretches of one agent in one world of a fragment, as (start, stop) turns."""
    alive = fragment.alive[:, world, agent]
    ended = fragment.terminated[:, world, agent] | fragment.truncated[:, world, agent]
    if not len(alive):
        return []
    if alive.all() and not ended[:-1].any():
        return [(0, len(alive))]
    runs = []
    start = None
    for turn in range(len(alive)):
        if alive[turn] and start is None:
            start = turn
        if start is not None and (not alive[turn] or ended[turn]):
            runs.append((start, turn + 1 if alive[turn] else turn))
            start = None
    if start is not None:
        runs.append((start, len(alive)))
    return runs


@kernel
def _window(obs: Any, slot: int, begin: int, frames: int, out: Any) -> None:
    """Copy the frames up to `slot` that belong to its stretch; earlier ones stay zero."""
    size = obs.shape[1]
    for f in range(frames):
        source = slot - (frames - 1 - f)
        if source >= begin:
            for i in range(size):
                out[f * size + i] = obs[source, i]


@kernel
def _find(table: Any, index: int) -> int:
    """The last stretch that begins at or before transition `index`."""
    low = 0
    high = table.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle, 0] <= index:
            low = middle
        else:
            high = middle
    return low


@kernel
def _sample(kept: Any, keys: Any, frames: int, n_step: int, gamma: Any, out: Any, out_ahead: Any) -> None:
    obs, actions, rewards, terminated, table, counts = kept
    out_obs, out_actions, out_returns, out_next, out_discounts = out
    for a in range(out_actions.shape[0]):
        for b in range(out_actions.shape[1]):
            index = below(keys[a], b, counts[a])
            row = table[a, _find(table[a], index)]
            slot = row[1] + index - row[0]
            ahead = min(slot + n_step, row[3] - 1)
            total = 0.0
            discount = 1.0
            for s in range(slot, ahead):
                total += discount * rewards[a, s]
                discount *= gamma[a]
            _window(obs[a], slot, row[2], frames, out_obs[a, b])
            _window(obs[a], ahead, row[2], frames, out_next[a, b])
            out_actions[a, b] = actions[a, slot]
            out_returns[a, b] = total
            out_discounts[a, b] = 0.0 if terminated[a, ahead - 1] else discount
            out_ahead[a, b] = ahead
