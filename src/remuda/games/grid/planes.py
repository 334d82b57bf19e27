"""Kernels for maps, each over the map of one world.

A map is called a plane: an array (height, width) of kinds, one byte per cell. Kind 0 is empty and kind 1 is wall in
every game; cells outside the map look like walls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.core.rng import below, uniform

EMPTY = 0
WALL = 1
UP, DOWN, LEFT, RIGHT = 0, 1, 2, 3
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int64)  # (action, row/col)


@kernel(allocates=False)
def wall_border(plane: Any) -> None:
    """Empty the plane and put walls on its border."""
    height, width = plane.shape
    plane[:, :] = EMPTY
    plane[0, :] = WALL
    plane[height - 1, :] = WALL
    plane[:, 0] = WALL
    plane[:, width - 1] = WALL


@kernel(allocates=False)
def add_view(plane: Any, row: int, col: int, radius: int, out: Any) -> None:
    """Add the square window around a cell to `out` (kinds*side*side), one-hot by kind; empty cells add nothing."""
    height, width = plane.shape
    side = 2 * radius + 1
    area = side * side
    for i in range(side):
        r = row - radius + i
        for j in range(side):
            c = col - radius + j
            kind = np.int64(WALL)
            if 0 <= r < height and 0 <= c < width:
                kind = np.int64(plane[r, c])
            if kind != EMPTY:
                out[kind * area + i * side + j] += 1


@kernel(allocates=False)
def place_apart(plane: Any, kind: int, key: Any, cells: Any) -> None:
    """Put len(cells) things of one kind on distinct empty cells, uniformly; write (row, col) to `cells`.

    Draws interior cells until one is empty. After 64 misses it draws among the empty cells only, which must be counted.
    """
    height, width = plane.shape
    draw = 0
    for i in range(cells.shape[0]):
        placed = False
        for _ in range(64):
            r = 1 + below(key, draw, height - 2)
            c = 1 + below(key, draw + 1, width - 2)
            draw += 2
            if plane[r, c] == EMPTY:
                placed = True
                break
        if not placed:
            r, c = _nth_empty(plane, below(key, draw, count_kind(plane, EMPTY)))
            draw += 1
        plane[r, c] = kind
        cells[i, 0] = r
        cells[i, 1] = c


@kernel(allocates=False)
def count_kind(plane: Any, kind: int) -> int:
    """How many cells hold this kind."""
    total = 0
    for r in range(plane.shape[0]):
        for c in range(plane.shape[1]):
            if plane[r, c] == kind:
                total += 1
    return total


@kernel(allocates=False)
def _nth_empty(plane: Any, n: int) -> Any:
    for r in range(plane.shape[0]):
        for c in range(plane.shape[1]):
            if plane[r, c] == EMPTY:
                if n == 0:
                    return r, c
                n -= 1
    return 0, 0


@kernel(allocates=False)
def next_success(key: Any, draw: int, log_miss: float) -> int:
    """How many cells to skip until the next one that succeeds, if each succeeds with probability p.

    The distribution is the same as with one draw per cell, but there is one draw per success: at p = 0.005 a 21×21
    world needs two or three draws per turn instead of 361. `log_miss` is log(1-p); 0 means that no cell succeeds.
    """
    if log_miss == 0.0:
        return 1 << 40
    skip = math.log(1.0 - uniform(key, draw)) / log_miss
    return int(min(skip, 1e12))


def log_miss(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(1-p); finite also for p = 1, where every cell succeeds."""
    return np.log1p(-np.minimum(probability, 1.0 - 1e-16))


def paint(plane: NDArray[np.uint8], colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The plane as a picture, one pixel per cell."""
    return colours[plane]


def draw_text(plane: NDArray[np.uint8], signs: str) -> str:
    """The plane as text: one sign per cell, with blanks between so that cells look square."""
    return "\n".join(" ".join(signs[kind] for kind in row) for row in plane)
