"""Layers of one network in compiled loops: first layers of sparse rows, activations with their biases, and Adam.

Matrix products stay with torch. Around them each kernel goes through memory once, where torch needs a call and a pass
for each operation. No result depends on threads or on other agents: each kernel works on rows of one agent, and sums
have a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel

_f = np.float32
ZERO, HALF, ONE, TWO = _f(0), _f(0.5), _f(1), _f(2)
LOG2_E, LN2_HIGH, LN2_LOW = _f(1.4426950408889634), _f(0.693359375), _f(-2.12194440e-4)  # high + low = ln 2
MIN_EXPONENT, MAX_EXPONENT = _f(-87.0), _f(88.0)  # their exponentials are normal float32 numbers
C2, C3, C4, C5, C6, C7 = (_f(1 / n) for n in (2, 6, 24, 120, 720, 5040))  # of the series of eˣ
EPSILON = _f(1e-8)  # keeps Adam's division finite
BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)  # of a float32


@kernel(arithmetic=True)
def exp(x: Any) -> Any:
    """eˣ of a float32 to within 1e-7 of its value; below -87 it stays at e⁻⁸⁷."""
    x = MIN_EXPONENT if x < MIN_EXPONENT else x
    x = MAX_EXPONENT if x > MAX_EXPONENT else x
    n = np.floor(x * LOG2_E + HALF)
    r = (x - n * LN2_HIGH) - n * LN2_LOW  # in ±ln 2 / 2
    series = ((((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2) * r + ONE) * r + ONE
    return series * np.int32((np.int32(n) + BIAS) << MANTISSA_BITS).view(np.float32)


@kernel(arithmetic=True)
def tanh(x: Any) -> Any:
    """The hyperbolic tangent of a float32, to within 2e-7."""
    return ONE - TWO / (exp(TWO * x) + ONE)


@kernel(arithmetic=True)
def activate(x: Any, bias: Any, rows: int, relu: bool) -> None:
    """Add the bias (width,) to `rows` rows of x (…, width) and apply the activation, in place; nan stays nan."""
    width = x.shape[1]
    for i in range(rows):
        row = x[i]
        if relu:
            for j in range(width):
                value = row[j] + bias[j]
                row[j] = ZERO if value < ZERO else value
        else:
            for j in range(width):
                row[j] = tanh(row[j] + bias[j])


@kernel(arithmetic=True)
def activate_backward(grad: Any, out: Any, rows: int, relu: bool, bias_grad: Any) -> None:
    """Make the gradient of an activation's output `out` (…, width) that of its input, in place; write the bias's."""
    width = grad.shape[1]
    for j in range(width):
        bias_grad[j] = ZERO
    for i in range(rows):
        row, value = grad[i], out[i]
        if relu:
            for j in range(width):
                row[j] = row[j] if value[j] > ZERO else ZERO * row[j]
        else:
            for j in range(width):
                row[j] = row[j] * (ONE - value[j] * value[j])
        for j in range(width):
            bias_grad[j] += row[j]


class SparseRows(NamedTuple):
    """Rows of which most numbers are zero: row i has values[starts[i]:starts[i + 1]] in those columns."""

    starts: NDArray[np.int64]  # (rows + 1,)
    columns: NDArray[np.int32]
    values: NDArray[np.float32]


@kernel
def count_nonzero(rows: Any, picked: Any, out: Any) -> None:
    """In how many of the rows `picked` of `rows` (rows, columns) each column is not zero: out (columns,)."""
    for i in range(len(picked)):
        row = rows[picked[i]]
        for j in range(len(row)):
            out[j] += row[j] != 0


def sparse_rows(rows: NDArray[Any], picked: NDArray[np.int32], use: NDArray[np.bool_], scale: float) -> SparseRows:
    """Some rows of `rows` (rows, columns), multiplied by `scale`; columns where `use` is False are left out."""
    starts = np.zeros(len(picked) + 1, np.int64)
    _count_numbers(rows, picked, use, starts)
    columns, values = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    _fill_sparse(rows, picked, use, np.float32(scale), starts, columns, values)
    return SparseRows(starts, columns, values)


@kernel
def _count_numbers(rows: Any, picked: Any, use: Any, starts: Any) -> None:
    for i in range(len(picked)):
        row, count = rows[picked[i]], 0
        for j in range(len(row)):
            count += (row[j] != 0) & use[j]
        starts[i + 1] = starts[i] + count


@kernel
def _fill_sparse(rows: Any, picked: Any, use: Any, scale: Any, starts: Any, columns: Any, values: Any) -> None:
    for i in range(len(picked)):
        row, place = rows[picked[i]], starts[i]
        for j in range(len(row)):
            if row[j] != 0 and use[j]:
                columns[place] = j
                values[place] = scale * np.float32(row[j])
                place += 1


@kernel(arithmetic=True)
def add_sparse(sparse: Any, ids: Any, weight: Any, out: Any, add: bool) -> None:
    """A layer of the sparse rows `ids`: each number is a multiple of a row of `weight` (inputs, width).

    Rows of `out` are added to if `add` is True, and replaced otherwise. Four rows of `weight` are added at a time,
    because reading and writing a row of `out` costs as much as adding to it.
    """
    starts, columns, values = sparse
    width = out.shape[1]
    for i in range(len(ids)):
        row, k, end = out[i], starts[ids[i]], starts[ids[i] + 1]
        if not add:
            row[:] = ZERO
        while k + 4 <= end:
            a, b, c, d = values[k], values[k + 1], values[k + 2], values[k + 3]
            wa, wb = weight[columns[k]], weight[columns[k + 1]]
            wc, wd = weight[columns[k + 2]], weight[columns[k + 3]]
            for j in range(width):
                row[j] += (a * wa[j] + b * wb[j]) + (c * wc[j] + d * wd[j])
            k += 4
        while k < end:
            a, wa = values[k], weight[columns[k]]
            for j in range(width):
                row[j] += a * wa[j]
            k += 1


@kernel(arithmetic=True)
def add_sparse_backward(sparse: Any, ids: Any, grad: Any, weight_grad: Any) -> None:
    """Gradient of `weight` in `add_sparse`, from that of the output, (rows, width), to weight_grad (inputs, width)."""
    starts, columns, values = sparse
    weight_grad[:] = ZERO
    for i in range(len(ids)):
        row = grad[i]
        for k in range(starts[ids[i]], starts[ids[i] + 1]):
            own, value = weight_grad[columns[k]], values[k]
            for j in range(grad.shape[1]):
                own[j] += value * row[j]


@kernel(arithmetic=True)
def fill_input(rows: Any, picked: Any, scale: Any, mean: Any, std: Any, out: Any) -> None:
    """Rows `picked` of `rows` (rows, columns), scaled and standardised, to the first columns of `out`."""
    for i in range(len(picked)):
        row, own = rows[picked[i]], out[i]
        for j in range(len(row)):
            own[j] = (np.float32(row[j]) * scale - mean[j]) / std[j]


@kernel
def pack_columns(rows: Any, picked: Any, columns: Any, out: Any) -> None:
    """Some columns of the rows `picked` of `rows` (rows, columns), to the first columns of `out`."""
    for i in range(len(picked)):
        row, own = rows[picked[i]], out[i]
        for j in range(len(columns)):
            own[j] = row[columns[j]]


@kernel
def gather_rows(source: Any, rows: Any, out: Any) -> None:
    """Rows `rows` of `source` (…, width), to the first rows of `out`."""
    for i in range(len(rows)):
        out[i] = source[rows[i]]


@kernel
def scatter_rows(source: Any, rows: Any, out: Any) -> None:
    """The inverse of `gather_rows`; other rows of `out` stay as they are."""
    for i in range(len(rows)):
        out[rows[i]] = source[i]


@kernel(arithmetic=True)
def sum_of_squares(x: Any) -> Any:
    """Sum of the squares of x (columns,), in double precision."""
    a = b = c = d = 0.0  # four parts: one vector register
    whole = len(x) // 4 * 4
    for j in range(0, whole, 4):
        a += np.float64(x[j]) * np.float64(x[j])
        b += np.float64(x[j + 1]) * np.float64(x[j + 1])
        c += np.float64(x[j + 2]) * np.float64(x[j + 2])
        d += np.float64(x[j + 3]) * np.float64(x[j + 3])
    for j in range(whole, len(x)):
        a += np.float64(x[j]) * np.float64(x[j])
    return (a + b) + (c + d)


@kernel(arithmetic=True)
def adam_step(weights: Any, grad: Any, moments: Any, count: float, rate: float, beta2: float, clip: float) -> Any:
    """One step of Adam for one agent, the gradient clipped to norm `clip`; returns the norm before.

    All arrays are (columns,); `moments` are the mean and the mean square, and `count` is the number of this step. If
    the gradient is not finite, nothing changes.
    """
    norm = np.sqrt(sum_of_squares(grad))
    if not np.isfinite(norm):
        return norm
    mean, square = moments
    factor = np.float32(min(1.0, clip / norm) if norm > 0.0 else 1.0)
    keep1, new1, keep2, new2 = np.float32(0.9), np.float32(1.0 - 0.9), np.float32(beta2), np.float32(1.0 - beta2)
    step, root = np.float32(rate / (1.0 - 0.9**count)), np.float32(1.0 / np.sqrt(1.0 - beta2**count))
    for j in range(len(weights)):
        g = grad[j] * factor
        mean[j] = keep1 * mean[j] + new1 * g
        square[j] = keep2 * square[j] + new2 * g * g
        weights[j] -= step * mean[j] / (np.sqrt(square[j]) * root + EPSILON)
    return norm
