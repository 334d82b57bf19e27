"""Shows a comparison: tables in the terminal, JSON, and a web page in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from remuda.engines.table import ENGINES
from remuda.runs.directory import to_json
from remuda.runs.storage import storage_errors
from remuda.studies.compare.measure import VariantMeasurements
from remuda.studies.compare.recommend import Recommendation, time_for
from remuda.studies.html import BLUE, GREEN, GREY, INK, ORANGE, RED, figure, note, page, svg, table, warning

COLUMNS = (
    "engine", "episodes/s", "agent-steps/s", "100,000 episodes", "× sequential", "per worker", "memory",
    "collect · learn · move · wait", "lag", "first round", "needs",
)  # fmt: skip
TERMINAL = {
    "": ("episodes/s", "100,000 episodes"),
    "speed": ("agent-steps/s", "× sequential", "per worker", "first round"),
    "time and memory": ("collect · learn · move · wait", "lag", "memory", "needs"),
}  # fmt: skip
"""The columns in the terminal: three tables, none wider than 80 columns."""
NEED_SEQUENTIAL = ("× sequential", "per worker")
"""Columns that are empty unless the sequential engine was measured."""
WORKERS = "The number after an engine is that of its workers, threads or processes. "
FREE = (
    f"{WORKERS}Measured with deterministic=false: threads, executor, ray and actor-learner learn from what arrives "
    "first. engine=auto sets deterministic=true; give that to measure what it runs."
)
DETERMINISTIC = f"{WORKERS}Measured with deterministic=true, as engine=auto runs: every engine that can waits by round."
EPISODES_SHOWN = 100_000
COLOURS = {"collecting": BLUE, "learning": ORANGE, "moving data": "#9b59b6", "waiting": GREY}


@dataclass(frozen=True, repr=False)
class Comparison:
    """All measurements, recommendations and predictions."""

    title: str
    machine: str
    command: str
    measurements: Sequence[VariantMeasurements]
    recommendations: Sequence[Recommendation]
    disturbance: str = ""  # a sentence if other programs ran meanwhile
    ideal: float | None = None  # episodes per second
    cores_here: int = 1
    deterministic: bool = False
    predictions: Sequence[Prediction] = ()
    predictions_here: Sequence[Prediction] = ()  # for this machine, of every variant that was measured

    def write(self, html_file: Path | str | None = None, json_file: Path | str | None = None) -> None:
        """Write the page with tables and pictures, and every figure as JSON."""
        if html_file is not None:
            with storage_errors(Path(html_file)):
                Path(html_file).write_text(html(self), encoding="utf-8")
        if json_file is not None:
            with storage_errors(Path(json_file)):
                Path(json_file).write_text(to_json(as_json(self), indent=1), encoding="utf-8")

    def __repr__(self) -> str:
        lines = [f"{line.situation}: {line.use}, because {line.reason}" for line in self.recommendations]
        lines = [*([self.disturbance] if self.disturbance else []), *lines]
        return "\n".join([self.title, *lines, "write(html_file=…) writes tables and pictures"])

    def _repr_html_(self) -> str:
        return html(self)


@dataclass(frozen=True)
class Prediction:
    """The predicted rate of an engine on another machine, or on this one to check the prediction."""

    engine: str
    workers: int
    cores: int
    episodes_per_s: float


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All measurements and predictions."""
    return {
        "title": comparison.title, "machine": comparison.machine, "command": comparison.command,
        "disturbance": comparison.disturbance or None,
        "measured": [
            {
                "engine": one.variant.kind, "n_workers": one.variant.workers, "problem": one.problem or None,
                "episodes_per_s": one.rate if one.trials else None, "spread": one.spread if one.trials else None,
                "too_wide": one.wide if one.trials else None, "shares": one.shares() if one.trials else None,
                "trials": [vars(trial) for trial in one.trials],
            }
            for one in comparison.measurements
        ],
        "advice": [vars(line) for line in comparison.recommendations],
        "ideal_episodes_per_s": comparison.ideal,
        "predicted": [vars(one) for one in comparison.predictions],
        "predicted_here": [vars(one) for one in comparison.predictions_here],
    }  # fmt: skip


