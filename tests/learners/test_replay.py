"""Memory: every transition drawn is a true one, and every true one that is kept can be drawn.

A chronicle tells in plain Python what happened; fragments are cut from it, and what memory returns is
looked up in it by the number that every observation carries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core import rng
from remuda.core.fragment import Fragment, Origin, Purpose, blank
from remuda.core.game import Group, make_game
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.learners.replay import ReplayBuffer, TransitionBatch
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.testing import MASKED, RESPAWN

GROUP = Group("told", 3, (2, 2), np.int32, 4)
FIRST = 1  # memory belongs to agents 1 and 2 of three
AGENTS = 2
DRAWS = 3000  # at most about 60 transitions: the chance to miss one is below 1e-18
GAMMA = np.array([0.9, 0.5])


@dataclass(frozen=True)
class Life:
    """Turns start … stop-1 in which one agent of one world is alive."""

    start: int
    stop: int
    ending: str  # terminated, truncated, or paused: away without a flag


@dataclass
class Chronicle:
    """One episode of one agent in one world, told plainly."""

    turns: int
    lives: list[Life]
    obs: list[int]  # the number seen in each turn, and after the last
    rewards: list[float]
    actions: list[int]

    def status(self, turn: int) -> Life | None:
        return next((status for status in self.lives if status.start <= turn < status.stop), None)


@dataclass
class Expected:
    """What a draw that starts at some observation has to return."""

    window: list[int]
    action: int
    total: float
    next_window: list[int] | None  # None where it cannot matter
    discount: float


@dataclass
class Story:
    """Fragments in order, and per remembered agent the pieces that were stored, in order."""

    fragments: list[Fragment]
    pieces: list[list[tuple[Chronicle, Life, int, int, int]]] = field(default_factory=list)  # …, start, stop, tail


@st.composite
def lives(draw: st.DrawFn, turns: int) -> list[Life]:
    result, turn = [], draw(st.integers(0, 2))
    while turn < turns:
        stop = min(turns, turn + draw(st.integers(1, 6)))
        ending = draw(st.sampled_from(["terminated", "truncated", "paused"]))
        result.append(Life(turn, stop, ending))
        # Only death allows to be back at once: what is seen after it does not matter.
        turn = stop + draw(st.integers(0 if ending == "terminated" else 1, 2))
    return result


@st.composite
def stories(draw: st.DrawFn, frames: int) -> Story:
    """A few episodes of one or two worlds, each cut into slices."""
    story = Story([], [[] for _ in range(AGENTS)])
    number = 0
    for episode in range(draw(st.integers(1, 4))):
        turns, worlds, step = draw(st.integers(1, 10)), draw(st.integers(1, 2)), draw(st.integers(1, 10))
        told: dict[tuple[int, int], Chronicle] = {}
        for world in range(worlds):
            for agent in range(GROUP.size):
                obs = list(range(number + 1, number + turns + 2))
                number += turns + 1
                rewards = [float(np.float32(0.1 * o)) for o in obs[:-1]]
                told[world, agent] = Chronicle(turns, draw(lives(turns)), obs, rewards, [o % 4 for o in obs])
        for first in range(0, turns, step):
            last = min(first + step, turns)
            _tell(story, told, episode, worlds, first, last, frames)
    return story


def _tell(
    story: Story, told: dict[tuple[int, int], Chronicle], episode: int, worlds: int, first: int, last: int, frames: int
) -> None:
    """Append turns first … last-1 as a fragment, with rubbish wherever nobody is alive."""
    numbers = np.arange(worlds)
    origin = Origin(0, numbers, numbers + episode * worlds, first, Purpose.TRAIN)
    fragment = blank(origin, GROUP, last - first, frames - 1)
    fragment.obs[:] = -99
    fragment.rewards[:] = np.nan
    fragment.ages[:] = 77
    fragment.actions[:] = -1
    for (world, agent), chronicle in told.items():
        for turn in range(max(0, first - frames + 1), last):
            fragment.obs[frames - 1 + turn - first, world, agent] = _image(chronicle.obs[turn])
        tail = chronicle.obs[last] if last == chronicle.turns else -chronicle.obs[last]  # a slice ends between turns
        fragment.obs[-1, world, agent] = _image(tail)
        for turn in range(first, last):
            status = chronicle.status(turn)
            if status is not None:
                _tell_turn(fragment, (turn - first, world, agent), chronicle, status, turn)
    for agent in range(AGENTS):
        for world in range(worlds):
            chronicle = told[world, FIRST + agent]
            for status in chronicle.lives:
                start, stop = max(status.start, first), min(status.stop, last)
                if start < stop:
                    tail = chronicle.obs[stop] if stop < last or last == chronicle.turns else -chronicle.obs[stop]
                    story.pieces[agent].append((chronicle, status, start, stop, tail))
    story.fragments.append(fragment)


def _tell_turn(fragment: Fragment, at: tuple[int, int, int], chronicle: Chronicle, status: Life, turn: int) -> None:
    fragment.alive[at] = True
    fragment.ages[at] = turn - status.start
    fragment.rewards[at] = chronicle.rewards[turn]
    fragment.actions[at] = chronicle.actions[turn]
    if turn == status.stop - 1 and status.ending != "paused":
        getattr(fragment, status.ending)[at] = True


def _image(number: int) -> np.ndarray:
    return number * np.array([[1, 2], [3, 4]])


def expectations(story: Story, agent: int, frames: int, n_step: int) -> list[dict[int, Expected]]:
    """Per stored piece: what a draw at each of its observations must return."""
    result = []
    for chronicle, status, start, stop, tail in story.pieces[agent]:
        seen = {turn: chronicle.obs[turn] for turn in range(status.start, stop)} | {stop: tail}
        piece = {}
        for turn in range(start, stop):
            ahead = min(turn + n_step, stop)
            total = sum(float(GAMMA[agent]) ** i * chronicle.rewards[turn + i] for i in range(ahead - turn))
            dead = ahead == status.stop and status.ending == "terminated"
            piece[chronicle.obs[turn]] = Expected(
                window=[seen.get(t, 0) for t in range(turn - frames + 1, turn + 1)],
                action=chronicle.actions[turn],
                total=total,
                next_window=None if dead else [seen.get(t, 0) for t in range(ahead - frames + 1, ahead + 1)],
                discount=0.0 if dead else float(GAMMA[agent]) ** (ahead - turn),
            )
        result.append(piece)
    return result


def draw_all(memory: ReplayBuffer, n_step: int, key: int = 0) -> TransitionBatch:
    keys = rng.keys(rng.key(key, Stream.SAMPLE), np.arange(memory.agents))
    return memory.sample(0, memory.agents, keys, DRAWS, n_step, GAMMA[: memory.agents])


def frames_of(window: np.ndarray) -> list[int]:
    """The numbers of the observations in a window, which must be whole."""
    parts = window.reshape(-1, 4)
    assert (parts == parts[:, :1] * [1, 2, 3, 4]).all()
    numbers: list[int] = parts[:, 0].tolist()
    return numbers


def assert_true(batch: TransitionBatch, agent: int, known: dict[int, Expected]) -> set[int]:
    """Every draw of an agent is what the chronicle says; returns where draws started."""
    started = set()
    _, firsts = np.unique(batch.obs[agent], axis=0, return_index=True)
    for i in firsts:
        window = frames_of(batch.obs[agent, i])
        truth = known[window[-1]]
        assert window == truth.window
        assert batch.actions[agent, i] == truth.action
        assert batch.returns[agent, i] == pytest.approx(truth.total, rel=1e-6)
        assert batch.discounts[agent, i] == pytest.approx(truth.discount, rel=1e-6)
        if truth.next_window is not None:
            assert frames_of(batch.next_obs[agent, i]) == truth.next_window
        started.add(window[-1])
    return started


def longest(story: Story, frames: int) -> int:
    """Slots the longest stretch could need."""
    return max(fragment.turns for fragment in story.fragments) + frames


def ready(memory: ReplayBuffer) -> bool:
    return bool((memory.counts > 0).all())


@settings(max_examples=120, deadline=None)
@given(data=st.data(), frames=st.integers(1, 4), n_step=st.integers(1, 5), spare=st.integers(0, 40))
def test_every_draw_is_true_and_every_kept_transition_is_drawn(
    data: st.DataObject, frames: int, n_step: int, spare: int
) -> None:
    story = data.draw(stories(frames))
    most = longest(story, frames)
    memory = ReplayBuffer(GROUP, AGENTS, most + spare, frames)
    for fragment in story.fragments:
        memory.take(fragment, FIRST)
    if not ready(memory):
        return
    batch = draw_all(memory, n_step)
    for agent in range(AGENTS):
        pieces = expectations(story, agent, frames, n_step)
        kept = len(memory.segments[agent])
        newest = pieces[len(pieces) - kept :]
        assert memory.counts[agent] == sum(len(piece) for piece in newest)
        started = assert_true(batch, agent, {k: v for piece in newest for k, v in piece.items()})
        assert started == {number for piece in newest for number in piece}
        used = sum(segment.end - segment.begin for segment in memory.segments[agent])
        assert kept == len(pieces) or used > memory.capacity - 3 * most


@settings(max_examples=60, deadline=None)
@given(data=st.data(), frames=st.integers(1, 3), spare=st.integers(0, 30))
def test_a_restored_memory_goes_on_as_if_nothing_had_happened(data: st.DataObject, frames: int, spare: int) -> None:
    story = data.draw(stories(frames))
    memory = ReplayBuffer(GROUP, AGENTS, longest(story, frames) + spare, frames)
    middle = data.draw(st.integers(0, len(story.fragments)))
    for fragment in story.fragments[:middle]:
        memory.take(fragment, FIRST)
    again = ReplayBuffer(GROUP, AGENTS, memory.capacity, frames)
    again.restore({name: array.copy() for name, array in memory.state().items()})
    for fragment in (None, *story.fragments[middle:]):
        if fragment is not None:
            memory.take(fragment, FIRST)
            again.take(fragment, FIRST)
        assert again.segments == memory.segments
        assert again.heads == memory.heads
        assert np.array_equal(again.counts, memory.counts)
        if ready(memory):
            for a, b in zip(draw_all(memory, 3)[:5], draw_all(again, 3)[:5], strict=True):
                assert np.array_equal(a, b)


def played(entry: Any, options: dict[str, Any], turns: int | None, episodes: range) -> list[Fragment]:
    """Random play of three worlds, in slices of `turns`."""
    game = make_game(entry, options, [0, 1, 2])
    player = Rollout(game, random_bindings(game), RolloutConfig(1, 3))
    fragments = []
    for episode in episodes:
        player.start(Task(tuple(range(3 * episode, 3 * episode + 3))))
        while not game.over.all():
            fragments += player.play(player.empty_fragments(turns))
    return fragments


@pytest.mark.parametrize("turns", [None, 4])
@pytest.mark.parametrize("rest", [0, 2])
def test_played_stretches_come_back_as_they_were(turns: int | None, rest: int) -> None:
    """A game whose observations say world, agent, turn and stretch, and which pays 1 + the turn."""
    memory = ReplayBuffer(make_game(RESPAWN, {}, [0]).spec.groups[0], 3, 60, 1)
    for fragment in played(RESPAWN, {"turns": 20, "longest_rest": rest}, turns, range(3)):
        memory.take(fragment, 0)
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(3))
    batch = memory.sample(0, 3, keys, 500, 3, np.ones(3))
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


def test_masks_belong_to_the_observation_bootstrapped_from() -> None:
    memory = ReplayBuffer(make_game(MASKED, {}, [0]).spec.groups[0], 3, 40, 1)
    for fragment in played(MASKED, {}, 3, range(5)):
        memory.take(fragment, 0)
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(3))
    batch = memory.sample(0, 3, keys, 300, 2, np.ones(3))
    assert batch.next_mask is not None
    forbidden = (batch.next_obs[..., 2] + np.arange(3)[:, None]) % 4
    assert np.array_equal(batch.next_mask, np.arange(4) != forbidden[..., None])
    again = ReplayBuffer(make_game(MASKED, {}, [0]).spec.groups[0], 3, 40, 1)
    again.restore(memory.state())
    assert np.array_equal(again.sample(0, 3, keys, 300, 2, np.ones(3)).next_mask, batch.next_mask)


def straight(turns: int, number: int = 1, ending: str = "truncated", frames: int = 3) -> Story:
    """One world, everybody alive from the first turn to the last."""
    story = Story([], [[] for _ in range(AGENTS)])
    told = {}
    for agent in range(GROUP.size):
        obs = list(range(number + agent * 1000, number + agent * 1000 + turns + 1))
        rewards = [float(o) for o in obs[:-1]]
        told[0, agent] = Chronicle(turns, [Life(0, turns, ending)], obs, rewards, [o % 4 for o in obs])
    _tell(story, told, 0, 1, 0, turns, frames)
    return story


def filled(stories: list[Story], capacity: int, frames: int = 3) -> ReplayBuffer:
    memory = ReplayBuffer(GROUP, AGENTS, capacity, frames)
    for story in stories:
        for fragment in story.fragments:
            memory.take(fragment, FIRST)
    return memory


def started(memory: ReplayBuffer, agent: int = 0, n_step: int = 1) -> set[int]:
    batch = draw_all(memory, n_step)
    return {int(number) for number in batch.obs[agent].reshape(DRAWS, memory.frames, 4)[:, -1, 0]}


def test_an_episode_starts_with_zero_frames_in_every_pass_of_the_ring() -> None:
    """Sorrel's first: from the second pass on, an episode began with observations of ten episodes ago."""
    memory = filled([straight(10, 1 + 11 * i) for i in range(9)], capacity=35)
    for window in draw_all(memory, 1).obs[0].reshape(DRAWS, 3, 4)[:, :, 0].tolist():
        place = (window[-1] - 1001) % 11
        assert window == [window[-1] - i if i <= place else 0 for i in (2, 1, 0)]


