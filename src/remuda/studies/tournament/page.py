"""The report of a tournament: tables as CSV, pictures, and a web page in one file."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from remuda.runs.directory import to_json
from remuda.runs.storage import storage_errors
from remuda.studies.html import note, page, svg, table
from remuda.studies.pictures import save
from remuda.studies.tables import write_table
from remuda.studies.tournament.tournament import Tournament

PAGE, RESULT = "tournament.html", "tournament.json"
MAX_NUMBERS = 12
"""Entrants up to which the cells of the matrix show their numbers."""


def write_tournament(found: Tournament, folder: Path) -> None:
    """Write tables, pictures, page and result."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    figures = {"matrix": _matrix(found), "ratings": _ratings(found)}
    save(figures, folder)
    write_table(folder / "entrants.csv", found.rows())
    write_table(folder / "matches.csv", found.match_rows())
    with storage_errors(folder):
        (folder / RESULT).write_text(to_json(found.result(), indent=1), encoding="utf-8")
        (folder / PAGE).write_text(_html(found, figures), encoding="utf-8")


def _html(found: Tournament, figures: dict[str, Any]) -> str:
    rows = [
        [row["entrant"], *(_number(row[name]) for name in list(row)[1:])]
        for row in found.rows()
    ]  # fmt: skip
    head = ["entrant", "Elo", "low", "high", "focal return", "among its own"]
    matches = [
        [str(row["entrant"]), str(row["opponent"]), *(_number(row[name]) for name in list(row)[2:])]
        for row in found.match_rows()
    ]
    columns = ["entrant", "against", "episodes", "return", "low", "high", "share of wins"]
    captions = {
        "matrix": "Mean return of the entrant of each row against the one of each column.",
        "ratings": "Elo ratings with 95 % intervals; 400 points are ten wins to one.",
    }
    parts = [
        f"<h1>{escape(found.plan.game)}: who does well with whom?</h1>",
        f"<p>{escape(found.headline())}.</p>",
        note(
            "An entrant wins an episode if the mean return of its places is higher. Ratings are those of Bradley and "
            "Terry’s model; intervals are of 95 % over episodes, and do not cover what another seed of training gives. "
            "The focal return is the mean return per place over all opponents (Melting Pot’s focal population)."
        ),
        table(head, rows),
        '<div class="figures">',
        *(f"<figure>{svg(own)}<figcaption>{captions[name]}</figcaption></figure>" for name, own in figures.items()),
        "</div>",
        "<h2>Every pair</h2>",
        table(columns, matches),
    ]
    return page(f"{found.plan.game}: tournament", parts)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _axes(rows: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # slow to import

    side = max(3.4, 1.6 + 0.42 * rows)
    figure = Figure(figsize=(max(5.2, 2.2 + 0.5 * rows), side), layout="constrained")
    return figure, figure.add_subplot()


def _matrix(found: Tournament) -> Any:
    count = len(found.names)
    values = np.full((count, count), np.nan)
    for (i, j), own in found.returns.items():
        values[i, j] = own.value
    figure, axes = _axes(count)
    image = axes.imshow(values, cmap="viridis")
    axes.set_xticks(range(count), found.names, rotation=90, fontsize=8)
    axes.set_yticks(range(count), found.names, fontsize=8)
    axes.set_xlabel("against", fontsize=9)
    if count <= MAX_NUMBERS:
        middle = float(np.nanmean(values))
        for (i, j), own in found.returns.items():
            colour = "white" if own.value < middle else "black"
            axes.text(j, i, f"{own.value:.3g}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.8, label="mean return")
    return figure


def _ratings(found: Tournament) -> Any:
    figure, axes = _axes(len(found.names))
    rows = found.rows()
    for y, row in enumerate(rows):
        axes.plot([row["rating_low"], row["rating_high"]], [y, y], color="#0072b2", linewidth=2)
        axes.plot([row["rating"]], [y], "o", color="#0072b2")
    axes.set_yticks(range(len(rows)), [row["entrant"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("Elo (mean 0), 95 %", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
