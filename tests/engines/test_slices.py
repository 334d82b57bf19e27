"""How a herd is split over learners: in order, nobody left out, the dearest share as cheap as possible."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.fragment import Fragment, FragmentLayout, Origin, Purpose, empty_fragment, slice_agents
from remuda.core.game import Group
from remuda.core.ranges import split_evenly
from remuda.engines.collectors.ray.remote import RemoteFragments
from remuda.engines.trainers.ray.balance import SliceBalancer
from remuda.engines.trainers.slices import pick_rows, split, state_slices
from remuda.learners.herd import Part

COSTS = st.lists(st.sampled_from([1.0, 2.0, 5.0, 10.0]), min_size=1, max_size=7)


def parts_of(costs: list[float]) -> list[Part]:
    """A part of one agent per cost."""
    return [Part(0, number, number + 1, number, "iqn") for number in range(len(costs))]


@given(COSTS, st.integers(1, 6))
def test_no_other_split_into_neighbours_has_a_cheaper_dearest_share(costs: list[float], learners: int) -> None:
    slices = split(parts_of(costs), learners, {part: np.array([own]) for part, own in enumerate(costs)})
    assert [part for own in slices for part, _, _ in own] == list(range(len(costs)))
    assert len(slices) == min(learners, len(costs))
    dearest = max(sum(costs[part] for part, _, _ in own) for own in slices)
    others = (
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True))
        for cuts in combinations(range(1, len(costs)), len(slices) - 1)
    )
    if len(set(costs)) > 1:
        assert dearest == min(others)


def test_a_slice_does_not_cross_two_parts() -> None:
    parts = [Part(0, 0, 3, 0, "iqn"), Part(0, 3, 4, 3, "random"), Part(1, 0, 3, 4, "ppo")]
    assert split(parts, 2) == [[(0, 0, 3)], [(2, 0, 3)]]
    assert split(parts, 4) == [[(0, 0, 1)], [(0, 1, 3)], [(2, 0, 1)], [(2, 1, 3)]]
    assert split(parts, 2, {0: np.array([9.0, 1, 1]), 2: np.ones(3)}) == [[(0, 0, 1)], [(0, 1, 3), (2, 0, 3)]]
    assert split(parts, 2, {0: np.ones(3), 2: np.full(3, 5.0)}) == [[(0, 0, 3), (2, 0, 1)], [(2, 1, 3)]]


def test_measured_time_finds_a_better_split() -> None:
    parts = [Part(0, 0, 6, 0, "ppo")]
    balancer = SliceBalancer(parts, {0: np.full(6, 1e4)})
    slices = balancer.split(2)
    assert slices == [[(0, 0, 3)], [(0, 3, 6)]]
    for seconds in (3.1, 2.9):
        balancer.note(slices[0], [seconds])
        balancer.note(slices[1], [0.3])
        assert balancer.better(slices) is None, "too few rounds"
    balancer.note(slices[0], [9.0])
    balancer.note(slices[1], [0.3])
    assert balancer.better(slices) == [[(0, 0, 2)], [(0, 2, 6)]]
    assert balancer.why == "the slowest learner takes 2.1 s a round instead of 3.1"


def test_a_small_gain_is_not_worth_a_move() -> None:
    balancer = SliceBalancer([Part(0, 0, 6, 0, "ppo")], {0: np.ones(6)})
    slices = balancer.split(2)
    for _ in range(3):
        balancer.note(slices[0], [1.2])
        balancer.note(slices[1], [1.0])
    assert balancer.better(slices) is None


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
def test_rows_find_their_way_from_any_split_to_any_other(agents: int, before: int, after: int) -> None:
    parts = [Part(0, 0, agents, 0, "iqn"), Part(1, 0, 2, agents, "ppo")]
    state = {"0/w": np.arange(agents), "0/n": np.arange(agents) * 2.0, "1/w": np.array([7, 8])}
    pieces = [piece for own in split(parts, before) for piece in state_slices(own, state)]
    for part, first, last in (one for own in split(parts, after) for one in own):
        rows = pick_rows((part, first, last), pieces)
        assert {name: array.tolist() for name, array in rows.items()} == {
            name[2:]: array[first:last].tolist() for name, array in state.items() if name.startswith(f"{part}/")
        }


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
def test_a_learner_finds_its_agents_in_fragments_cut_for_others(agents: int, before: int, after: int) -> None:
    """Fragments that were on their way when the herd was sliced anew."""
    whole = make_fragment(agents)
    cuts = [[own] for own in split_evenly(agents, before)]
    objects = [[slice_agents(whole, *own) for own in cut] for cut in cuts]
    remote = RemoteFragments(objects, [[(0, *own) for own in cut] for cut in cuts], 1, lambda *_: None, 0)
    for learner, (first, last) in enumerate(split_evenly(agents, after)):
        share = remote.share(min(learner, len(cuts) - 1), [(0, first, last)])
        (found,) = share.fragments(share.references)
        expected = slice_agents(whole, first, last)
        for name in ("obs", "rewards", "versions", "metrics", "memory"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        assert np.array_equal(found.extras["value"], expected.extras["value"])


def make_fragment(agents: int) -> Fragment:
    """Two turns in three worlds, every agent with numbers of its own, and with all arrays that a fragment can have."""
    origin = Origin(0, np.arange(3), np.arange(3), 0, Purpose.TRAIN)
    layout = FragmentLayout(1, extras={"value": ()}, memory=2)
    fragment = empty_fragment(origin, Group("own", agents, (2,), np.int32, 3, ("score",)), 2, layout=layout)
    for array in (fragment.rewards, fragment.versions, fragment.metrics, fragment.memory, fragment.extras["value"]):
        assert array is not None
        array[:] = np.arange(array.size).reshape(array.shape)
    return fragment
