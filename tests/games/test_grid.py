"""The kernels for gridworlds: borders, views, distinct cells, and random successes."""

from __future__ import annotations

import numpy as np
import pytest

from remuda.core import rng
from remuda.core.rng import Stream
from remuda.games import grid


def walled(height: int, width: int) -> np.ndarray:
    plane = np.full((height, width), 7, np.uint8)
    grid.wall_border(plane)
    return plane


def test_wall_border_walls_the_border_and_empties_the_inside() -> None:
    plane = walled(4, 6)
    assert (plane[1:-1, 1:-1] == grid.EMPTY).all()
    assert grid.count_kind(plane, grid.WALL) == 4 * 6 - 2 * 4


@pytest.mark.parametrize("radius", [0, 1, 3])
def test_a_view_is_the_window_one_hot_with_walls_outside(radius: int) -> None:
    """Against a plain padded crop, from every cell, also where the window leaves the map."""
    plane = (np.arange(30).reshape(5, 6) * 7 % 4).astype(np.uint8)
    side = 2 * radius + 1
    padded = np.pad(plane, radius, constant_values=grid.WALL)
    for row in range(5):
        for col in range(6):
            out = np.zeros(4 * side * side, np.uint8)
            grid.add_view(plane, row, col, radius, out)
            crop = padded[row : row + side, col : col + side]
            expected = (crop == np.arange(4)[:, None, None]) & (crop != grid.EMPTY)
            assert np.array_equal(out.reshape(4, side, side), expected)


def test_views_of_layers_add_up() -> None:
    out = np.zeros(3 * 9, np.uint8)
    for kind in (1, 2, 2):
        grid.add_view(np.full((3, 3), kind, np.uint8), 1, 1, 1, out)
    assert out.reshape(3, 9).tolist() == [[0] * 9, [1] * 9, [2] * 9]


@pytest.mark.parametrize("count", [1, 7, 20])
def test_place_apart_uses_distinct_cells_inside(count: int) -> None:
    for seed in range(50):
        plane, cells = walled(6, 7), np.zeros((count, 2), np.int64)
        grid.place_apart(plane, 5, rng.key(seed, Stream.CHECK), cells)
        assert len({tuple(cell) for cell in cells}) == count
        assert (plane[tuple(cells.T)] == 5).all()
        assert grid.count_kind(plane, 5) == count
        assert grid.count_kind(plane, grid.WALL) == 2 * 6 + 2 * 7 - 4


def test_place_apart_is_uniform_also_when_few_cells_are_empty() -> None:
    """With 3 empty cells of 400 nearly all draws miss, so the empty cells are counted."""
    for shape, free in (((5, 5), 9), ((22, 22), 3)):
        landed = []
        for seed in range(3000):
            plane = walled(*shape)
            inside = plane[1:-1, 1:-1]
            inside.flat[free:] = 4
            cells = np.zeros((1, 2), np.int64)
            grid.place_apart(plane, 5, rng.key(seed, Stream.CHECK), cells)
            landed.append((cells[0, 0] - 1) * inside.shape[1] + cells[0, 1] - 1)
        counts = np.bincount(landed, minlength=free)
        assert len(counts) == free
        expected = 3000 / free
        assert ((counts - expected) ** 2 / expected).sum() < free - 1 + 5 * np.sqrt(2 * (free - 1))


def skips(probability: float, draws: int) -> np.ndarray:
    miss = grid.log_miss(np.array([probability]))[0]
    return np.array([grid.next_success(rng.key(0, Stream.CHECK), draw, miss) for draw in range(draws)])


@pytest.mark.parametrize("probability", [0.005, 0.3, 0.9])
def test_next_success_is_distributed_as_one_draw_per_cell(probability: float) -> None:
    """The gaps between independent successes are geometric."""
    draws = skips(probability, 20_000)
    for k in (0, 1, 2, int(1 / probability)):
        expected = probability * (1 - probability) ** k
        assert abs((draws == k).mean() - expected) < 5 * np.sqrt(expected / len(draws))
    mean = (1 - probability) / probability
    assert abs(draws.mean() - mean) < 5 * np.sqrt(1 - probability) / probability / np.sqrt(len(draws))


def test_probabilities_of_zero_one_and_nearly_zero() -> None:
    assert skips(0.0, 1000).min() > 2**32
    assert skips(1e-300, 1000).min() > 2**32
    assert skips(1.0, 1000).max() == 0


def test_pictures_and_text_show_every_cell() -> None:
    plane = np.array([[0, 1], [2, 0]], np.uint8)
    colours = np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3]], np.uint8)
    assert grid.paint(plane, colours)[..., 0].tolist() == [[1, 2], [3, 1]]
    assert grid.draw_text(plane, ".#*") == ". #\n* ."
