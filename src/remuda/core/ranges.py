"""Balanced ranges: how agents, worlds and rows are split."""

from __future__ import annotations

from itertools import pairwise


def split_evenly(count: int, parts: int) -> list[tuple[int, int]]:
    """0 … count-1 cut into at most `parts` balanced ranges."""
    parts = min(parts, count)
    return list(pairwise(count * i // parts for i in range(parts + 1)))
