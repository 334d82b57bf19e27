"""Maps as text: one sign per cell, one line per row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError

MAX_SIDE = 200
"""Rows and columns of the largest map."""


def read_map(text: str | Sequence[str], signs: str) -> NDArray[np.str_]:
    """A map as an array of signs, (height, width); shorter lines end with blanks.

    `text` is one string with line breaks, or a list of lines. Raises ConfigError for a sign that is not in `signs`.
    """
    lines = text.strip("\n").split("\n") if isinstance(text, str) else list(text)
    width = max((len(line) for line in lines), default=0)
    if not lines or not width or max(len(lines), width) > MAX_SIDE:
        raise ConfigError(f"the map is {len(lines)}×{width}: it should have 1 to {MAX_SIDE} rows and columns")
    for row, line in enumerate(lines):
        for col, sign in enumerate(line):
            if sign not in signs:
                raise ConfigError(
                    f"the map has {sign!r} in row {row}, column {col}: it may have {', '.join(map(repr, signs))}"
                )
    return np.array([list(line.ljust(width)) for line in lines])


def cells_with(chart: NDArray[np.str_], signs: str) -> NDArray[np.int64]:
    """The cells of a map that have one of these signs, row by row: (cells, row/col)."""
    return np.argwhere(np.isin(chart, list(signs))).astype(np.int64)


def fill_ground(chart: NDArray[np.str_], kinds: dict[str, int]) -> NDArray[np.uint8]:
    """The kind of every cell, (height, width); signs that are not in `kinds` are empty."""
    ground = np.zeros(chart.shape, np.uint8)
    for sign, kind in kinds.items():
        ground[chart == sign] = kind
    return ground


def check_start_cells(cells: int, agents: int, what: str) -> None:
    """Raise if so many agents do not fit on the cells of a map where they start."""
    if cells < agents:
        raise ConfigError(f"the map has {cells} {what} for agents={agents}: lower agents or add cells")


def check_chances(name: str, chances: Sequence[float]) -> None:
    """Raise if one of these is not a probability."""
    if not all(0 <= chance <= 1 for chance in chances):
        raise ConfigError(f"{name}={list(chances)} should be probabilities: numbers from 0 to 1")
