"""The pictures of a study: scores with intervals, learning curves, profiles, probability of improvement."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from remuda.runs.storage import storage_errors
from remuda.studies.html import save_picture
from remuda.studies.report import StudyReport
from remuda.studies.scores import AXES
from remuda.studies.statistics import Estimate

FOLDER = "figures"
WIDTH, HEIGHT = 5.2, 3.4
"""Inches: a column of a paper, and the width of a telephone with legible letters."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f")
"""Told apart also by colour-blind readers (Okabe and Ito)."""
LABELS = {"episodes": "episodes", "agent_steps": "agent-steps", "wall_s": "seconds of training"}
NAME_COLUMNS = 24
"""Letters in a line of a variant's name."""
MAX_LEGEND = 12
"""Variants that a legend names."""


def draw(report: StudyReport) -> dict[str, Any]:
    """Every picture that the study has data for, as figures of matplotlib, by name."""
    pictures: dict[str, Callable[[Any, StudyReport], None]] = {"scores": _scores}
    if report.comparisons:
        pictures["improvement"] = _improvement  # as low as the first: they stand side by side on a page
    if all(len(own.curve[axis]) > 1 for variant in report.variants for own in variant.scores for axis in AXES):
        pictures |= {f"curve-{axis}": partial(_curves, axis=axis) for axis in AXES}
    pictures["profiles"] = _profiles
    return {name: _drawn(picture, report) for name, picture in pictures.items()}


def save(figures: dict[str, Any], folder: Path) -> None:
    """Write each picture as SVG, PDF and PNG."""
    with storage_errors(folder):
        (folder / FOLDER).mkdir(exist_ok=True)
        for name, figure in figures.items():
            for kind in ("svg", "pdf", "png"):
                save_picture(figure, folder / FOLDER / f"{name}.{kind}", kind)


def _drawn(picture: Callable[[Any, StudyReport], None], report: StudyReport) -> Any:
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    rows = len(report.variants) if picture is _scores else len(report.comparisons) if picture is _improvement else 0
    figure = Figure(figsize=(WIDTH, HEIGHT if not rows else 0.9 + 0.42 * max(rows, 2)), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    picture(axes, report)
    return figure


def _legend(axes: Any) -> None:
    """Name the variants above the axes, where they hide no curve: two in a line if their names are short."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels)) <= NAME_COLUMNS else 1
    axes.figure.legend(
        handles, [_wrapped(name, 2 * NAME_COLUMNS) for name in labels], loc="outside upper left", ncols=columns,
        fontsize=8, frameon=False,
    )  # fmt: skip


def _wrapped(name: str, columns: int = NAME_COLUMNS) -> str:
    """A name in lines of so many letters: a long one would leave no width for the axes."""
    return textwrap.fill(name, columns, break_on_hyphens=False)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _interval(axes: Any, estimate: Estimate, y: float, colour: str, marker: str) -> None:
    if not math.isnan(estimate.low):
        axes.plot([estimate.low, estimate.high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    axes.plot([estimate.value], [y], marker, color=colour, markersize=6)


def _scores(axes: Any, report: StudyReport) -> None:
    """Every run as a point, mean and IQM with their intervals."""
    for i, own in enumerate(report.variants):
        axes.plot(own.values, np.full(len(own.values), i - 0.25), "|", color="#9aa4af", markersize=7)
        _interval(axes, own.mean, i, _colour(i), "o")
        _interval(axes, own.iqm, i + 0.25, _colour(i), "s")
    axes.set_yticks(range(len(report.variants)), [_wrapped(own.name) for own in report.variants], fontsize=8)
    axes.set_ylim(len(report.variants) - 0.5, -0.5)  # the first is on top, and no mark lies on the axis
    axes.set_xlabel(f"{report.design.options.metric}: | runs, ● mean, ■ IQM, 95 %", fontsize=9)


def _curves(axes: Any, report: StudyReport, axis: str) -> None:
    """The mean over seeds, with its interval as a band."""
    from matplotlib.ticker import EngFormatter

    for i, own in enumerate(report.variants):
        curve = own.curve(axis)
        value, low, high = (np.array([getattr(e, name) for e in curve.estimates]) for name in ("value", "low", "high"))
        axes.plot(curve.x, value, color=_colour(i), linewidth=1.6, label=own.name if i < MAX_LEGEND else None)
        axes.fill_between(curve.x, low, high, color=_colour(i), alpha=0.18, linewidth=0)
        if len(curve.x) == 1:  # a line and a band of one point would not be seen
            axes.errorbar(curve.x, value, [value - low, high - value], fmt="o", color=_colour(i), capsize=3)
    axes.set_xlabel(LABELS[axis], fontsize=9)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k, 6M; never a factor in a corner
    evaluated = all(score.evaluated for own in report.variants for score in own.scores)
    axes.set_ylabel(f"{report.design.options.metric} ({'evaluation' if evaluated else 'training'})", fontsize=9)
    _legend(axes)


def _profiles(axes: Any, report: StudyReport) -> None:
    for i, own in enumerate(report.variants):
        shares = report.profile(own)
        axes.step(
            report.thresholds, [e.value for e in shares], color=_colour(i), label=own.name if i < MAX_LEGEND else None
        )
        axes.fill_between(
            report.thresholds, [e.low for e in shares], [e.high for e in shares], color=_colour(i), alpha=0.12,
            linewidth=0, step="pre",
        )  # fmt: skip
    better = "at least" if report.design.options.higher_is_better else "at most"
    axes.set_xlabel(f"{report.design.options.metric} τ", fontsize=9)
    axes.set_ylabel(f"share of runs with {better} τ", fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    _legend(axes)


def _improvement(axes: Any, report: StudyReport) -> None:
    names = [own.name for own in report.variants]
    for i, (name, own) in enumerate(report.comparisons.items()):
        _interval(axes, own.improvement, i, _colour(names.index(name)), "o")
    axes.axvline(0.5, color="#9aa4af", linewidth=1)
    axes.set_xlim(-0.02, 1.02)
    axes.set_yticks(range(len(report.comparisons)), [_wrapped(name) for name in report.comparisons], fontsize=8)
    axes.set_ylim(len(report.comparisons) - 0.5, -0.5)
    axes.set_xlabel("probability of improvement, 95 %", fontsize=9)