def test_the_end_of_an_episode_is_marked_and_nothing_follows_it() -> None:
    """Sorrel's second: no transition was ever final, and the last one bootstrapped from the next game."""
    memory = filled([straight(5, 1, "terminated"), straight(5, 7, "truncated")], capacity=30)
    batch = draw_all(memory, 1)
    last = batch.obs[0].reshape(DRAWS, 3, 4)[:, -1, 0]
    after = batch.next_obs[0].reshape(DRAWS, 3, 4)[:, :, 0]
    assert (batch.discounts[0] == 0).tolist() == (last == 1005).tolist()
    assert (after[last == 1011] == [1010, 1011, 1012]).all()


def test_no_window_crosses_a_seam_or_the_write_head() -> None:
    """Sorrel's third: 8 in 100 windows were not consecutive."""
    for count in range(1, 14):
        memory = filled([straight(7, 1 + 8 * i) for i in range(count)], capacity=30)
        batch = draw_all(memory, 4)
        for windows in (batch.obs, batch.next_obs):
            numbers = windows[0].reshape(DRAWS, 3, 4)[:, :, 0]
            both = (numbers[:, 1:] > 0) & (numbers[:, :-1] > 0)
            assert (np.diff(numbers, axis=1)[both] == 1).all()
            assert (((numbers - 1001) // 8).max(axis=1) == (numbers[:, -1] - 1001) // 8).all()


def test_nothing_is_drawn_that_nobody_did() -> None:
    """Sorrel's fourth: the gaps between games were drawn like transitions."""
    memory = filled([straight(4, 1 + 5 * i) for i in range(6)], capacity=17)
    batch = draw_all(memory, 1)
    numbers = batch.obs[0].reshape(DRAWS, 3, 4)[:, -1, 0]
    assert (batch.actions[0] == numbers % 4).all()
    assert (batch.returns[0] == numbers).all()
    assert ((numbers - 1001) % 5 < 4).all()


@pytest.mark.parametrize("count", range(1, 9))
def test_the_newest_transition_can_always_be_drawn(count: int) -> None:
    """Sorrel's fifth: the newest slots could not be drawn before the ring was full, nor the last one after."""
    memory = filled([straight(6, 1 + 7 * i) for i in range(count)], capacity=21)
    newest = {1001 + 7 * i + turn for i in range(max(0, count - 3), count) for turn in range(6)}
    assert started(memory) == newest
    assert memory.counts.tolist() == [len(newest)] * 2


def test_one_transition_is_enough_to_draw_a_batch() -> None:
    """Sorrel's sixth: from 65 to 69 transitions learning was allowed and drawing failed."""
    for turns in (1, 2, 5):
        memory = filled([straight(turns)], capacity=10)
        assert memory.counts.tolist() == [turns] * 2
        assert started(memory) == set(range(1001, 1001 + turns))


def test_draws_are_uniform() -> None:
    memory = filled([straight(turns, number) for turns, number in ((1, 1), (9, 11), (4, 31))], capacity=40)
    numbers = draw_all(memory, 1).obs[0].reshape(DRAWS, 3, 4)[:, -1, 0]
    _, counts = np.unique(numbers, return_counts=True)
    expected = DRAWS / 14
    assert len(counts) == 14
    assert ((counts - expected) ** 2 / expected).sum() < 13 + 5 * np.sqrt(26)


def test_a_return_is_n_steps_and_its_discount_as_many() -> None:
    """Sorrel discounted by the power of n what it had summed over one step."""
    memory = filled([straight(6)], capacity=20)
    batch = draw_all(memory, 3)
    numbers = batch.obs[0].reshape(DRAWS, 3, 4)[:, -1, 0]
    for first, steps in ((1001, 3), (1004, 3), (1005, 2), (1006, 1)):
        at = np.flatnonzero(numbers == first)[0]
        assert batch.returns[0, at] == pytest.approx(sum(0.9**i * (first + i) for i in range(steps)))
        assert batch.discounts[0, at] == pytest.approx(0.9**steps)


def test_agents_draw_from_their_own_memory_with_their_own_key() -> None:
    memory = filled([straight(8), straight(8, 20)], capacity=40)
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(2))
    both = memory.sample(0, 2, keys, 50, 2, GAMMA)
    assert (both.obs[0].reshape(50, 3, 4)[:, -1, 0] // 1000 == 1).all()
    assert (both.obs[1].reshape(50, 3, 4)[:, -1, 0] // 1000 == 2).all()
    for agent in range(2):
        alone = memory.sample(agent, agent + 1, keys[agent : agent + 1], 50, 2, GAMMA[agent : agent + 1])
        for a, b in zip(both[:5], alone[:5], strict=True):
            assert np.array_equal(a[agent], b[0])
    other = memory.sample(0, 2, keys[::-1].copy(), 50, 2, GAMMA)
    assert not np.array_equal(other.actions, both.actions)


def test_an_agent_that_never_lived_remembers_nothing_and_disturbs_nobody() -> None:
    story = straight(5)
    story.fragments[0].alive[:, :, FIRST] = False
    memory = filled([story], capacity=20)
    assert memory.counts.tolist() == [0, 5]
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(1, 2))
    batch = memory.sample(1, 2, keys, 100, 1, GAMMA[1:])
    assert set(batch.obs[0].reshape(100, 3, 4)[:, -1, 0].tolist()) == set(range(2001, 2006))


def test_a_fragment_without_turns_adds_nothing() -> None:
    """A player whose worlds are all over hands out fragments of no turns."""
    game = make_game(RESPAWN, {"turns": 4}, [0])
    player = Rollout(game, random_bindings(game), RolloutConfig(0, 1))
    player.start(Task((0,)))
    player.play(player.empty_fragments())
    (empty,) = player.play(player.empty_fragments())
    assert empty.turns == 0
    memory = ReplayBuffer(game.spec.groups[0], 3, 20, 1)
    memory.take(empty, 0)
    assert memory.counts.tolist() == [0, 0, 0]


def test_memory_says_how_large_it_is() -> None:
    memory = ReplayBuffer(make_game(MASKED, {}, [0]).spec.groups[0], 3, 40, 2)
    assert memory.nbytes == 3 * 40 * (3 * 4 + 4 + 4 + 1 + 4)
