"""The report of a study: its statistics, as tables for people and as CSV files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from remuda.core.machine import cores, machine
from remuda.runs.callbacks.base import Row
from remuda.runs.run import Run
from remuda.studies import statistics
from remuda.studies.design import Design, StudyRun
from remuda.studies.scores import AXES, Curve, RunScore, mean_curve, score_run
from remuda.studies.statistics import ENOUGH_SEEDS, MIN_SEEDS, Estimate, Floats, Spread, VariantComparison
from remuda.studies.tables import write_table

PROFILE_POINTS = 101

MEDIAN_SEEDS = 6
"""Least seeds whose lowest and highest score cover the median in 95 % of studies: with five they do in 94 %."""


@dataclass(frozen=True)
class VariantReport:
    """The scores of a variant's runs and what follows from them."""

    name: str
    settings: Mapping[str, Any]
    scores: Sequence[RunScore]

    @property
    def values(self) -> Floats:
        """One score per run."""
        return np.array([own.value for own in self.scores])

    @cached_property
    def mean(self) -> Estimate:
        """Mean of the scores."""
        return statistics.mean([self.values])

    @cached_property
    def median(self) -> Estimate:
        """Median of the scores."""
        return statistics.median([self.values])

    @cached_property
    def iqm(self) -> Estimate:
        """Inter-quartile mean of the scores."""
        return statistics.interquartile_mean([self.values])

    @cached_property
    def spread(self) -> Spread:
        """Effect of seeds and effect of evaluation episodes."""
        return statistics.spread(self.values, np.array([own.error for own in self.scores]))

    def curve(self, axis: str) -> Curve:
        """The mean learning curve."""
        return mean_curve(list(self.scores), axis)

    @property
    def note(self) -> str:
        """What few seeds mean for these figures."""
        count = len(self.scores)
        if count < 2:
            return "one seed: no interval can be given"
        if count < MIN_SEEDS:
            return f"{count} seeds: too few for intervals of median and IQM; that of the mean assumes normal scores"
        median = f", and that of the median needs {MEDIAN_SEEDS}" if count < MEDIAN_SEEDS else ""
        few = f"{count} seeds: few, so intervals are wide and rough, and that of the mean assumes normal scores{median}"
        return few if count < ENOUGH_SEEDS else ""


