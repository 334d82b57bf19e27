"""Balanced ranges: how agents, worlds, rows and updates are split."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def split_evenly(count: int, parts: int) -> list[tuple[int, int]]:
    """Split 0 … count-1 into at most `parts` ranges (first, last), last excluded, of nearly equal size."""
    if not count:
        return []
    parts = min(parts, count)
    return list(pairwise(count * i // parts for i in range(parts + 1)))


def true_ranges(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Ranges (first, last), last excluded, in which all flags are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
