"""The replay buffer: every sampled transition happened, and every stored transition can be sampled.

An AgentEpisode says in plain Python what happened to one agent. Fragments are made from it. Every observation contains
a unique number, by which a sampled transition is found in it again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_model import (
    AGENTS,
    FIRST,
    GAMMA,
    GROUP,
    SAMPLES,
    AgentEpisode,
    History,
    Trajectory,
    append_fragment,
    assert_expected,
    expectations,
    histories,
    longest,
    ready,
    sample_many,
)

from remuda.core import rng
from remuda.core.fragment import Fragment, slice_agents
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.learners.replay import ReplayBuffer
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.testing import MASKED, RESPAWN


@settings(max_examples=120, deadline=None)
@given(data=st.data(), frames=st.integers(1, 4), n_step=st.integers(1, 5), spare=st.integers(0, 40))
def test_every_sample_is_a_stored_transition_and_every_stored_one_is_sampled(
    data: st.DataObject, frames: int, n_step: int, spare: int
) -> None:
    history = data.draw(histories(frames))
    longest_segment = longest(history, frames)
    buffer = ReplayBuffer(GROUP, AGENTS, longest_segment + spare, frames)
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
        assert kept == len(segments) or used > buffer.capacity - 3 * longest_segment


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
        episodes[0, agent] = AgentEpisode(
            turns, [Trajectory(list(range(turns)), ending)], obs, rewards, [o % 4 for o in obs]
        )
    append_fragment(history, episodes, 0, 1, 0, turns, frames)
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
    assert buffer.nbytes == 3 * 40 * (3 * 4 + 4 + 4 + 1 + 2 + 4)
