"""A comparison shown: tables that fit a terminal, pictures that can be read, and a machine that was busy."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from remuda.core.machine import CpuClock
from remuda.studies.compare.measure import EngineVariant, Measurement, VariantMeasurements
from remuda.studies.compare.page import Comparison, Prediction, as_json, html, tables
from remuda.studies.compare.recommend import recommend


def comparison(disturbance: str = "") -> Comparison:
    trials = [
        Measurement(1234.5 + i, 654_321.0, 2.5, 1 << 28, 1e-4, 2e-4, 1e-5, 1e-4, 2e-4, 1.5, 4, 100) for i in (0, 9)
    ]
    measured = [
        VariantMeasurements(EngineVariant(name, 2), list(trials))
        for name in ("sequential", "vectorized", "actor-learner")
    ]
    predictions = [Prediction("vectorized", cores, cores, 2000.0 + cores) for cores in (2, 8)]
    return Comparison(
        "treasurehunt, 4 agents, 16 worlds", "a machine", "remuda compare", measured, recommend(measured),
        disturbance=disturbance, ideal=2000.0, cores_here=2, predictions=predictions,
    )  # fmt: skip


def test_tables_fit_into_eighty_columns() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80)
    *measured, _, _ = tables(comparison())
    for table in measured:
        console.print(table)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in file.getvalue()
    rows = [line for line in lines if line.strip().startswith("actor-learner")]
    assert len(rows) == len(measured), "a row takes more than a line"


def test_columns_that_would_be_empty_are_left_out_and_the_mode_is_said() -> None:
    whole = comparison()
    other = [VariantMeasurements(EngineVariant("vectorized", 2), list(whole.measurements[1].trials[:1]))]
    alone = Comparison("a title", "a machine", "remuda compare", other, recommend(other))
    page = html(alone)
    for name in ("× sequential", "per worker"):
        assert f"<th>{name}</th>" in html(whole)
        assert f"<th>{name}</th>" not in page
        assert name not in [str(column.header) for table in tables(alone) for column in table.columns]
    assert "1,234.5 (one repeat)" in page
    assert "nothing here is much faster" in page
    assert "Measured with deterministic=false" in page
    assert "Measured with deterministic=true" in html(replace(alone, deterministic=True))


def test_a_busy_machine_is_said_at_the_top() -> None:
    sentence = "this machine was busy: other programs used 40% of its time"
    page = html(comparison(sentence))
    assert page.index(sentence) < page.index("Recommended here")
    assert as_json(comparison(sentence))["disturbance"] == sentence
    assert "was busy" not in html(comparison())


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (CpuClock(total=100, busy=50, stolen=0, own=48), ""),
        (CpuClock(total=100, busy=90, stolen=0, own=50), "other programs used 40% of its time"),
        (CpuClock(total=100, busy=50, stolen=5, own=50), "the host took 5% away"),
    ],
)
def test_load_of_others_is_told_from_our_own(after: CpuClock, said: str) -> None:
    found = after.disturbance_since(CpuClock(0, 0, 0, 0))
    assert said in found
    assert bool(said) == bool(found)


def test_the_log_axis_of_predictions_has_more_than_one_tick() -> None:
    page = html(comparison())
    ticks = page[page.index("Predicted for other machines") :].count('id="ytick_')
    assert ticks >= 2
