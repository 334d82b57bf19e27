"""Results for people: tables as text and as HTML, and pictures in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

INTERVAL = 1.96
"""Standard errors to either side of a mean, for an interval of 95 %."""


def plus_minus(width: float | None) -> str:
    """Half the width of an interval; nothing where it is unknown."""
    return "" if width is None or width != width else f"± {width:.2f}"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of them the header, in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def fitting_tables(rows: Sequence[Sequence[str]], columns: int, gap: int) -> list[list[list[str]]]:
    """The table itself if it fits into so many columns of text; else its columns as rows, in one or more tables.

    `gap` are the columns of text that each column of the table takes besides its cells.
    """
    if _table_width(rows, gap) <= columns:
        return [[list(row) for row in rows]]
    turned = [list(column) for column in zip(*rows, strict=True)]
    tables, first = [], 1
    while first < len(rows):
        last = len(rows)
        while last > first + 1 and _table_width(_columns(turned, first, last), gap) > columns:
            last -= 1
        tables.append(_columns(turned, first, last))
        first = last
    return tables


def _columns(rows: Sequence[Sequence[str]], first: int, last: int) -> list[list[str]]:
    """The first column, and columns first … last-1."""
    return [[row[0], *row[first:last]] for row in rows]


def _table_width(rows: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(len, column)) + gap for column in zip(*rows, strict=True)) + 1


def html_table(rows: Sequence[Sequence[str]], header: bool = True) -> str:
    """The same as HTML. Every cell is escaped: what a run directory says is shown, never executed."""
    lines = []
    for number, row in enumerate(rows):
        tag = "th" if header and number == 0 else "td"
        lines.append("".join(f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in row))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def notebook() -> Any | None:
    """The shell of the notebook we run in, if we do; IPython in a terminal shows no pictures."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def show_picture(path: Path) -> None:
    """Show a picture below the cell of a notebook; elsewhere do nothing."""
    if notebook() is not None:
        from IPython.display import Image, display

        display(Image(filename=str(path)))


def counted(number: int, noun: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
