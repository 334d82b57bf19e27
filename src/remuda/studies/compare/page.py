"""A comparison for people: a table in the terminal, and a page with pictures that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from remuda.engines.table import ENGINES
from remuda.runs.run import to_json
from remuda.studies.compare.advise import Advice, time_for
from remuda.studies.compare.measure import VariantMeasurements
from remuda.studies.html import BLUE, GREEN, GREY, INK, ORANGE, RED, figure, note, page, svg, table

COLUMNS = (
    "engine", "episodes/s", "agent-steps/s", "100,000 episodes", "× sequential", "per worker", "memory",
    "collect · learn · move · wait", "lag", "first round", "needs",
)  # fmt: skip
MANY = 100_000
COLOURS = {"collecting": BLUE, "learning": ORANGE, "moving data": "#9b59b6", "waiting": GREY}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Everything there is to show."""

    title: str
    machine: str
    command: str
    figures: Sequence[VariantMeasurements]
    advice: Sequence[Advice]
    ideal: float | None = None  # episodes per second
    here: int = 1  # cores
    predictions: Sequence[Prediction] = ()
    foreseen: Sequence[Prediction] = ()  # for this machine, of what was measured

    def write(self, html_file: Path | str | None = None, json_file: Path | str | None = None) -> None:
        """Write the page with tables and pictures, and every figure as JSON."""
        if html_file is not None:
            Path(html_file).write_text(html(self), encoding="utf-8")
        if json_file is not None:
            Path(json_file).write_text(to_json(as_json(self), indent=1), encoding="utf-8")

    def __repr__(self) -> str:
        lines = [f"{line.situation}: {line.use}, because {line.reason}" for line in self.advice]
        return "\n".join([self.title, *lines, "write(html_file=…) writes tables and pictures"])

    def _repr_html_(self) -> str:
        return html(self)


@dataclass(frozen=True)
class Prediction:
    """An engine on a machine we do not have (or on ours, for comparison)."""

    engine: str
    workers: int
    cores: int
    episodes_per_s: float


def as_json(shown: Comparison) -> dict[str, Any]:
    """Every figure, measured and predicted."""
    return {
        "title": shown.title, "machine": shown.machine, "command": shown.command,
        "measured": [
            {
                "engine": own.variant.engine, "n_workers": own.variant.workers, "problem": own.problem or None,
                "episodes_per_s": own.rate if own.trials else None, "spread": own.spread if own.trials else None,
                "too_wide": own.wide if own.trials else None, "shares": own.shares() if own.trials else None,
                "trials": [vars(trial) for trial in own.trials],
            }
            for own in shown.figures
        ],
        "advice": [vars(line) for line in shown.advice],
        "ideal_episodes_per_s": shown.ideal,
        "predicted": [vars(one) for one in shown.predictions],
        "predicted_here": [vars(one) for one in shown.foreseen],
    }  # fmt: skip


def row(own: VariantMeasurements, alone: VariantMeasurements | None) -> list[str]:
    """A variant as a line of the table."""
    if own.problem:
        return [own.variant.name, own.problem, *[""] * (len(COLUMNS) - 2)]
    low, high = own.spread
    speed_up = own.rate / alone.rate if alone is not None else None
    shares = own.shares().values()
    return [
        own.variant.name,
        f"{own.rate:,.1f} ({low:,.1f} to {high:,.1f}{', too wide to tell' if own.wide else ''})",
        f"{own.median('agent_steps_per_s'):,.0f}",
        duration(time_for(own, MANY)),
        "" if speed_up is None else f"{speed_up:.2f}",
        "" if speed_up is None else f"{speed_up / own.variant.workers:.2f}",
        f"{own.median('peak_bytes') / 2**20:,.0f} MiB",
        " · ".join(f"{share:.0%}" for share in shares),
        f"{own.median('lag_mean'):.1f} (max {own.median('lag_max'):.0f})",
        f"{own.median('cold_start_s'):.1f} s",
        f"remuda[{extra}]" if (extra := ENGINES[own.variant.engine].extra) else "",
    ]


