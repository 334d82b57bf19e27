"""Replay buffer: for each agent a ring of segments, so that turns of different worlds are never interleaved.

A segment is a life of one agent as far as it can be learned from (see `transitions`), stored contiguously: the frames
before its first turn, the turns in which it acted, and its last observation. Whole segments are overwritten, oldest
first. So no frame stack reaches across the end of a life, the end of the ring or the write position.
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
from remuda.learners.transitions import find_transitions, segments_of

MEMORY = "memory"
"""Name of the recurrent state before a turn, among the extras of a fragment whose turns are replayed."""
MAX_ELAPSED = 65535
"""The longest absence that is told from longer ones."""


class TransitionBatch(NamedTuple):
    """Transitions of some agents. Frame stacks are in the game's dtype, oldest frame first."""

    obs: NDArray[Any]  # (agents, batch, frames * obs)
    actions: NDArray[np.int64]  # (agents, batch)
    returns: NDArray[np.float32]  # (agents, batch): discounted rewards of n turns, or up to the segment's end
    next_obs: NDArray[Any]  # (agents, batch, frames * obs): the frame stack after those turns
    discounts: NDArray[np.float32]  # (agents, batch): of the value of next_obs; 0 if the episode terminated
    next_mask: NDArray[np.bool_] | None  # (agents, batch, actions)


@dataclass(frozen=True)
class Segment:
    """Where a segment is in the ring: positions begin … end-1, its turns from `first` on, then its last observation."""

    begin: int
    first: int
    end: int

    @property
    def turns(self) -> int:
        """How many transitions it has."""
        return self.end - self.first - 1


