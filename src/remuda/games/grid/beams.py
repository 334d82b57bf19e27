"""Beams: cells in front of an agent that one action reaches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.grid.facing import displace


class Beam(NamedTuple):
    """The shape of a beam. It goes from cell to cell: what stops it in one cell shields the cells behind."""

    cells: NDArray[np.int64]  # (cells, ahead/right): where the cell is, seen from the agent
    behind: NDArray[np.int64]  # (cells,): the number of the cell before it on the way, -1 for none


def arrow_beam() -> Beam:
    """SocialJax's beam: one and two cells ahead, and the two cells diagonally ahead; nothing stops it."""
    return Beam(np.array([[1, 0], [2, 0], [1, -1], [1, 1]], np.int64), np.full(4, -1, np.int64))


def wide_beam(length: int, half_width: int) -> Beam:
    """Melting Pot's beam: columns of `length` cells; the middle one starts ahead of the agent, the others beside it."""
    cells: list[tuple[int, int]] = []
    behind: list[int] = []
    for right in sorted(range(-half_width, half_width + 1), key=abs):
        first = 1 if right == 0 else 0
        for ahead in range(first, first + length):
            behind.append(-1 if ahead == first else len(cells) - 1)
            cells.append((ahead, right))
    return Beam(np.array(cells, np.int64), np.array(behind, np.int64))


@kernel(allocates=False)
def aim(beam: Any, place: Any, ground: Any, who: Any, stops: Any, out: Any) -> None:
    """Write where a beam goes into `out` (cells, row/col/reached).

    `stops` (kinds + 1,) says which kinds of ground stop the beam, and last whether agents do. What stops the beam is
    itself reached, except for a kind of which `stops` is 2.
    """
    height, width = ground.shape
    for k in range(len(beam.cells)):
        rows, cols = displace(place[2], beam.cells[k, 0], beam.cells[k, 1])
        row, col = place[0] + rows, place[1] + cols
        out[k, 0], out[k, 1] = row, col
        inside = 0 <= row < height and 0 <= col < width
        out[k, 2] = inside and stops[ground[row, col]] != 2
        before = beam.behind[k]
        if before >= 0 and out[k, 2]:
            r, c = out[before, 0], out[before, 1]
            passed = out[before, 2] and not stops[ground[r, c]] and not (stops[-1] and who[r, c])
            out[k, 2] = passed
