"""What a report shows of its numbers, and what it says about few seeds."""

from __future__ import annotations

import math

import pytest

from remuda.studies.report import MEDIAN_SEEDS, VariantReport, cells
from remuda.studies.scores import RunScore
from remuda.studies.statistics import Estimate


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        (Estimate(12.5, 9.0, 123.25), ["12.5", "9.0 … 123.2"]),
        (Estimate(0.5, 0.25, 0.75), ["0.5000", "0.2500 … 0.7500"]),
        (Estimate(-43210.4, -50000.0, -40000.0), ["-43,210", "-50,000 … -40,000"]),
        (Estimate(3.0), ["3.000", ""]),
        (Estimate(0.0), ["0", ""]),
        (Estimate(math.nan), ["", ""]),
    ],
)
def test_a_value_and_its_interval_have_as_many_decimals(estimate: Estimate, shown: list[str]) -> None:
    assert cells(estimate) == shown


@pytest.mark.parametrize("seeds", range(5, 12))
def test_the_median_has_an_interval_where_the_report_says_so(seeds: int) -> None:
    report = VariantReport("plain", {}, [RunScore(float(score), 0.1, {}, True) for score in range(seeds)])
    has_interval = not math.isnan(report.median.low)
    assert has_interval == (seeds >= MEDIAN_SEEDS)
    assert ("that of the median needs 6" in report.note) != has_interval