class ReplayBuffer:
    """The replay buffers of neighbouring agents, each its own, in arrays (agents, capacity, …)."""

    def __init__(
        self, group: Group, agents: int, capacity: int, frames: int, in_turn: bool = False, memory: int = 0
    ) -> None:
        """`in_turn` as in LearnerContext; `memory` numbers of a recurrent state are stored before each turn."""
        self.agents = agents
        self.capacity = capacity
        self.frames = frames
        self.in_turn = in_turn
        self.action_count = group.actions
        size = int(np.prod(group.obs_shape))
        shape = (agents, capacity)
        self.obs = np.zeros((*shape, size), group.obs_dtype)
        self.actions = np.zeros(shape, np.int32)
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)
        self.elapsed = np.ones(shape, np.uint16)  # turns until the next observation
        self.mask = np.ones((*shape, group.actions), np.bool_) if group.masked else None
        self.memory = np.zeros((*shape, memory), np.float32) if memory else None
        self.segments: list[deque[Segment]] = [deque() for _ in range(agents)]
        self.heads = [0] * agents  # the position after the newest segment
        self.counts = np.zeros(agents, np.int64)  # transitions each agent can draw from
        self._table: NDArray[np.int64] | None = None  # see `_make_table`; None after a change

    @property
    def nbytes(self) -> int:
        """Bytes of all agents' buffers."""
        arrays = (self.obs, self.actions, self.rewards, self.terminated, self.elapsed, self.mask, self.memory)
        return sum(array.nbytes for array in arrays if array is not None)

    def take(self, fragment: Fragment) -> None:
        """Copy the segments of a fragment that has the agents of these buffers and no others."""
        assert fragment.actions.shape[2] == self.agents, "the fragment has other agents, too"
        self._table = None
        found = find_transitions(fragment, self.in_turn)
        for agent in range(self.agents):
            for world in range(len(fragment.origin.worlds)):
                for turns, last in segments_of(found, world, agent):
                    segment = self._store(fragment, world, agent, turns, last)
                    elapsed = found.elapsed[turns, world, agent]
                    self.elapsed[agent, segment.first : segment.end - 1] = np.minimum(elapsed, MAX_ELAPSED)

    def _store(self, fragment: Fragment, world: int, agent: int, turns: NDArray[np.int64], last: int) -> Segment:
        """Copy a life; `last` is the index of the observation after it. Frames before it are those of the fragment."""
        lead = min(int(fragment.ages[turns[0], world, agent]), self.frames - 1, fragment.before)
        segment = self._allocate(agent, lead, len(turns))
        frames, acted = np.arange(fragment.before - lead, fragment.before), slice(segment.first, segment.end - 1)
        seen = np.concatenate([turns, [last]])
        own = fragment.obs[np.concatenate([frames, fragment.before + seen]), world, agent]
        self.obs[agent, segment.begin : segment.end] = own.reshape(len(own), -1)
        self.actions[agent, acted] = fragment.actions[turns, world, agent]
        self.rewards[agent, acted] = fragment.rewards[turns, world, agent]
        self.terminated[agent, acted] = fragment.terminated[turns, world, agent]
        if self.mask is not None and fragment.mask is not None:
            self.mask[agent, segment.first : segment.end] = fragment.mask[seen, world, agent]
        if self.memory is not None:
            self.memory[agent, acted] = fragment.extras[MEMORY][turns, world, agent, : self.memory.shape[2]]
        return segment

    def _allocate(self, agent: int, lead: int, turns: int) -> Segment:
        """Reserve positions for a segment, from 0 on if the ring's end is too near; drop segments that are there."""
        length = lead + turns + 1
        head = self.heads[agent]
        segments = self.segments[agent]
        if head + length > self.capacity:
            while segments and segments[0].begin >= head:
                self.counts[agent] -= segments.popleft().turns
            head = 0
        while segments and head <= segments[0].begin < head + length:
            self.counts[agent] -= segments.popleft().turns
        segment = Segment(head, head + lead, head + length)
        segments.append(segment)
        self.heads[agent] = segment.end
        self.counts[agent] += turns
        return segment

    def sample(
        self, first: int, last: int, keys: Keys, batch: int, n_step: int, gamma: NDArray[np.float64]
    ) -> TransitionBatch:
        """Sample transitions uniformly with replacement, for agents first … last-1, with one key per agent."""
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
        stored = (self.obs, self.actions, self.rewards, self.terminated, self.elapsed, self.table, self.counts)
        _sample(tuple(array[first:last] for array in stored), keys, self.frames, n_step, gamma, out[:5], ahead)
        if self.mask is None:
            return out
        return out._replace(next_mask=self.mask[np.arange(first, last)[:, None], ahead])

    @property
    def table(self) -> NDArray[np.int64]:
        """Where the transitions are, see `_make_table`."""
        if self._table is None:
            self._table = self._make_table()
        return self._table

    def _make_table(self) -> NDArray[np.int64]:
        """Per agent and segment: transitions in earlier segments, first, begin, end; (agents, segments, 4)."""
        length = max((len(segments) for segments in self.segments), default=0)
        table = np.full((self.agents, length, 4), np.iinfo(np.int64).max)
        for agent, segments in enumerate(self.segments):
            before = 0
            for i, segment in enumerate(segments):
                table[agent, i] = (before, segment.first, segment.begin, segment.end)
                before += segment.turns
        return table

    def state(self) -> dict[str, NDArray[Any]]:
        """All arrays, one row per agent. `leads` and `lengths` describe a segment at the position where it begins."""
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
            "elapsed": self.elapsed,
            "leads": leads,
            "lengths": lengths,
            "heads": np.array(self.heads, np.int64),
        }
        arrays |= {} if self.mask is None else {"mask": self.mask}
        return arrays if self.memory is None else {**arrays, "memory": self.memory}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become equal to the buffer that `state` came from, whose shapes and types the learner has checked.

        Positions and actions are checked here, because compiled code uses them as indices without bounds checks.
        """
        own = self.state()
        for agent in range(self.agents):
            _check_ring(state["leads"][agent], state["lengths"][agent], int(state["heads"][agent]))
        if state["actions"].min() < 0 or state["actions"].max() >= self.action_count:
            raise CheckpointError("the checkpoint's replay buffer has actions that this game does not have")
        for name in ("obs", "actions", "rewards", "terminated", "elapsed", "mask", "memory"):
            if name in own:
                own[name][:] = state[name]
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


def _check_ring(leads: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]], head: int) -> None:
    """Raise unless the segments are inside the ring, do not overlap, and have at least one turn each."""
    leads, lengths = leads.astype(np.int64), lengths.astype(np.int64)  # sums of 32 bits would wrap
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
        raise CheckpointError("the checkpoint's replay buffer has segments outside its capacity: the file was altered")


@kernel
def fill_frame_stack(obs: Any, position: int, begin: int, frames: int, out: Any) -> None:
    """Copy the frames up to `position` that belong to its segment; earlier ones stay zero."""
    size = obs.shape[1]
    for f in range(frames):
        source = position - (frames - 1 - f)
        if source >= begin:
            for i in range(size):
                out[f * size + i] = obs[source, i]


@kernel
def find_segment(table: Any, index: int) -> int:
    """The segment that contains transition `index`, by bisection."""
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
def n_step_return(rewards: Any, elapsed: Any, first: int, last: int, gamma: float) -> tuple[float, float]:
    """The discounted rewards from `first` up to before `last`, and the discount of what comes then."""
    total = 0.0
    discount = 1.0
    for s in range(first, last):
        total += discount * rewards[s]
        for _ in range(elapsed[s]):
            discount *= gamma
    return total, discount


@kernel
def _sample(stored: Any, keys: Any, frames: int, n_step: int, gamma: Any, out: Any, out_ahead: Any) -> None:
    obs, actions, rewards, terminated, elapsed, table, counts = stored
    out_obs, out_actions, out_returns, out_next, out_discounts = out
    for a in range(out_actions.shape[0]):
        for b in range(out_actions.shape[1]):
            index = below(keys[a], b, counts[a])
            row = table[a, find_segment(table[a], index)]
            position = row[1] + index - row[0]
            ahead = min(position + n_step, row[3] - 1)
            total, discount = n_step_return(rewards[a], elapsed[a], position, ahead, gamma[a])
            fill_frame_stack(obs[a], position, row[2], frames, out_obs[a, b])
            fill_frame_stack(obs[a], ahead, row[2], frames, out_next[a, b])
            out_actions[a, b] = actions[a, position]
            out_returns[a, b] = total
            out_discounts[a, b] = 0.0 if terminated[a, ahead - 1] else discount
            out_ahead[a, b] = ahead
