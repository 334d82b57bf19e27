"""Products over chosen rows, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from remuda.learners.products import SPARE, add_product, list_nonzero, transpose


@pytest.mark.parametrize("columns", [16, 48, 64, 80, 256])
def test_products_of_chosen_rows(columns: int) -> None:
    rng, identity = np.random.default_rng(columns), np.arange(100)
    for rows in range(1, 30):
        depth = int(rng.integers(0, 40))
        a = rng.normal(size=(depth, 40)).astype(np.float32)
        b, c = rng.normal(size=(50, columns)).astype(np.float32), rng.normal(size=(60, columns)).astype(np.float32)
        left = np.concatenate([rng.permutation(40)[:rows], np.zeros(SPARE, np.int64)])
        right, out = rng.permutation(50)[:depth], np.concatenate([rng.permutation(50)[:rows], np.full(SPARE, 59)])
        found, add = c.copy(), rows % 2 == 0
        add_product(
            a.reshape(-1), 0, left, 1, identity, 40, depth, b.reshape(-1), 0, right, columns, found.reshape(-1), 0,
            out, columns, rows, columns, add,
        )  # fmt: skip
        expected = a[:, left[:rows]].T.astype(np.float64) @ b[right] + add * c[out[:rows]]
        np.testing.assert_allclose(found[out[:rows]], expected, atol=1e-4)
        others = np.setdiff1d(np.arange(59), out[:rows])
        assert np.array_equal(found[others], c[others])


def test_what_is_not_zero_is_listed() -> None:
    out = np.full(12 + SPARE, -1)
    values = np.array([9, 0, 1, 0, np.nan, -0.0, 3, 9], np.float32)
    assert list_nonzero(values, 1, 6, 77, out) == 3
    assert out[: 3 + SPARE].tolist() == [1, 3, 5] + [77] * SPARE


def test_a_matrix_is_transposed_into_a_wider_one() -> None:
    source, out = np.arange(40 * 20, dtype=np.float32), np.zeros(18 * 48 + 5, np.float32)
    transpose(source, 0, 40, 18, 20, out, 5, 48)
    found = out[5:].reshape(18, 48)
    assert np.array_equal(found[:, :40], source.reshape(40, 20)[:, :18].T)
    assert not found[:, 40:].any()
