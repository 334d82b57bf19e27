"""Web pages in a single file: tables, notes and pictures (SVG)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 88rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100%; font-size: .92em; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .5rem; border-bottom: 1px solid #e3e7ec; text-align: right; white-space: nowrap }
th:first-child, td:first-child, .words td, .words th { text-align: left } .words td:last-child { white-space: normal }
.wide { overflow-x: auto } .predicted { background: #fff8e6 } .note { color: #5b6775 }
svg { max-width: 100%; height: auto }
"""
INK, BLUE, ORANGE, RED, GREEN, GREY = "#1d2733", "#3b7dd8", "#e08a1e", "#c0392b", "#2d9c6f", "#d9dde3"


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page from its parts."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table; `kind` is its CSS class."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{cells}</tr>{lines}</table></div>'


def note(text: str) -> str:
    """A paragraph of explanation."""
    return f'<p class="note">{escape(text)}</p>'


def figure(height: float) -> tuple[Any, Any]:
    """An empty picture and its axes."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    drawn = Figure(figsize=(9, height), layout="constrained")
    axes = drawn.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return drawn, axes


def svg(drawn: Any) -> str:
    """A picture as SVG, for a page."""
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
