"""Balanced ranges: how agents, worlds, rows and updates are split."""

from __future__ import annotations

from itertools import pairwise


def split_evenly(count: int, parts: int) -> list[tuple[int, int]]:
    """Split 0 … count-1 into at most `parts` ranges (first, last), last excluded, of nearly equal size."""
    if not count:
        return []
    parts = min(parts, count)
    return list(pairwise(count * i // parts for i in range(parts + 1)))
