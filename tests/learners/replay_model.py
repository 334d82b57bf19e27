"""A model of the replay buffer: random histories, and which transitions may be sampled from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import strategies as st

from remuda.core import rng
from remuda.core.fragment import Fragment, Origin, Purpose, empty_fragment
from remuda.core.game import Group
from remuda.core.rng import Stream
from remuda.learners.replay import ReplayBuffer, TransitionBatch

GROUP = Group("tested", 3, (2, 2), np.int32, 4)
FIRST = 1  # the buffer has agents 1 and 2 of three
AGENTS = 2
SAMPLES = 3000  # of at most about 60 transitions: the probability to miss one is below 1e-18
GAMMA = np.array([0.9, 0.5])


@dataclass(frozen=True)
class Trajectory:
    """The turns in which one agent of one world acted until it died or the episode ended; in others it was away."""

    turns: list[int]
    ending: str  # terminated, truncated, or away: it does not come back in this episode


@dataclass
class AgentEpisode:
    """One episode of one agent in one world, in plain lists."""

    turns: int
    trajectories: list[Trajectory]
    obs: list[int]  # the number observed in each turn, and after the last
    rewards: list[float]
    actions: list[int]

    @property
    def acted(self) -> list[int]:
        return [turn for trajectory in self.trajectories for turn in trajectory.turns]


@dataclass
class StoredSegment:
    """The part of a trajectory in one fragment."""

    record: AgentEpisode
    trajectory: Trajectory
    turns: list[int]  # that can be learned from
    last_turn: int  # of the observation after them
    last: int  # the number in that observation


@dataclass
class Expected:
    """The transition that must be sampled at some observation."""

    stack: list[int]
    action: int
    total: float
    next_stack: list[int] | None  # None after termination: it is not used
    discount: float


@dataclass
class History:
    """Fragments in order, and per agent of the buffer the segments that were stored, in order."""

    fragments: list[Fragment]
    segments: list[list[StoredSegment]] = field(default_factory=list)


@st.composite
def drawn_trajectories(draw: st.DrawFn, turns: int) -> list[Trajectory]:
    result, turn = [], draw(st.integers(0, 2))
    while turn < turns:
        own = []
        for _ in range(draw(st.integers(1, 3))):
            stop = min(turns, turn + draw(st.integers(1, 4)))
            own += range(turn, stop)
            turn = stop + draw(st.integers(1, 3))
            if turn >= turns:
                break
        ending = draw(st.sampled_from(["terminated", "truncated", "away"])) if turn < turns else "away"
        if own[-1] == turns - 1:
            ending = draw(st.sampled_from(["terminated", "truncated"]))
        result.append(Trajectory(own, ending))
        if ending == "terminated":
            turn = own[-1] + 1  # back at once: no value of that observation is used
        elif ending == "away":
            break
    return result


@st.composite
def histories(draw: st.DrawFn, frames: int) -> History:
    """A few episodes of one or two worlds, each cut into slices."""
    history = History([], [[] for _ in range(AGENTS)])
    number = 0
    for episode in range(draw(st.integers(1, 4))):
        turns, worlds, step = draw(st.integers(1, 10)), draw(st.integers(1, 2)), draw(st.integers(1, 10))
        episodes: dict[tuple[int, int], AgentEpisode] = {}
        for world in range(worlds):
            for agent in range(GROUP.size):
                obs = list(range(number + 1, number + turns + 2))
                number += turns + 1
                rewards = [float(np.float32(0.1 * o)) for o in obs[:-1]]
                episodes[world, agent] = AgentEpisode(
                    turns, draw(drawn_trajectories(turns)), obs, rewards, [o % 4 for o in obs]
                )
        for first in range(0, turns, step):
            last = min(first + step, turns)
            append_fragment(history, episodes, episode, worlds, first, last, frames)
    return history


def append_fragment(
    history: History,
    episodes: dict[tuple[int, int], AgentEpisode],
    episode: int,
    worlds: int,
    first: int,
    last: int,
    frames: int,
) -> None:
    """Append turns first … last-1 as a fragment, with invalid values wherever the agent is not alive."""
    numbers = np.arange(worlds)
    origin = Origin(0, numbers, numbers + episode * worlds, first, Purpose.TRAIN)
    fragment = empty_fragment(origin, GROUP, last - first, frames - 1)
    fragment.obs[:] = -99
    fragment.rewards[:] = np.nan
    fragment.ages[:] = 77
    fragment.actions[:] = -1
    for (world, agent), record in episodes.items():
        before = [turn for turn in record.acted if turn < first][-(frames - 1) :] if frames > 1 else []
        for back, turn in enumerate(reversed(before)):
            fragment.obs[frames - 2 - back, world, agent] = _image(record.obs[turn])
        for turn in range(first, last):
            fragment.obs[frames - 1 + turn - first, world, agent] = _image(record.obs[turn])
        fragment.obs[-1, world, agent] = _image(_last_number(record, last))
        fragment.away[world, agent] = last not in record.acted
        for trajectory in record.trajectories:
            _fill_trajectory(fragment, (world, agent), record, trajectory, range(first, last))
    for agent in range(AGENTS):
        for world in range(worlds):
            record = episodes[world, FIRST + agent]
            for trajectory in record.trajectories:
                history.segments[agent] += _stored(record, trajectory, range(first, last))
    history.fragments.append(fragment)


def _last_number(record: AgentEpisode, last: int) -> int:
    """What a fragment shows after its last turn: a slice ends between turns."""
    return record.obs[last] if last == record.turns else -record.obs[last]


def _fill_trajectory(
    fragment: Fragment, who: tuple[int, int], record: AgentEpisode, trajectory: Trajectory, turns: range
) -> None:
    for age, turn in enumerate(trajectory.turns):
        if turn in turns:
            at = (turn - turns.start, *who)
            fragment.alive[at] = True
            fragment.ages[at] = age
            fragment.rewards[at] = record.rewards[turn]
            fragment.actions[at] = record.actions[turn]
            if turn == trajectory.turns[-1] and trajectory.ending != "away":
                getattr(fragment, trajectory.ending)[at] = True


def _stored(record: AgentEpisode, trajectory: Trajectory, turns: range) -> list[StoredSegment]:
    """What of a trajectory can be learned from in a fragment of these turns."""
    own = [turn for turn in trajectory.turns if turn in turns]
    if own and own[-1] == trajectory.turns[-1] and trajectory.ending != "away":
        after = own[-1] + 1
        shown = record.obs[after] if after < turns.stop else _last_number(record, after)
        return [StoredSegment(record, trajectory, own, after, shown)]
    if own and turns.stop in trajectory.turns:
        return [StoredSegment(record, trajectory, own, turns.stop, _last_number(record, turns.stop))]
    if len(own) > 1:  # nobody knows what the last action led to
        return [StoredSegment(record, trajectory, own[:-1], own[-1], record.obs[own[-1]])]
    return []


def _image(number: int) -> np.ndarray:
    return number * np.array([[1, 2], [3, 4]])


def expectations(history: History, agent: int, frames: int, n_step: int) -> list[dict[int, Expected]]:
    """Per stored segment: the transition to sample at each of its observations."""
    result = []
    for stored in history.segments[agent]:
        record, gamma = stored.record, float(GAMMA[agent])
        acted = [turn for turn in stored.trajectory.turns if turn < stored.last_turn]
        seen = [0] * frames + [record.obs[turn] for turn in acted] + [stored.last]
        times = [*acted, stored.last_turn]
        known = {}
        for turn in stored.turns:
            at = acted.index(turn)
            ahead = min(at + n_step, len(acted))
            dead = (
                ahead == len(acted)
                and acted[-1] == stored.trajectory.turns[-1]
                and stored.trajectory.ending == "terminated"
            )
            known[record.obs[turn]] = Expected(
                stack=seen[at + 1 : at + 1 + frames],
                action=record.actions[turn],
                total=sum(gamma ** (times[i] - turn) * record.rewards[times[i]] for i in range(at, ahead)),
                next_stack=None if dead else seen[ahead + 1 : ahead + 1 + frames],
                discount=0.0 if dead else gamma ** (times[ahead] - turn),
            )
        result.append(known)
    return result


def sample_many(buffer: ReplayBuffer, n_step: int, key: int = 0) -> TransitionBatch:
    keys = rng.keys(rng.key(key, Stream.SAMPLE), np.arange(buffer.agents))
    return buffer.sample(0, buffer.agents, keys, SAMPLES, n_step, GAMMA[: buffer.agents])


def frames_of(stack: np.ndarray) -> list[int]:
    """The numbers of the observations in a frame stack; asserts that each observation is complete."""
    parts = stack.reshape(-1, 4)
    assert (parts == parts[:, :1] * [1, 2, 3, 4]).all()
    numbers: list[int] = parts[:, 0].tolist()
    return numbers


def assert_expected(batch: TransitionBatch, agent: int, known: dict[int, Expected]) -> set[int]:
    """Every sample of an agent is the expected transition; returns the numbers of the sampled observations."""
    started = set()
    _, firsts = np.unique(batch.obs[agent], axis=0, return_index=True)
    for i in firsts:
        stack = frames_of(batch.obs[agent, i])
        truth = known[stack[-1]]
        assert stack == truth.stack
        assert batch.actions[agent, i] == truth.action
        assert batch.returns[agent, i] == pytest.approx(truth.total, rel=1e-6)
        assert batch.discounts[agent, i] == pytest.approx(truth.discount, rel=1e-6)
        if truth.next_stack is not None:
            assert frames_of(batch.next_obs[agent, i]) == truth.next_stack
        started.add(stack[-1])
    return started


def longest(history: History, frames: int) -> int:
    """Positions that the longest segment could need."""
    return max(fragment.turns for fragment in history.fragments) + frames


def ready(buffer: ReplayBuffer) -> bool:
    return bool((buffer.counts > 0).all())
