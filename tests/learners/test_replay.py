"""The replay buffer: every sampled transition happened, and every stored transition can be sampled.

An AgentEpisode says in plain Python what happened to one agent. Fragments are made from it. Every observation contains
a unique number, by which a sampled transition is found in it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core import rng
from remuda.core.fragment import Fragment, Origin, Purpose, empty_fragment, slice_agents
from remuda.core.game import Group, make_game
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.learners.replay import ReplayBuffer, TransitionBatch
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.testing import MASKED, RESPAWN

GROUP = Group("tested", 3, (2, 2), np.int32, 4)
FIRST = 1  # the buffer has agents 1 and 2 of three
AGENTS = 2
SAMPLES = 3000  # of at most about 60 transitions: the probability to miss one is below 1e-18
GAMMA = np.array([0.9, 0.5])


@dataclass(frozen=True)
class AliveRun:
    """Turns start … stop-1 in which one agent of one world is alive."""

    start: int
    stop: int
    ending: str  # terminated, truncated, or paused: away without a flag


@dataclass
class AgentEpisode:
    """One episode of one agent in one world, in plain lists."""

    turns: int
    alive_runs: list[AliveRun]
    obs: list[int]  # the number observed in each turn, and after the last
    rewards: list[float]
    actions: list[int]

    def run_at(self, turn: int) -> AliveRun | None:
        return next((run for run in self.alive_runs if run.start <= turn < run.stop), None)


StoredSegment = tuple[AgentEpisode, AliveRun, int, int, int]
"""…, start, stop, number of the last observation."""


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
def alive_runs(draw: st.DrawFn, turns: int) -> list[AliveRun]:
    result, turn = [], draw(st.integers(0, 2))
    while turn < turns:
        stop = min(turns, turn + draw(st.integers(1, 6)))
        ending = draw(st.sampled_from(["terminated", "truncated", "paused"]))
        result.append(AliveRun(turn, stop, ending))
        # The agent may be back in the next turn only after termination: then no value of that observation is used.
        turn = stop + draw(st.integers(0 if ending == "terminated" else 1, 2))
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
                    turns, draw(alive_runs(turns)), obs, rewards, [o % 4 for o in obs]
                )
        for first in range(0, turns, step):
            last = min(first + step, turns)
            _append_fragment(history, episodes, episode, worlds, first, last, frames)
    return history


def _append_fragment(
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
        for turn in range(max(0, first - frames + 1), last):
            fragment.obs[frames - 1 + turn - first, world, agent] = _image(record.obs[turn])
        tail = record.obs[last] if last == record.turns else -record.obs[last]  # a slice ends between turns
        fragment.obs[-1, world, agent] = _image(tail)
        for turn in range(first, last):
            run = record.run_at(turn)
            if run is not None:
                _fill_turn(fragment, (turn - first, world, agent), record, run, turn)
    for agent in range(AGENTS):
        for world in range(worlds):
            record = episodes[world, FIRST + agent]
            for run in record.alive_runs:
                start, stop = max(run.start, first), min(run.stop, last)
                if start < stop:
                    tail = record.obs[stop] if stop < last or last == record.turns else -record.obs[stop]
                    history.segments[agent].append((record, run, start, stop, tail))
    history.fragments.append(fragment)


def _fill_turn(fragment: Fragment, at: tuple[int, int, int], record: AgentEpisode, run: AliveRun, turn: int) -> None:
    fragment.alive[at] = True
    fragment.ages[at] = turn - run.start
    fragment.rewards[at] = record.rewards[turn]
    fragment.actions[at] = record.actions[turn]
    if turn == run.stop - 1 and run.ending != "paused":
        getattr(fragment, run.ending)[at] = True


def _image(number: int) -> np.ndarray:
    return number * np.array([[1, 2], [3, 4]])


def expectations(history: History, agent: int, frames: int, n_step: int) -> list[dict[int, Expected]]:
    """Per stored segment: the transition to sample at each of its observations."""
    result = []
    for record, run, start, stop, tail in history.segments[agent]:
        seen = {turn: record.obs[turn] for turn in range(run.start, stop)} | {stop: tail}
        segment = {}
        for turn in range(start, stop):
            ahead = min(turn + n_step, stop)
            total = sum(float(GAMMA[agent]) ** i * record.rewards[turn + i] for i in range(ahead - turn))
            dead = ahead == run.stop and run.ending == "terminated"
            segment[record.obs[turn]] = Expected(
                stack=[seen.get(t, 0) for t in range(turn - frames + 1, turn + 1)],
                action=record.actions[turn],
                total=total,
                next_stack=None if dead else [seen.get(t, 0) for t in range(ahead - frames + 1, ahead + 1)],
                discount=0.0 if dead else float(GAMMA[agent]) ** (ahead - turn),
            )
        result.append(segment)
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


@settings(max_examples=120, deadline=None)
@given(data=st.data(), frames=st.integers(1, 4), n_step=st.integers(1, 5), spare=st.integers(0, 40))
def test_every_sample_is_a_stored_transition_and_every_stored_one_is_sampled(
    data: st.DataObject, frames: int, n_step: int, spare: int
) -> None:
    history = data.draw(histories(frames))
    most = longest(history, frames)
    buffer = ReplayBuffer(GROUP, AGENTS, most + spare, frames)
    for fragment in history.fragments:
        buffer.take(slice_agents(fragment, FIRST, FIRST + AGENTS))
    if not ready(buffer):
        return
    batch = sample_many(buffer, n_step)
    for agent in range(AGENTS):
        segments = expectations(history, agent, frames, n_step)
        kept = len(buffer.segments[agent])
        newest = segments[len(segments) - kept :]
        assert buffer.counts[agent] == sum(len(segment) for segment in newest)
        started = assert_expected(batch, agent, {k: v for segment in newest for k, v in segment.items()})
        assert started == {number for segment in newest for number in segment}
        used = sum(segment.end - segment.begin for segment in buffer.segments[agent])
        assert kept == len(segments) or used > buffer.capacity - 3 * most


@settings(max_examples=60, deadline=None)
@given(data=st.data(), frames=st.integers(1, 3), spare=st.integers(0, 30))
def test_a_restored_buffer_continues_exactly(data: st.DataObject, frames: int, spare: int) -> None:
    history = data.draw(histories(frames))
    buffer = ReplayBuffer(GROUP, AGENTS, longest(history, frames) + spare, frames)
    middle = data.draw(st.integers(0, len(history.fragments)))
    for fragment in history.fragments[:middle]:
        buffer.take(slice_agents(fragment, FIRST, FIRST + AGENTS))
    again = ReplayBuffer(GROUP, AGENTS, buffer.capacity, frames)
    again.restore({name: array.copy() for name, array in buffer.state().items()})
    for fragment in (None, *history.fragments[middle:]):
        if fragment is not None:
            buffer.take(slice_agents(fragment, FIRST, FIRST + AGENTS))
            again.take(slice_agents(fragment, FIRST, FIRST + AGENTS))
        assert again.segments == buffer.segments
        assert again.heads == buffer.heads
        assert np.array_equal(again.counts, buffer.counts)
        if ready(buffer):
            for a, b in zip(sample_many(buffer, 3)[:5], sample_many(again, 3)[:5], strict=True):
                assert np.array_equal(a, b)


def played(entry: Any, options: dict[str, Any], turns: int | None, episodes: range) -> list[Fragment]:
    """Random play of three worlds, in slices of `turns`."""
    game = make_game(entry, options, [0, 1, 2])
    rollout = Rollout(game, random_bindings(game), RolloutConfig(1, 3))
    fragments = []
    for episode in episodes:
        rollout.start(Task(tuple(range(3 * episode, 3 * episode + 3))))
        while not game.over.all():
            fragments += rollout.play(rollout.empty_fragments(turns))
    return fragments


@pytest.mark.parametrize("turns", [None, 4])
@pytest.mark.parametrize("rest", [0, 2])
def test_segments_of_a_rollout_are_sampled_unchanged(turns: int | None, rest: int) -> None:
    """In this game an observation is (world, agent, turn, segment), and the reward is 1 + turn."""
    buffer = ReplayBuffer(make_game(RESPAWN, {}, [0]).spec.groups[0], 3, 60, 1)
    for fragment in played(RESPAWN, {"turns": 20, "longest_rest": rest}, turns, range(3)):
        buffer.take(fragment)
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(3))
    batch = buffer.sample(0, 3, keys, 500, 3, np.ones(3))
    turn = batch.obs[..., 2]
    assert (batch.obs[..., 1] == np.arange(3)[:, None]).all()
    goes_on = batch.discounts > 0
    ahead = batch.next_obs - batch.obs
    assert goes_on.any()
    assert (~goes_on).any()
    assert (ahead[goes_on][:, [0, 1, 3]] == 0).all()
    steps = ahead[..., 2]
    assert set(steps[goes_on].tolist()) <= {1, 2, 3}
    earned = sum(np.where(i < steps, 1 + turn + i, 0) for i in range(3))
    assert np.array_equal(batch.returns[goes_on], earned[goes_on])


def test_masks_belong_to_the_next_observation() -> None:
    buffer = ReplayBuffer(make_game(MASKED, {}, [0]).spec.groups[0], 3, 40, 1)
    for fragment in played(MASKED, {}, 3, range(5)):
        buffer.take(fragment)
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(3))
    batch = buffer.sample(0, 3, keys, 300, 2, np.ones(3))
    assert batch.next_mask is not None
    forbidden = (batch.next_obs[..., 2] + np.arange(3)[:, None]) % 4
    assert np.array_equal(batch.next_mask, np.arange(4) != forbidden[..., None])
    again = ReplayBuffer(make_game(MASKED, {}, [0]).spec.groups[0], 3, 40, 1)
    again.restore(buffer.state())
    assert np.array_equal(again.sample(0, 3, keys, 300, 2, np.ones(3)).next_mask, batch.next_mask)


def one_run(turns: int, number: int = 1, ending: str = "truncated", frames: int = 3) -> History:
    """One world in which all agents are alive from the first turn to the last."""
    history = History([], [[] for _ in range(AGENTS)])
    episodes = {}
    for agent in range(GROUP.size):
        obs = list(range(number + agent * 1000, number + agent * 1000 + turns + 1))
        rewards = [float(o) for o in obs[:-1]]
        episodes[0, agent] = AgentEpisode(turns, [AliveRun(0, turns, ending)], obs, rewards, [o % 4 for o in obs])
    _append_fragment(history, episodes, 0, 1, 0, turns, frames)
    return history


def filled(histories: list[History], capacity: int, frames: int = 3) -> ReplayBuffer:
    buffer = ReplayBuffer(GROUP, AGENTS, capacity, frames)
    for history in histories:
        for fragment in history.fragments:
            buffer.take(slice_agents(fragment, FIRST, FIRST + AGENTS))
    return buffer


def started(buffer: ReplayBuffer, agent: int = 0, n_step: int = 1) -> set[int]:
    batch = sample_many(buffer, n_step)
    return {int(number) for number in batch.obs[agent].reshape(SAMPLES, buffer.frames, 4)[:, -1, 0]}


def test_an_episode_starts_with_zero_frames_in_every_pass_of_the_ring() -> None:
    """A mistake in Sorrel: from the second pass on, an episode began with observations of ten episodes before."""
    buffer = filled([one_run(10, 1 + 11 * i) for i in range(9)], capacity=35)
    for stack in sample_many(buffer, 1).obs[0].reshape(SAMPLES, 3, 4)[:, :, 0].tolist():
        place = (stack[-1] - 1001) % 11
        assert stack == [stack[-1] - i if i <= place else 0 for i in (2, 1, 0)]


def test_the_end_of_an_episode_is_terminal_or_bootstraps_from_its_last_observation() -> None:
    """A mistake in Sorrel: no transition was terminal, and the last one bootstrapped from the next episode."""
    buffer = filled([one_run(5, 1, "terminated"), one_run(5, 7, "truncated")], capacity=30)
    batch = sample_many(buffer, 1)
    last = batch.obs[0].reshape(SAMPLES, 3, 4)[:, -1, 0]
    after = batch.next_obs[0].reshape(SAMPLES, 3, 4)[:, :, 0]
    assert (batch.discounts[0] == 0).tolist() == (last == 1005).tolist()
    assert (after[last == 1011] == [1010, 1011, 1012]).all()


def test_no_frame_stack_crosses_the_end_of_an_episode_or_the_write_position() -> None:
    """A mistake in Sorrel: 8 in 100 frame stacks were not consecutive."""
    for count in range(1, 14):
        buffer = filled([one_run(7, 1 + 8 * i) for i in range(count)], capacity=30)
        batch = sample_many(buffer, 4)
        for stacks in (batch.obs, batch.next_obs):
            numbers = stacks[0].reshape(SAMPLES, 3, 4)[:, :, 0]
            both = (numbers[:, 1:] > 0) & (numbers[:, :-1] > 0)
            assert (np.diff(numbers, axis=1)[both] == 1).all()
            assert (((numbers - 1001) // 8).max(axis=1) == (numbers[:, -1] - 1001) // 8).all()


def test_only_actions_that_were_taken_are_sampled() -> None:
    """A mistake in Sorrel: the gaps between episodes were sampled like transitions."""
    buffer = filled([one_run(4, 1 + 5 * i) for i in range(6)], capacity=17)
    batch = sample_many(buffer, 1)
    numbers = batch.obs[0].reshape(SAMPLES, 3, 4)[:, -1, 0]
    assert (batch.actions[0] == numbers % 4).all()
    assert (batch.returns[0] == numbers).all()
    assert ((numbers - 1001) % 5 < 4).all()


@pytest.mark.parametrize("count", range(1, 9))
def test_the_newest_transition_can_always_be_sampled(count: int) -> None:
    """A mistake in Sorrel: the newest positions were not sampled before the ring was full, nor the last one after."""
    buffer = filled([one_run(6, 1 + 7 * i) for i in range(count)], capacity=21)
    newest = {1001 + 7 * i + turn for i in range(max(0, count - 3), count) for turn in range(6)}
    assert started(buffer) == newest
    assert buffer.counts.tolist() == [len(newest)] * 2


def test_one_transition_is_enough_to_sample_a_batch() -> None:
    """A mistake in Sorrel: with 65 to 69 transitions learning started and sampling failed."""
    for turns in (1, 2, 5):
        buffer = filled([one_run(turns)], capacity=10)
        assert buffer.counts.tolist() == [turns] * 2
        assert started(buffer) == set(range(1001, 1001 + turns))


def test_sampling_is_uniform() -> None:
    buffer = filled([one_run(turns, number) for turns, number in ((1, 1), (9, 11), (4, 31))], capacity=40)
    numbers = sample_many(buffer, 1).obs[0].reshape(SAMPLES, 3, 4)[:, -1, 0]
    _, counts = np.unique(numbers, return_counts=True)
    expected = SAMPLES / 14
    assert len(counts) == 14
    assert ((counts - expected) ** 2 / expected).sum() < 13 + 5 * np.sqrt(26)


def test_a_return_and_its_discount_have_the_same_number_of_steps() -> None:
    """A mistake in Sorrel: rewards of one step were discounted by the n-th power."""
    buffer = filled([one_run(6)], capacity=20)
    batch = sample_many(buffer, 3)
    numbers = batch.obs[0].reshape(SAMPLES, 3, 4)[:, -1, 0]
    for first, steps in ((1001, 3), (1004, 3), (1005, 2), (1006, 1)):
        at = np.flatnonzero(numbers == first)[0]
        assert batch.returns[0, at] == pytest.approx(sum(0.9**i * (first + i) for i in range(steps)))
        assert batch.discounts[0, at] == pytest.approx(0.9**steps)


def test_agents_sample_from_their_own_buffer_with_their_own_key() -> None:
    buffer = filled([one_run(8), one_run(8, 20)], capacity=40)
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(2))
    both = buffer.sample(0, 2, keys, 50, 2, GAMMA)
    assert (both.obs[0].reshape(50, 3, 4)[:, -1, 0] // 1000 == 1).all()
    assert (both.obs[1].reshape(50, 3, 4)[:, -1, 0] // 1000 == 2).all()
    for agent in range(2):
        alone = buffer.sample(agent, agent + 1, keys[agent : agent + 1], 50, 2, GAMMA[agent : agent + 1])
        for a, b in zip(both[:5], alone[:5], strict=True):
            assert np.array_equal(a[agent], b[0])
    other = buffer.sample(0, 2, keys[::-1].copy(), 50, 2, GAMMA)
    assert not np.array_equal(other.actions, both.actions)


def test_an_agent_that_was_never_alive_has_no_transitions_and_changes_no_other() -> None:
    history = one_run(5)
    history.fragments[0].alive[:, :, FIRST] = False
    buffer = filled([history], capacity=20)
    assert buffer.counts.tolist() == [0, 5]
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(1, 2))
    batch = buffer.sample(1, 2, keys, 100, 1, GAMMA[1:])
    assert set(batch.obs[0].reshape(100, 3, 4)[:, -1, 0].tolist()) == set(range(2001, 2006))


def test_a_fragment_without_turns_adds_nothing() -> None:
    """A rollout whose worlds are all over returns fragments without turns."""
    game = make_game(RESPAWN, {"turns": 4}, [0])
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1))
    rollout.start(Task((0,)))
    rollout.play(rollout.empty_fragments())
    (empty,) = rollout.play(rollout.empty_fragments())
    assert empty.turns == 0
    buffer = ReplayBuffer(game.spec.groups[0], 3, 20, 1)
    buffer.take(empty)
    assert buffer.counts.tolist() == [0, 0, 0]


def test_nbytes_is_the_size_of_all_arrays() -> None:
    buffer = ReplayBuffer(make_game(MASKED, {}, [0]).spec.groups[0], 3, 40, 2)
    assert buffer.nbytes == 3 * 40 * (3 * 4 + 4 + 4 + 1 + 4)
