"""Web pages in a single file: tables, notes and pictures (SVG)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

LOOK = files("remuda.studies") / "look.css"
"""The stylesheet of every page, the board's included."""
FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}}, "pdf": {"metadata": {"CreationDate": None}}, "png": {"dpi": 200},
}  # fmt: skip
"""What matplotlib is told for each: no date, so that the same picture gives the same bytes."""
INK, BLUE, ORANGE, RED, GREEN, GREY = "#1d2733", "#3b7dd8", "#e08a1e", "#c0392b", "#2d9c6f", "#d9dde3"


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page from its parts."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{LOOK.read_text(encoding='utf-8')}</style></head><body>\n{body}\n</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table; `kind` is its CSS class."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{cells}</tr>{lines}</table></div>'


def note(text: str) -> str:
    """A paragraph of explanation."""
    return f'<p class="note">{escape(text)}</p>'


def warning(text: str) -> str:
    """A paragraph that a reader must not miss."""
    return f'<p class="warning" role="note">{escape(text)}</p>'


def figure(height: float) -> tuple[Any, Any]:
    """An empty picture and its axes."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    drawn = Figure(figsize=(9, height), layout="constrained")
    axes = drawn.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return drawn, axes


def save_picture(drawn: Any, file: Any, kind: str) -> None:
    """Write a picture as svg, pdf or png; the same picture gives the same bytes."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "remuda"}):
        drawn.savefig(file, format=kind, **FORMATS[kind])


def svg(drawn: Any) -> str:
    """A picture as SVG, for a page; on white, also where the page is dark."""
    file = io.StringIO()
    save_picture(drawn, file, "svg")
    text = file.getvalue()
    return f'<div class="plot">{text[text.index("<svg") :]}</div>'