def row(measured: VariantMeasurements, sequential: VariantMeasurements | None) -> list[str]:
    """A variant as a line of the table."""
    name = measured.variant.name
    if measured.problem:
        return [name, measured.problem, *[""] * (len(COLUMNS) - 2)]
    low, high = measured.spread
    spread = f"{low:,.1f} to {high:,.1f}" if len(measured.trials) > 1 else "one repeat"
    speed_up = measured.rate / sequential.rate if sequential is not None else None
    shares = measured.shares().values()
    return [
        name,
        f"{measured.rate:,.1f} ({spread}{', too wide to tell' if measured.wide else ''})",
        f"{measured.median('agent_steps_per_s'):,.0f}",
        duration(time_for(measured, EPISODES_SHOWN)),
        "" if speed_up is None else f"{speed_up:.2f}",
        "" if speed_up is None else f"{speed_up / measured.variant.workers:.2f}",
        f"{measured.median('peak_bytes') / 2**20:,.0f} MiB",
        " · ".join(f"{share:.0%}" for share in shares),
        f"{measured.median('lag_mean'):.1f} (max {measured.median('lag_max'):.0f})",
        f"{measured.median('cold_start_s'):.1f} s",
        f"remuda-rl[{extra}]" if (extra := ENGINES[measured.variant.engine].extra) else "",
    ]


