"""Inputs of a network split by columns: those that are mostly zero are added up, the others are multiplied.

Of 150 inputs in Treasurehunt 7 are not zero, of 470 of CAGE 2 with a memory 107, of which 7 are in the 235 columns
that are zero in nine rows of ten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.learners import fused
from remuda.learners.fused import SparseRows, sparse_rows
from remuda.learners.stack import padded

MAX_SPARSE_SHARE = 0.15
"""A column that is not zero in a larger share of the rows is cheaper to multiply than to add up."""


class RowInputs(NamedTuple):
    """The inputs of one agent's distinct rows. A column is in `dense`, or in `sparse` if it is not zero anywhere."""

    dense: NDArray[Any]  # (rows, width): plain, in the game's dtype
    places: NDArray[np.int32]  # (distinct,): where a distinct row is in `dense`
    columns: NDArray[np.int32]  # (columns,): the first columns of `dense` are these of the input; the rest is zero
    sparse: SparseRows | None  # of distinct rows, scaled; None: `dense` is the whole input
    scale: np.float32
    mean: NDArray[np.float32]  # (width,): dense ones are centred by this after scaling
    std: NDArray[np.float32]  # (width,): and divided by this

    @property
    def width(self) -> int:
        """Columns of `dense`, a multiple of 8."""
        return int(self.dense.shape[1])


def row_inputs(
    rows: NDArray[Any],  # (rows, inputs): padded, in the game's dtype
    firsts: NDArray[np.int32],  # (distinct,): a row of each kind
    scale: float,
    moments: tuple[NDArray[np.float32], NDArray[np.float32]] | None,  # (inputs,) each
) -> RowInputs:
    """Split the columns by how often they are zero; all are dense if they are standardised by `moments`."""
    inputs, factor = rows.shape[1], np.float32(scale)
    if moments is not None:
        return RowInputs(rows, firsts, np.arange(inputs, dtype=np.int32), None, factor, *moments)
    seen = np.zeros(inputs, np.int64)
    fused.count_nonzero(rows, firsts, seen)
    is_dense = seen > MAX_SPARSE_SHARE * len(firsts)
    columns = np.flatnonzero(is_dense).astype(np.int32)
    width = padded(len(columns))
    zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
    if width == inputs:  # most images: no column is left out, and no copy is made
        return RowInputs(rows, firsts, np.arange(inputs, dtype=np.int32), None, factor, zeros, ones)
    dense = np.zeros((len(firsts), width), rows.dtype)
    fused.pack_columns(rows, firsts, columns, dense)
    places = np.arange(len(firsts), dtype=np.int32)
    return RowInputs(dense, places, columns, sparse_rows(rows, firsts, ~is_dense, scale), factor, zeros, ones)
