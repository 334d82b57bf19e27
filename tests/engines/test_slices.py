"""How a herd is split over learners: in order, nobody left out, the dearest share as cheap as possible."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from remuda.engines.trainers.slices import split
from remuda.learners.herd import Part

COSTS = st.lists(st.sampled_from([1.0, 2.0, 5.0, 10.0]), min_size=1, max_size=7)


def parts_of(costs: list[float]) -> list[Part]:
    """A part of one agent per cost."""
    return [Part(0, number, number + 1, number, "iqn") for number in range(len(costs))]


@given(COSTS, st.integers(1, 6))
def test_no_other_split_into_neighbours_has_a_cheaper_dearest_share(costs: list[float], learners: int) -> None:
    slices = split(parts_of(costs), learners, dict(enumerate(costs)))
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
    assert split(parts, 2, {0: 1.0, 2: 5.0}) == [[(0, 0, 3), (2, 0, 1)], [(2, 1, 3)]]
