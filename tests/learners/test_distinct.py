"""Distinct rows, and inputs split into dense and sparse columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.learners import fused
from remuda.learners.distinct import FIRST_LOOK, distinct_rows, group_rows, words_of
from remuda.learners.row_inputs import row_inputs


@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 9), st.sampled_from(["u1", "f4", "i8"]))
def test_equal_rows_get_the_number_of_the_first(seed: int, rows: int, columns: int, dtype: str) -> None:
    source = np.random.default_rng(seed)
    values = source.integers(2, size=(rows, columns)).astype(dtype)
    flags = source.random((rows, 3)) < 0.5
    found = distinct_rows(words_of(values, flags))
    keys = [(*row, *flag) for row, flag in zip(values.tolist(), flags.tolist(), strict=True)]
    expected = list(dict.fromkeys(keys))
    assert found.numbers.tolist() == [expected.index(key) for key in keys]
    assert found.firsts.tolist() == [keys.index(key) for key in expected]


def test_continuous_rows_are_not_looked_at_after_the_first_ones() -> None:
    rows = np.arange(FIRST_LOOK + 5, dtype=np.uint64)[:, None]
    rows[-1] = 0
    assert len(distinct_rows(rows).firsts) == len(rows)
    rows[1] = 0
    assert len(distinct_rows(rows).firsts) == len(rows) - 2


@given(st.integers(0, 2**31), st.integers(1, 50), st.integers(1, 20))
def test_groups_have_all_picked_rows_in_order(seed: int, rows: int, kinds: int) -> None:
    source = np.random.default_rng(seed)
    distinct = distinct_rows(source.integers(kinds, size=(rows, 1)).astype(np.uint64))
    picked = source.permutation(rows)[: rows // 2 + 1]
    space = np.full(len(distinct.firsts), -1, np.int32)
    for _ in range(2):  # the space can be used again
        ids, starts, order = np.empty((3, len(picked) + 1), np.int32)
        count = group_rows(distinct.numbers, picked, space, ids, starts, order)
        groups = [order[starts[g] : starts[g + 1]].tolist() for g in range(count)]
        assert ids[:count].tolist() == list(dict.fromkeys(distinct.numbers[picked].tolist()))
        assert groups == [[row for row in picked if distinct.numbers[row] == number] for number in ids[:count]]


@pytest.mark.parametrize("dtype", ["u1", "f4"])
@given(st.integers(0, 2**31), st.floats(0, 1))
def test_dense_and_sparse_columns_are_the_whole_input(dtype: str, seed: int, share: float) -> None:
    source = np.random.default_rng(seed)
    rows: Any = (source.random((30, 24)) < source.random(24) * share) * source.integers(1, 9, (30, 24))
    picked = np.sort(source.permutation(30)[:12]).astype(np.int32)
    x, ids = row_inputs(rows.astype(dtype), picked, 0.25, None), np.array([3, 0, 7], np.int32)
    found = np.zeros((3, 24), np.float32)
    dense = np.zeros((3, x.width), np.float32)
    fused.fill_input(x.dense, x.places[ids], x.scale, x.mean, x.std, dense)
    found[:, x.columns] = dense[:, : len(x.columns)]
    if x.sparse is not None:
        fused.add_sparse(x.sparse, ids, np.eye(24, dtype=np.float32), found, True)
    np.testing.assert_allclose(found, rows[picked[ids]] * 0.25)
    if x.sparse is not None:
        grad, into = source.normal(size=(3, 8)).astype(np.float32), np.empty((24, 8), np.float32)
        fused.add_sparse_backward(x.sparse, ids, grad, into)
        sparse = found.copy()
        sparse[:, x.columns] = 0
        np.testing.assert_allclose(into, sparse.T @ grad, atol=1e-5)
