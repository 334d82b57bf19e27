"""The kit for arenas: moves at once, beams, views, respawning, and the metrics of every social dilemma."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remuda.core.errors import ConfigError
from remuda.games import grid
from remuda.games.grid.turns import report_social_metrics


def moved(cells: list[tuple[int, int]], wanted: list[tuple[int, int]], priority: list[int]) -> list[tuple[int, int]]:
    places = np.array([(*cell, 0) for cell in cells], np.int64)
    count = len(cells)
    grid.move_at_once(
        places,
        np.array(wanted, np.int64),
        np.zeros(count, np.bool_),
        np.array(priority),
        np.zeros((2, count), np.bool_),
    )
    return [(int(r), int(c)) for r, c, _ in places]


def test_of_two_that_want_a_cell_the_higher_priority_gets_it() -> None:
    assert moved([(0, 0), (0, 2)], [(0, 1), (0, 1)], [0, 1]) == [(0, 0), (0, 1)]
    assert moved([(0, 0), (0, 2)], [(0, 1), (0, 1)], [1, 0]) == [(0, 1), (0, 2)]


def test_followers_move_swaps_do_not_and_three_may_rotate() -> None:
    assert moved([(0, 0), (0, 1)], [(0, 1), (0, 2)], [0, 1]) == [(0, 1), (0, 2)]
    assert moved([(0, 0), (0, 1)], [(0, 1), (0, 0)], [0, 1]) == [(0, 0), (0, 1)]
    ring = [(0, 0), (0, 1), (1, 1)]
    assert moved(ring, [(0, 1), (1, 1), (0, 0)], [0, 1, 2]) == [(0, 1), (1, 1), (0, 0)]


def test_an_agent_that_cannot_move_stops_those_behind_it() -> None:
    cells = [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert moved(cells, [(0, 1), (0, 2), (0, 3), (0, 3)], [3, 2, 1, 0]) == cells


def test_no_two_agents_share_a_cell_whatever_they_want() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        flat = rng.choice(16, 7, replace=False)
        cells = [(int(f // 4), int(f % 4)) for f in flat]
        wanted = [
            (min(3, max(0, r + dr)), min(3, max(0, c + dc)))
            for (r, c), (dr, dc) in zip(cells, grid.AHEAD[rng.integers(4, size=7)].tolist(), strict=True)
        ]
        after = moved(cells, wanted, rng.permutation(7).tolist())
        assert len(set(after)) == 7


def test_contests_are_fair() -> None:
    """Each of three contenders wins a third of the contests; 3,000 draws, five standard deviations."""
    wins = np.zeros(3)
    order = np.zeros(3, np.int64)
    for key in range(3000):
        grid.shuffle(np.uint64(key * 7919), order)
        wins[np.argmax(order)] += 1
    assert (np.abs(wins - 1000) < 5 * np.sqrt(3000 * 2 / 9)).all()


@pytest.mark.parametrize("facing", range(4))
def test_a_view_is_turned_so_that_ahead_is_up(facing: int) -> None:
    """One thing three cells ahead and one to the right is in row 6, column 6, whatever the facing."""
    view = grid.make_view({1: 0, 2: 1}, 3, 11)
    codes = np.zeros((31, 31), np.uint8)
    rows, cols = grid.displace(facing, 3, 1)
    codes[15 + rows, 15 + cols] = 2
    codes[15, 15] = 3
    out = np.zeros((11, 11, view.channels), np.uint8)
    grid.write_view(codes, np.array([[5, 5, facing]]), 0, view, out)
    assert np.argwhere(out).tolist() == [[6, 6, 1], [9, 5, view.me]]


def test_a_view_says_who_is_seen_where_it_faces_and_which_agent_it_is() -> None:
    view = grid.make_view({1: 0}, 2, 5, identities=2)
    codes = np.zeros((20, 20), np.uint8)
    codes[4 + 4, 4 + 4], codes[4 + 3, 4 + 4] = 2, 3  # agent 1 is one cell north of agent 0
    out = np.zeros((5, 5, view.channels), np.uint8)
    places = np.array([[4, 4, grid.NORTH], [3, 4, grid.WEST]])
    grid.write_view(codes, places, 0, view, out)
    assert out[3, 2].nonzero()[0].tolist() == [view.me, view.identity]
    assert out[2, 2].nonzero()[0].tolist() == [view.me + 1, view.me + 2 + 1, view.identity + 1]


def aimed(beam: Any, ground: np.ndarray, who: np.ndarray, stops: list[int], place: list[int]) -> set[tuple[int, int]]:
    out = np.zeros((len(beam.cells), 3), np.int64)
    grid.aim(beam, np.array(place), ground, who, np.array(stops, np.uint8), out)
    return {(int(r), int(c)) for r, c, reached in out if reached}


def test_beams_have_their_shape_and_end_at_the_edge() -> None:
    empty = np.zeros((7, 7), np.uint8)
    assert aimed(grid.arrow_beam(), empty, empty, [0, 0, 0], [3, 3, 2]) == {(2, 3), (1, 3), (2, 2), (2, 4)}
    assert aimed(grid.arrow_beam(), empty, empty, [0, 0, 0], [0, 3, 2]) == set()
    wide = aimed(grid.wide_beam(3, 1), empty, empty, [0, 0, 0], [3, 3, 2])
    assert wide == {(2, 3), (1, 3), (0, 3), (3, 2), (2, 2), (1, 2), (3, 4), (2, 4), (1, 4)}


def test_a_column_of_a_beam_ends_at_what_stops_it() -> None:
    ground, who = np.zeros((7, 7), np.uint8), np.zeros((7, 7), np.uint8)
    ground[2, 2] = 1  # a wall: not reached, and nothing behind it
    who[2, 3] = 1  # an agent: reached, and nothing behind it
    wide = aimed(grid.wide_beam(3, 1), ground, who, [0, 2, 1], [3, 3, 2])
    assert wide == {(2, 3), (3, 2), (3, 4), (2, 4), (1, 4)}


def test_maps_are_text() -> None:
    chart = grid.read_map("WP\nA", "WPA ")
    assert chart.tolist() == [["W", "P"], ["A", " "]]
    assert grid.cells_with(chart, "PA").tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ConfigError, match="'x' in row 1, column 0"):
        grid.read_map(["WP", "x"], "WPA ")
    with pytest.raises(ConfigError, match="it should have 1 to 200 rows"):
        grid.read_map("", "WPA ")


def test_social_metrics_are_those_of_the_papers() -> None:
    """Two agents, returns 3 and 1: the Gini coefficient of (3, 1) is 1/4; one of them was away for 2 of 4 turns."""
    tally = np.zeros((2, 4))
    tally[0] = [3, 10 + 20 + 30, 3, 0]
    tally[1] = [1, 40, 1, 2]
    metrics = np.zeros((2, 4), np.float32)
    report_social_metrics(tally, 4, metrics)
    assert metrics[0].tolist() == [4, 0.75, 30, 1.5]
    report_social_metrics(np.zeros((2, 4)), 4, metrics)
    assert metrics[0].tolist() == [0, 1, 0, 2]
