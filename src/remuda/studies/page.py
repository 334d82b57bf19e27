"""study.html: the report of a study as a web page in one file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from remuda.core.plan import Plan
from remuda.runs.limits import size
from remuda.runs.storage import storage_errors
from remuda.studies.html import note, page, svg, table
from remuda.studies.pictures import draw, save
from remuda.studies.report import StudyReport, cells, number
from remuda.studies.statistics import LEVEL

PAGE = "study.html"
CAPTIONS = {
    "scores": "Score of every run (|), with mean and inter-quartile mean over seeds and their 95 % intervals.",
    "curve-episodes": "Mean over seeds against episodes, with its 95 % interval at each point.",
    "curve-agent_steps": "The same against agent-steps.",
    "curve-wall_s": "The same against seconds of training, beside other runs, where all runs of a variant have values.",
    "profiles": "Performance profiles: the share of runs at least as good as τ, with 95 % intervals at each point.",
    "improvement": "Probability that a run of a variant is better than a run of the baseline, with 95 % intervals.",
}


def write_page(report: StudyReport, folder: Path, failures: Mapping[str, str]) -> None:
    """Draw the pictures and write the page."""
    figures = draw(report)
    save(figures, folder)
    with storage_errors(folder):
        (folder / PAGE).write_text(html(report, figures, folder, failures), encoding="utf-8")


def html(report: StudyReport, figures: Mapping[str, Any], folder: Path, failures: Mapping[str, str]) -> str:
    """The page."""
    title = report.design.options.name or folder.name
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(_summary(report))}</p>"]
    parts += [note(f"{own.name}: {own.note}.") for own in report.variants if own.note]
    if failures:
        parts.append(table(["run that failed", "why"], [[*item] for item in failures.items()], "words"))
    head, *rows = report.table()
    parts += ["<h2>Scores</h2>", table(head, rows), '<div class="figures">']
    parts += [f"<figure>{svg(own)}<figcaption>{CAPTIONS[name]}</figcaption></figure>" for name, own in figures.items()]
    parts.append("</div>")
    if report.comparisons:
        parts += [f"<h2>Against “{escape(report.design.baseline)}”</h2>", _comparisons(report)]
    parts += ["<h2>Where the differences between runs come from</h2>", _spreads(report)]
    if len(report.variants) > 1:
        parts += ["<h2>What differs between the variants</h2>", _settings(report)]
    parts += ["<h2>Compute</h2>", _compute(report), "<h2>To repeat it</h2>", _repeat(report, folder)]
    return page(title, parts)


def _summary(report: StudyReport) -> str:
    options = report.design.options
    better = "higher" if options.higher_is_better else "lower"
    return (
        f"{options.settings.get('game', 'Several games')}: {_count(len(report.variants), 'variant')}, "
        f"{len(report.runs)} of {_count(len(report.design.runs), 'run')}. The score of a run is the {options.metric} "
        f"of its last evaluation, mean over {'its agents' if options.group is None else f'agents of {options.group}'}; "
        f"{better} is better."
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _comparisons(report: StudyReport) -> str:
    head = ["variant", "difference", "95 %", "p (Welch)", "p (Holm)", "P(better)", "95 %", "p (B.-M.)"]
    margin = report.design.options.margin
    head += [f"p (TOST, ± {margin:g})", "equivalent"] if margin is not None else []
    rows = []
    for row, own in zip(report.comparison_rows(), report.comparisons.values(), strict=True):
        line = [row["variant"], *cells(own.difference), _p(own.p_value), _p(row["p_value_holm"])]
        line += [*cells(own.improvement), _p(own.p_improvement)]
        if margin is not None:
            line += [_p(own.p_equivalence), "yes" if own.p_equivalence < 1 - LEVEL else "not shown"]
        rows.append(line)
    return table(head, rows) + (
        "<p class='note'>P(better) and its test (Brunner-Munzel) are computed apart. Where every run of one variant "
        "beats every run of the other, the interval counts only pairs that share no run, so with few seeds it may "
        "contain a half though p is small: more seeds decide.</p>"
    )


def _p(value: float) -> str:
    return "" if math.isnan(value) else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _spreads(report: StudyReport) -> str:
    rows = []
    for own in report.variants:
        found = own.spread
        known = not math.isnan(found.evaluation)
        rows.append([own.name, *map(number, (found.total, found.seeds if known else math.nan, found.evaluation))])
    text = (
        "Standard deviations of the scores: over all, what is left of it for the seeds, and what comes from evaluating "
        "each run on so many episodes only. More evaluation episodes lower the last one; against the other only more "
        "seeds help."
    )
    return note(text) + table(["variant", "all", "seeds", "evaluation episodes"], rows)


def _settings(report: StudyReport) -> str:
    names = list(dict.fromkeys(name for own in report.design.variants for name in own.settings))
    plans = {own.variant.name: own.plan for own in report.design.runs}
    rows = [[own.name, *(_setting(own.settings, plans[own.name], name) for name in names)] for own in report.variants]
    return table(["variant", *names], rows)


def _setting(settings: Mapping[str, Any], plan: Plan, name: str) -> str:
    """A setting as the variant has it, or as its plan fills it in."""
    if name in settings:
        return str(settings[name])
    own = plan.model_dump()
    for place in (own, own["options"], *own["learner_options"].values()):
        if name in place:
            return str(place[name])
    return ""


def _compute(report: StudyReport) -> str:
    used = report.compute()
    rows = [
        ["machine", used["machine"]],
        ["core-hours of all finished runs", f"{used['core_hours']:.3g}"],
        ["their hours of training, added up", f"{used['run_hours']:.3g}"],
        ["most memory of a run", size(used["peak_memory_bytes_of_a_run"])],
        ["episodes", f"{used['episodes']:,}"],
        ["agent-steps", f"{used['agent_steps']:,}"],
    ]
    return table(["what", "how much"], rows, "words")


def _repeat(report: StudyReport, folder: Path) -> str:
    options = report.design.options
    content = {**options.model_dump(mode="json", exclude_defaults=True), "seeds": options.seeds}  # always shown
    design = yaml.safe_dump(content, sort_keys=False)
    name = options.name or folder.name
    command = f"remuda study {name}.yaml"
    return (
        f"<pre>{escape(command)}</pre>{note(f'with this file {name}.yaml:')}<pre>{escape(design)}</pre>"
        f"{note('Every number is in the CSV files beside this page; pictures are in figures/ as SVG, PDF and PNG.')}"
    )
