"""Balanced ranges."""

from __future__ import annotations

import pytest

from remuda.core.ranges import split_evenly


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (7, 3), (2, 5), (64, 2)])
def test_ranges_are_balanced_and_complete(count: int, parts: int) -> None:
    ranges = split_evenly(count, parts)
    assert [i for a, b in ranges for i in range(a, b)] == list(range(count))
    sizes = [b - a for a, b in ranges]
    assert len(sizes) == min(count, parts)
    assert max(sizes) - min(sizes) <= 1
