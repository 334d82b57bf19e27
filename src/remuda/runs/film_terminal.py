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
NOSES = {0: "▴", 1: "▾", 2: "◂", 3: "▸"}  # up, down, left, right
MAX_AGENTS = 20
WHITE = "#ffffff"  # terminals show their own white as grey


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
            live.update(Group(field, *lines, *_scores(film, turn, legend, console.width)), refresh=True)
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
    """Two characters per cell: agents by their numbers and noses, items by a sign, everything in its colour."""
    _, cols = film.header["size"]
    kinds, floor = film.header["kinds"], film.header["kinds"][0][1]
    agents = {row * cols + col: (number, facing, rings) for number, row, col, facing, *rings in turn["agents"]}
    beams = {row * cols + col: colour for row, col, colour in turn.get("beams", ())}
    text = Text()
    for index, kind in enumerate(cells.tolist()):
        _, colour, shape = kinds[kind]
        ground = beams.get(index, colour if shape == CELL else floor)
        if index in agents:
            number, facing, rings = agents[index]
            sign = f"{number}{NOSES.get(facing, ' ')}" if number < 10 else str(number % 100).zfill(2)
            own = film.header["colours"][number]
            text.append(sign, f"bold {own} on {rings[0]}" if rings else f"bold {WHITE} on {own}")
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
            text.append(f" {word} ", f"bold {WHITE} on {colour}")
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
    text.right_crop(1)
    return text


def _scores(film: Film, turn: dict[str, Any], legend: Sequence[Sequence[str]], width: int) -> list[Text]:
    """Turn and scores, and the legend. Who is not in the world has a number without a ground."""
    header, scores = film.header, turn["scores"]
    here = {agent[0] for agent in turn["agents"]} if "agents" in turn else set(range(len(scores)))
    entries = [Text(f"turn {turn['turn']} of {film.turns[-1]['turn']}")]
    for number, score in enumerate(scores[:MAX_AGENTS]):
        colour = header["colours"][number]
        name = (f" {number} ", f"bold {WHITE} on {colour}" if number in here else f"bold {colour}")
        entries.append(Text.assemble(name, f" {score:.1f}"))
    if len(scores) > 1:
        more = f" ({len(scores)} agents)" if len(scores) > MAX_AGENTS else ""
        entries.append(Text(f"herd{more} {sum(scores):.1f}"))
    signs = [Text.assemble((SIGNS[shape].strip() or "■", colour), f" {name}") for name, colour, shape in legend]
    return [*_lines(entries, width), *_lines(signs, width)]


def _lines(entries: Sequence[Text], width: int) -> list[Text]:
    """Entries in lines of at most this width, none of them broken."""
    lines: list[Text] = []
    for entry in entries:
        if lines and lines[-1].cell_len + 2 + entry.cell_len <= width:
            lines[-1].append("  ").append_text(entry)
        else:
            lines.append(entry)
    return lines
