"""Tables for people."""

from __future__ import annotations

import json

import numpy as np
import pytest

from remuda.runs.display import fitting_tables
from remuda.runs.evaluation import Scores

ROWS = [
    ["agent", "return", "stolen_share", "collective_return"],
    ["0", "1.5", "0.5 ± 0.1", "2.5 ± 0.1"],
    ["1", "1.0", "0.0 ± 0.0", "2.5 ± 0.1"],
]


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert fitting_tables(ROWS, 80, gap=3) == [ROWS]


def test_a_table_that_is_too_wide_has_its_columns_as_rows() -> None:
    (table,) = fitting_tables(ROWS, 47, gap=3)
    assert table[:2] == [["agent", "0", "1"], ["return", "1.5", "1.0"]]
    assert table[-1] == ["collective_return", "2.5 ± 0.1", "2.5 ± 0.1"]


@pytest.mark.parametrize("columns", [10, 34])
def test_one_that_is_still_too_wide_is_cut_into_tables_with_an_agent_at_least(columns: int) -> None:
    tables = fitting_tables(ROWS, columns, gap=3)
    assert [table[0] for table in tables] == [["agent", "0"], ["agent", "1"]]
    assert all([row[0] for row in table] == ROWS[0] for table in tables)


def test_a_summary_of_scores_has_plain_numbers() -> None:
    found = Scores(np.array([[1.0, 2.0], [3.0, 5.0]]), {"gems": np.array([[1.0, 2.0], [3.0, 5.0]])}).summary()
    assert {type(value) for value in (*found["mean_return"], *found["mean_return_ci95"])} == {float}
    assert {type(value) for value in found["metrics_ci95"]["gems"]} == {float}
    json.dumps(found)
