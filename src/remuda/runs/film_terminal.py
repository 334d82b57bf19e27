"""Plays a film in the terminal, with the same colours as the pictures."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from remuda.core.console import QuietConsole
from remuda.core.scene import CELL, CROSS, DIAMOND, DISC, FRAME
from remuda.runs.film_data import Film, kinds_seen

SIGNS = {DISC: "● ", DIAMOND: "◆ ", CROSS: "✖ ", CELL: "  ", FRAME: "□ "}
MAX_AGENTS = 20


def play_in_terminal(film: Film, speed: float, console: Console | None = None) -> None:
    """Show turn after turn in this terminal, `speed` of them per second."""
    console = console or QuietConsole()
    cells = np.zeros(int(np.prod(film.header.get("size") or [0])), np.int64)
    looks: dict[int, list[Any]] = {}
    legend = kinds_seen(film)
    with Live(console=console, auto_refresh=False) as live:
        for turn in film.turns:
            for index, kind in turn.get("cells", ()):
                cells[index] = kind
            looks.update({index: look for index, *look in turn.get("boxes", ())})
            field = _field(film, turn, cells, looks, console)
            lines = [Text(str(line)) for line in turn.get("lines", ())]
            live.update(Group(field, *lines, _scores(film, turn, legend)), refresh=True)
            if speed:
                time.sleep(1 / speed)


def _field(
    film: Film, turn: dict[str, Any], cells: Any, looks: dict[int, list[Any]], console: Console
) -> RenderableType:
    if "text" in turn:
        return Text(turn["text"])
    if "picture" in turn:
        return _picture(turn["picture"], console)
    return _grid(film, turn, cells) if film.header["size"] else _boxes(film, looks)


def _grid(film: Film, turn: dict[str, Any], cells: Any) -> Text:
    """Two characters per cell: agents by their numbers, items by a sign, everything in its colour."""
    _, cols = film.header["size"]
    kinds, floor = film.header["kinds"], film.header["kinds"][0][1]
    agents = {row * cols + col: (number, rings) for number, row, col, _, *rings in turn["agents"]}
    beams = {row * cols + col: colour for row, col, colour in turn.get("beams", ())}
    text = Text()
    for index, kind in enumerate(cells.tolist()):
        _, colour, shape = kinds[kind]
        ground = beams.get(index, colour if shape == CELL else floor)
        if index in agents:
            number, rings = agents[index]
            sign = f"{number % 10}◂" if rings else f"{number % 100:<2d}"
            text.append(sign, f"bold white on {film.header['colours'][number]}")
        else:
            text.append(SIGNS[shape], f"{colour} on {ground}")
        if index % cols == cols - 1:
            text.append("\n")
    text.right_crop(1)
    return text


def _boxes(film: Film, looks: dict[int, list[Any]]) -> Table:
    columns, kinds = film.header["columns"], film.header["kinds"]
    cells: list[list[Text]] = [[] for _ in columns]
    for index, (name, column) in enumerate(film.header["boxes"]):
        fill, frame, note, marks = looks[index]
        text = Text("▌", kinds[frame][1])
        text.append(f" {name} ", f"black on {kinds[fill][1]}")
        for word, colour in marks:
            text.append(f" {word} ", f"bold white on {colour}")
        text.append(f"\n▌ {note}", kinds[frame][1])
        cells[column].append(text)
    table = Table(*columns, box=None, padding=(0, 1))
    for row in range(max(map(len, cells))):
        table.add_row(*(column[row] if row < len(column) else Text() for column in cells))
    return table


def _picture(data: str, console: Console) -> Text:
    """A picture as half blocks: the upper half of each character is one pixel, the lower half another."""
    picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    width = min(console.width - 1, 100, picture.width)
    height = max(2, round(picture.height * width / picture.width) // 2 * 2)
    pixels = np.asarray(picture.resize((width, height)))
    text = Text()
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for a, b in zip(upper, lower, strict=True):
            text.append("▀", f"rgb({a[0]},{a[1]},{a[2]}) on rgb({b[0]},{b[1]},{b[2]})")
        text.append("\n")
    return text


def _scores(film: Film, turn: dict[str, Any], legend: Sequence[Sequence[str]]) -> Text:
    header = film.header
    text = Text(f"turn {turn['turn']} of {film.turns[-1]['turn']}  ")
    for number, score in enumerate(turn["scores"][:MAX_AGENTS]):
        text.append(f" {number} ", f"bold white on {header['colours'][number]}")
        text.append(f" {score:.1f}  ")
    hidden = len(turn["scores"]) - MAX_AGENTS
    if hidden > 0:
        text.append(f"and {hidden} more  ")
    for name, colour, shape in legend:
        text.append(SIGNS[shape].strip() or "■", colour)
        text.append(f" {name}  ")
    return text
