"""Scene: what there is to see in one world, as data. Films, the terminal and the board draw it alike.

A game on a grid gives `cells`, `kinds` and `agents`. A game without a grid gives `boxes` in `columns`.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CELL, DISC, DIAMOND, CROSS, FRAME = "cell", "disc", "diamond", "cross", "frame"
SHAPES = (CELL, DISC, DIAMOND, CROSS, FRAME)
"""How a kind is drawn: the whole cell, something in it, or (of a box or an agent) the line around it."""
_FIRST_COLOURS = (
    "#3b7dd8", "#e08a1e", "#8e5bd0", "#1aa0a8", "#d6478f", "#5f9e2f", "#c9423a", "#7a6a58", "#2f5fa8", "#b59a00",
)  # fmt: skip
_GOLDEN_ANGLE = 0.6180339887


class SceneKind(NamedTuple):
    """What a cell may hold, or how a box may look: an entry of the legend."""

    name: str
    colour: str  # #rrggbb
    shape: str = CELL


class SceneAgent(NamedTuple):
    """An agent on the grid."""

    number: int  # in the herd
    row: int
    col: int
    facing: int | None = None  # UP, DOWN, LEFT or RIGHT of `remuda.grid`
    ring: str | None = None  # the colour of a ring around it; a kind of shape FRAME with this colour explains it


class SceneBeam(NamedTuple):
    """A cell that a beam covers in this turn."""

    row: int
    col: int
    colour: str


class SceneBox(NamedTuple):
    """A labelled box, such as a host in a network."""

    name: str
    column: int
    fill: int  # a number in `kinds`
    frame: int  # a number in `kinds`
    note: str = ""
    marks: tuple[tuple[str, str], ...] = ()  # short texts with their colours


@dataclass(frozen=True)
class Scene:
    """One world in one turn."""

    kinds: tuple[SceneKind, ...]  # the legend; cells and boxes refer to it by number
    cells: NDArray[np.uint8] | None = None  # (height, width)
    agents: tuple[SceneAgent, ...] = ()  # those that are in the world
    beams: tuple[SceneBeam, ...] = ()
    columns: tuple[str, ...] = ()  # headings of the boxes' columns
    boxes: tuple[SceneBox, ...] = ()
    lines: tuple[str, ...] = ()  # what happened, in words


def agent_colour(number: int) -> str:
    """The colour of an agent, the same in every picture."""
    if number < len(_FIRST_COLOURS):
        return _FIRST_COLOURS[number]
    red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1.0, 0.45, 0.6)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