def duration(seconds: float) -> str:
    """Seconds as text, in the unit a person would use."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def _sequential(measurements: Sequence[VariantMeasurements]) -> VariantMeasurements | None:
    return next((one for one in measurements if one.variant.engine == "sequential" and one.trials), None)


def tables(comparison: Comparison) -> list[Table]:
    """The tables for the terminal."""
    sequential = _sequential(comparison.measurements)
    rows = [row(one, sequential) for one in comparison.measurements]
    measured = [_columns(rows, _filled(names, sequential), title) for title, names in TERMINAL.items()]
    measured[0].title = f"{comparison.title}, measured"
    recommended = Table("for", "use", "because")
    for line in comparison.recommendations:
        recommended.add_row(line.situation, line.use, line.reason)
    result = [*measured, recommended]
    if comparison.predictions:
        cores = sorted({one.cores for one in comparison.predictions})
        predicted = Table("engine", *(f"{n} cores" for n in cores), title="predicted, episodes/s (workers)")
        for engine in dict.fromkeys(one.engine for one in comparison.predictions):
            by_cores = {one.cores: one for one in comparison.predictions if one.engine == engine}
            cells = [f"{by_cores[n].episodes_per_s:,.1f} ({by_cores[n].workers})" for n in cores]
            predicted.add_row(engine, *cells)
        result.append(predicted)
    return result


def _filled(names: Sequence[str], sequential: VariantMeasurements | None) -> list[str]:
    """The columns that are not empty."""
    return [name for name in names if sequential is not None or name not in NEED_SEQUENTIAL]


def _columns(rows: Sequence[Sequence[str]], names: Sequence[str], title: str) -> Table:
    """Some columns as a table; one with the engine and few others fits into a terminal of 80 columns."""
    table = Table("engine", *names, title=title, box=SIMPLE)
    for cells in rows:
        table.add_row(cells[0], *(cells[COLUMNS.index(name)] for name in names))
    return table


def mode(comparison: Comparison) -> str:
    """How the engines waited while they were measured."""
    return DETERMINISTIC if comparison.deterministic else FREE


def html(comparison: Comparison) -> str:
    """The page."""
    measured = [one for one in comparison.measurements if one.trials]
    sequential = _sequential(comparison.measurements)
    shown = _filled(COLUMNS, sequential)
    rows = [dict(zip(COLUMNS, row(one, sequential), strict=True)) for one in comparison.measurements]
    parts = [
        f"<h1>{escape(comparison.title)}: which engine?</h1>",
        *([warning(f"{comparison.disturbance}. Measure again when it is idle.")] if comparison.disturbance else []),
        f"<p>{escape(comparison.machine)}<br><code>{escape(comparison.command)}</code></p>",
        "<h2>Recommended here</h2>",
        table(("for", "use", "because"), [[a.situation, a.use, a.reason] for a in comparison.recommendations], "words"),
        "<h2>Measured</h2>",
        note(
            "Everything in this part was measured on this machine: medians, and the slowest and the fastest repeat. "
            "Shares are of the time of all cores. “Per worker” is the speed-up over sequential divided by the number "
            "of workers. Memory is that of all processes together; shared memory is counted once. “First round” is "
            "the cold start, from the command to the first learned round; “100,000 episodes” includes it. "
            + mode(comparison)
        ),
        table(shown, [[cells[name] for name in shown] for cells in rows], ""),
    ]
    if measured:
        parts += [_rates(comparison, measured), _shares(measured), _memory(measured)]
    if comparison.predictions:
        parts += _predicted_part(comparison)
    return page(f"{comparison.title}: which engine?", parts)


def _bars(measured: Sequence[VariantMeasurements]) -> tuple[Any, Any, list[str]]:
    names = [one.variant.name for one in measured]
    drawn, axes = figure(0.9 + 0.32 * len(names))
    axes.invert_yaxis()
    return drawn, axes, names


def _rates(comparison: Comparison, measured: Sequence[VariantMeasurements]) -> str:
    drawn, axes, names = _bars(measured)
    errors = [[one.rate - one.spread[0] for one in measured], [one.spread[1] - one.rate for one in measured]]
    axes.barh(names, [one.rate for one in measured], xerr=errors, color=BLUE, ecolor=INK, capsize=3)
    if comparison.ideal is not None:
        axes.axvline(comparison.ideal, color=RED, linestyle="--", label=f"ideal machine: {comparison.ideal:,.0f}")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)  # above the bars, not on them
    axes.set_xlabel("episodes per second (bar: median, line: slowest to fastest repeat)")
    return svg(drawn)


def _shares(measured: Sequence[VariantMeasurements]) -> str:
    drawn, axes, names = _bars(measured)
    left = [0.0] * len(measured)
    for part, colour in COLOURS.items():
        widths = [100 * one.shares()[part] for one in measured]
        axes.barh(names, widths, left=left, color=colour, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("% of the time of all cores")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return svg(drawn)


def _memory(measured: Sequence[VariantMeasurements]) -> str:
    drawn, axes, names = _bars(measured)
    axes.barh(names, [one.median("peak_bytes") / 2**20 for one in measured], color=GREEN)
    axes.set_xlabel("peak memory of all processes, MiB")
    return svg(drawn)


def _predicted_part(comparison: Comparison) -> list[str]:
    from matplotlib.ticker import LogLocator, NullLocator  # slow to import

    drawn, axes = figure(4.5)
    for engine in dict.fromkeys(one.engine for one in comparison.predictions):
        points = sorted((one.cores, one.episodes_per_s) for one in comparison.predictions if one.engine == engine)
        (line,) = axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linestyle="--", label=engine)
        best = max((f.rate for f in comparison.measurements if f.variant.kind == engine and f.trials), default=None)
        if best is not None:
            axes.plot(
                comparison.cores_here, best, marker="D", markersize=8, color=line.get_color(), markeredgecolor="black"
            )
    axes.set(xscale="log", yscale="log", xlabel="cores", ylabel="episodes per second")
    counts = sorted({one.cores for one in comparison.predictions})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # more than one tick also within a decade
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    rows = [
        [
            one.engine,
            str(one.cores),
            str(one.workers),
            f"{one.episodes_per_s:,.1f}",
            duration(EPISODES_SHOWN / one.episodes_per_s),
        ]
        for one in comparison.predictions
    ]
    head = ("engine", "cores", "workers", "episodes/s", "100,000 episodes")
    by_variant = {(one.variant.kind, one.variant.workers): one for one in comparison.measurements}
    here = []
    for one in comparison.predictions_here:
        found = by_variant[one.engine, one.workers]
        low, high = found.spread
        measured = f"{found.rate:,.1f} ({low:,.1f} to {high:,.1f})"
        ratio = f"{one.episodes_per_s / found.rate:.2f}"
        here.append([found.variant.name, f"{one.episodes_per_s:,.1f}", measured, ratio])
    return [
        "<h2>Predicted for other machines</h2>",
        note(
            "Nothing in this part was measured, except the diamonds. Each engine’s schedule was simulated with the "
            "times measured here, on cores like these. The simulation ignores memory bandwidth, other resources that "
            "cores share, and the network between machines."
        ),
        svg(drawn),
        table(head, rows, "predicted"),
        "<h2>How far off such predictions are</h2>",
        note("The same simulation for this machine, compared with the measurements."),
        table(("engine", "predicted", "measured", "ratio"), here, ""),
    ]