def duration(seconds: float) -> str:
    """In the unit a person would use."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def _alone(figures: Sequence[VariantMeasurements]) -> VariantMeasurements | None:
    return next((own for own in figures if own.variant.engine == "sequential" and own.trials), None)


def tables(shown: Comparison) -> list[Table]:
    """For the terminal."""
    measured = Table(*COLUMNS, title=f"{shown.title}, measured")
    for own in shown.figures:
        measured.add_row(*row(own, _alone(shown.figures)))
    advice = Table("for", "use", "because")
    for line in shown.advice:
        advice.add_row(line.situation, line.use, line.reason)
    result = [measured, advice]
    if shown.predictions:
        cores = sorted({one.cores for one in shown.predictions})
        predicted = Table("engine", *(f"{n} cores" for n in cores), title="predicted, episodes/s (workers)")
        for engine in dict.fromkeys(one.engine for one in shown.predictions):
            by_cores = {one.cores: one for one in shown.predictions if one.engine == engine}
            cells = [f"{by_cores[n].episodes_per_s:,.1f} ({by_cores[n].workers})" for n in cores]
            predicted.add_row(engine, *cells)
        result.append(predicted)
    return result


def html(shown: Comparison) -> str:
    """The page."""
    measured = [own for own in shown.figures if own.trials]
    parts = [
        f"<h1>{escape(shown.title)}: which engine?</h1>",
        f"<p>{escape(shown.machine)}<br><code>{escape(shown.command)}</code></p>",
        "<h2>Recommended here</h2>",
        table(("for", "use", "because"), [[a.situation, a.use, a.reason] for a in shown.advice], "words"),
        "<h2>Measured</h2>",
        note(
            "Every figure in this part was measured on this machine: medians, and the slowest and the fastest repeat. "
            "The share of time is that of all cores. “Per worker” is the speed-up over sequential divided by the "
            "workers. Memory is that of all processes together, what they share counted once. “First round” is the "
            "cold start: from the command to the first round learned; it is part of “100,000 episodes”."
        ),
        table(COLUMNS, [row(own, _alone(shown.figures)) for own in shown.figures], ""),
    ]
    if measured:
        parts += [_rates(shown, measured), _shares(measured), _memory(measured)]
    if shown.predictions:
        parts += _predicted(shown)
    return page(f"{shown.title}: which engine?", parts)


def _bars(measured: Sequence[VariantMeasurements]) -> tuple[Any, Any, list[str]]:
    names = [own.variant.name for own in measured]
    drawn, axes = figure(0.9 + 0.32 * len(names))
    axes.invert_yaxis()
    return drawn, axes, names


def _rates(shown: Comparison, measured: Sequence[VariantMeasurements]) -> str:
    drawn, axes, names = _bars(measured)
    errors = [[own.rate - own.spread[0] for own in measured], [own.spread[1] - own.rate for own in measured]]
    axes.barh(names, [own.rate for own in measured], xerr=errors, color=BLUE, ecolor=INK, capsize=3)
    if shown.ideal is not None:
        axes.axvline(shown.ideal, color=RED, linestyle="--", label=f"ideal machine: {shown.ideal:,.0f}")
        axes.legend(loc="lower right")
    axes.set_xlabel("episodes per second (bar: median, line: slowest to fastest repeat)")
    return svg(drawn)


def _shares(measured: Sequence[VariantMeasurements]) -> str:
    drawn, axes, names = _bars(measured)
    left = [0.0] * len(measured)
    for part, colour in COLOURS.items():
        widths = [100 * own.shares()[part] for own in measured]
        axes.barh(names, widths, left=left, color=colour, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("% of the time of all cores")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.12), frameon=False)
    return svg(drawn)


def _memory(measured: Sequence[VariantMeasurements]) -> str:
    drawn, axes, names = _bars(measured)
    axes.barh(names, [own.median("peak_bytes") / 2**20 for own in measured], color=GREEN)
    axes.set_xlabel("peak memory of all processes, MiB")
    return svg(drawn)


def _predicted(shown: Comparison) -> list[str]:
    drawn, axes = figure(4.5)
    for engine in dict.fromkeys(one.engine for one in shown.predictions):
        own = sorted((one.cores, one.episodes_per_s) for one in shown.predictions if one.engine == engine)
        (line,) = axes.plot(*zip(*own, strict=True), marker="o", markersize=4, linestyle="--", label=engine)
        best = max((f.rate for f in shown.figures if f.variant.engine == engine and f.trials), default=None)
        if best is not None:
            axes.plot(shown.here, best, marker="D", markersize=8, color=line.get_color(), markeredgecolor="black")
    axes.set(xscale="log", yscale="log", xlabel="cores", ylabel="episodes per second")
    counts = sorted({one.cores for one in shown.predictions})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    rows = [
        [
            one.engine,
            str(one.cores),
            str(one.workers),
            f"{one.episodes_per_s:,.1f}",
            duration(MANY / one.episodes_per_s),
        ]
        for one in shown.predictions
    ]
    head = ("engine", "cores", "workers", "episodes/s", "100,000 episodes")
    seen = {(own.variant.engine, own.variant.workers): own for own in shown.figures}
    here = []
    for one in shown.foreseen:
        found = seen[one.engine, one.workers]
        low, high = found.spread
        measured = f"{found.rate:,.1f} ({low:,.1f} to {high:,.1f})"
        ratio = f"{one.episodes_per_s / found.rate:.2f}"
        here.append([found.variant.name, f"{one.episodes_per_s:,.1f}", measured, ratio])
    return [
        "<h2>Predicted for other machines</h2>",
        note(
            "Nothing in this part was measured, except the diamonds: each engine’s schedule was simulated with the "
            "times measured here, on cores like these. Memory bandwidth, and whatever else cores share, is not in it; "
            "nor is a network between machines."
        ),
        svg(drawn),
        table(head, rows, "predicted"),
        "<h2>How far off such predictions are</h2>",
        note("The same simulation for this machine, beside what was measured on it."),
        table(("engine", "predicted", "measured", "ratio"), here, ""),
    ]
