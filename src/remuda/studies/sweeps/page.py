"""The report of a sweep: trials as CSV, and a web page in one file."""

from __future__ import annotations

from typing import Any

from remuda.runs.storage import storage_errors
from remuda.studies.html import note, page, svg, table
from remuda.studies.pictures import save
from remuda.studies.sweeps.space import distributions
from remuda.studies.sweeps.sweep import Sweep
from remuda.studies.tables import write_table

PAGE = "sweep.html"
MAX_ROWS = 30


def write_sweep(found: Sweep) -> None:
    """Write trials.csv, pictures and the page."""
    rows = [
        {"trial": own.number, **own.values, **own.model_dump(include={"status", "score", "episodes", "why"})}
        for own in found.state.trials
    ]
    write_table(found.path / "trials.csv", rows)
    figures = {f"setting-{name}": _scatter(found, name) for name in found.state.ranges}
    save(figures, found.path)
    with storage_errors(found.path):
        (found.path / PAGE).write_text(_html(found, figures), encoding="utf-8")


def _html(found: Sweep, figures: dict[str, Any]) -> str:
    result, options = found.result(), found.state.options
    counts = ", ".join(f"{result[name]} {name}" for name in ("finished", "pruned", "failed"))
    shares = result["importances"]
    head = ["trial", options.metric, *found.state.ranges]
    rows = [
        [str(own.number), f"{own.score:.4g}", *(_short(own.values[name]) for name in found.state.ranges)]
        for own in found.ranking[:MAX_ROWS]
    ]
    parts = [
        f"<h1>Sweep of {', '.join(found.state.ranges)}</h1>",
        f"<p>{options.method}, pruning {options.prune}, seed {options.seed}: {counts}; {result['episodes']:,} episodes."
        "</p>",
        note("Each trial has one seed, so the best was lucky, too. Confirm it with `remuda study` on fresh seeds."),
        "<h2>Best trials</h2>",
        table(head, rows),
        '<div class="figures">',
        *(f"<figure>{svg(own)}</figure>" for own in figures.values()),
        "</div>",
    ]
    if shares:
        parts += [
            "<h2>Importance</h2>",
            note("The share of the differences between finished trials that each setting explains alone (fANOVA)."),
            table(["setting", "share"], [[name, f"{share:.0%}"] for name, share in shares.items()]),
        ]
    return page("Sweep", parts)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _scatter(found: Sweep, name: str) -> Any:
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(5.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    own = distributions({name: found.state.ranges[name]})[name]
    for status, colour, marker in (("pruned", "#9aa4af", "x"), ("finished", "#0072b2", "o")):
        trials = [trial for trial in found.state.trials if trial.status == status]
        choices = [str(choice) for choice in getattr(own, "choices", ())]
        x = [choices.index(str(t.values[name])) if choices else t.values[name] for t in trials]
        axes.plot(x, [trial.score or 0.0 for trial in trials], marker, color=colour, label=status, markersize=5)
        if choices:
            axes.set_xticks(range(len(choices)), choices)
    if getattr(own, "log", False):
        axes.set_xscale("log")
    axes.set_xlabel(name, fontsize=9)
    axes.set_ylabel(f"last {found.state.options.metric}", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