@dataclass(frozen=True)
class StudyReport:
    """The statistics of a study's finished runs."""

    design: Design
    variants: Sequence[VariantReport]  # those with a finished run
    runs: Sequence[tuple[StudyRun, Run, RunScore]]

    @classmethod
    def of(cls, design: Design, folders: Mapping[str, Path]) -> StudyReport:
        """Read every finished run."""
        runs = []
        for own in design.runs:
            if own.name in folders:
                run = Run(folders[own.name])
                runs.append((own, run, score_run(run, design.options)))
        variants = []
        for variant in design.variants:
            scores = [score for own, _, score in runs if own.variant is variant]
            if scores:
                variants.append(VariantReport(variant.name, variant.settings, scores))
        return cls(design, variants, runs)

    @cached_property
    def comparisons(self) -> dict[str, VariantComparison]:
        """Every other variant against the baseline."""
        options = self.design.options
        base = next((own for own in self.variants if own.name == self.design.baseline), None)
        if base is None:
            return {}
        return {
            own.name: statistics.compare(own.values, base.values, options.higher_is_better, options.margin)
            for own in self.variants
            if own is not base
        }

    @cached_property
    def thresholds(self) -> Floats:
        """Scores at which the performance profiles are taken."""
        values = np.concatenate([own.values for own in self.variants])
        return np.linspace(values.min(), values.max(), PROFILE_POINTS)

    def profile(self, own: VariantReport) -> list[Estimate]:
        """The performance profile of a variant."""
        return statistics.profile(own.values, self.thresholds, self.design.options.higher_is_better)

    def compute(self) -> Row:
        """What the finished runs used, for the checklists of conferences."""
        results = [run.result for _, run, _ in self.runs]
        return {
            "machine": machine(),
            "cores": cores(),
            "runs": len(results),
            "core_hours": sum(own["cpu_s"] for own in results) / 3600,
            "run_hours": sum(own["wall_s"] for own in results) / 3600,
            "peak_memory_bytes_of_a_run": max((own["peak_memory_bytes"] for own in results), default=0),
            "episodes": sum(own["episodes"] for own in results),
            "agent_steps": sum(own["agent_steps"] for own in results),
        }

    def write(self, folder: Path) -> None:
        """Write every number as CSV."""
        rows = {
            "runs.csv": self.run_rows(),
            "variants.csv": self.variant_rows(),
            "comparisons.csv": self.comparison_rows(),
            "profiles.csv": self.profile_rows(),
            "curves.csv": self.curve_rows(),
        }
        for name, own in rows.items():
            write_table(folder / name, own)

    def run_rows(self) -> list[Row]:
        """One row per run."""
        return [
            {
                "variant": own.variant.name, "seed": own.seed, "score": score.value, "score_se": score.error,
                **{name: run.result[name] for name in ("finished", "episodes", "agent_steps", "wall_s", "cpu_s")},
                "peak_memory_bytes": run.result["peak_memory_bytes"], "weights_sha256": run.result["weights_sha256"],
                "run": str(run.path),
            }
            for own, run, score in self.runs
        ]  # fmt: skip

    def variant_rows(self) -> list[Row]:
        """One row per variant."""
        return [
            {
                "variant": own.name, "seeds": len(own.scores),
                **_columns("mean", own.mean), **_columns("median", own.median), **_columns("iqm", own.iqm),
                "lowest": own.values.min(), "highest": own.values.max(), "sd": own.spread.total,
                "sd_of_seeds": own.spread.seeds, "sd_of_evaluation": own.spread.evaluation, "note": own.note,
            }
            for own in self.variants
        ]  # fmt: skip

    def comparison_rows(self) -> list[Row]:
        """One row per variant besides the baseline."""
        found = self.comparisons
        adjusted = statistics.holm([own.p_value for own in found.values()])
        return [
            {
                "variant": name, "baseline": self.design.baseline, **_columns("difference", own.difference),
                "p_value": own.p_value, "p_value_holm": p, **_columns("probability_of_improvement", own.improvement),
                "p_improvement": own.p_improvement, "margin": self.design.options.margin,
                "p_equivalence": own.p_equivalence,
                "equivalent": "" if math.isnan(own.p_equivalence) else own.p_equivalence < 1 - statistics.LEVEL,
            }
            for (name, own), p in zip(found.items(), adjusted, strict=True)
        ]  # fmt: skip

    def profile_rows(self) -> list[Row]:
        """One row per variant and threshold."""
        return [
            {"variant": own.name, "threshold": float(threshold), **_columns("share", estimate)}
            for own in self.variants
            for threshold, estimate in zip(self.thresholds, self.profile(own), strict=True)
        ]

    def curve_rows(self) -> list[Row]:
        """One row per variant, axis and point."""
        return [
            {"variant": own.name, "axis": axis, "x": float(x), **_columns("mean", estimate), "seeds": len(own.scores)}
            for own in self.variants
            for axis in AXES
            for curve in (own.curve(axis),)
            for x, estimate in zip(curve.x, curve.estimates, strict=True)
        ]

    def table(self) -> list[list[str]]:
        """The variants for people: a header, and a row for each."""
        head = ["variant", "seeds", "mean", "95 %", "median", "95 %", "IQM", "95 %"]
        rows = [
            [own.name, str(len(own.scores)), *(cell for e in (own.mean, own.median, own.iqm) for cell in cells(e))]
            for own in self.variants
        ]
        return [head, *rows]


def cells(estimate: Estimate) -> list[str]:
    """A value and its interval, with as many decimals each: four digits of the largest."""
    value, low, high = estimate.value, estimate.low, estimate.high
    largest = max(abs(own) for own in (value, low, high) if not math.isnan(own)) if not math.isnan(value) else 0.0
    places = max(0, 3 - math.floor(math.log10(largest))) if largest > 0 else 0
    return [
        "" if math.isnan(value) else f"{value:,.{places}f}",
        "" if math.isnan(low) else f"{low:,.{places}f} … {high:,.{places}f}",
    ]


def number(value: float) -> str:
    """A number with four digits."""
    return "" if math.isnan(value) else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _columns(name: str, estimate: Estimate) -> Row:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
