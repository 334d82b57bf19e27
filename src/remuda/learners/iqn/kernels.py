"""An update of IQN written out for one agent: gradient, Adam and target network, without torch.

The readable form is `IQN._loss` with torch's gradients; tests compare the two. This one does not compute what nobody
needs: features that are zero (behind a ReLU they are half) take part in no product, and the head is computed for the
chosen action alone. A state goes through both networks, the loss and back before the next one: its numbers stay in the
cache. Sums over states are made in their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remuda.core.kernels import kernel
from remuda.learners.fused import HALF, ONE, ZERO
from remuda.learners.products import LANE, add_product, list_nonzero, transpose

COSINES = 64
"""Cosine features of a quantile."""
ROWS = 8
"""Observations that are read together."""
NO_MASK = np.ones((0, 1, 1), np.bool_)
"""For a batch, or for worlds, in which all actions are allowed."""
PI = np.float32(np.pi)
S3, S5, S7, S9, S11 = (np.float32(1 / n) for n in (-6, 120, -5040, 362880, -39916800))  # of the series of the sine


class Sizes(NamedTuple):
    """How large the arrays of one agent are."""

    inputs: int
    width: int  # of features and hidden layer, a multiple of LANE
    actions: int
    columns: int  # of advantages in memory: actions, filled up to a multiple of LANE
    batch: int
    quantiles: int
    lanes: int  # quantiles, filled up to a multiple of LANE
    acting: int  # fixed quantiles of the greedy choice
    acting_lanes: int


class WeightPlaces(NamedTuple):
    """Where arrays begin in the row of an agent.

    Body (inputs, width) and layer (features, width) are transposed: a feature that is not zero takes part with a row.
    They, φ (features, cosines) and its bias have one more row, of zeros, for lists that are filled up. The head is
    (1 + actions, width). To the optimiser all orders are alike.
    """

    body: int
    body_bias: int
    phi: int
    phi_bias: int
    layer: int
    layer_bias: int
    head: int
    head_bias: int
    layer_sigma: int
    layer_bias_sigma: int
    head_sigma: int
    head_bias_sigma: int


class NoisyLayers(NamedTuple):
    """Hidden layer and head with noise added; the head as Q of each action by the hidden layer."""

    noise: (
        Any  # (3 * width + 1 + actions,): factors of inputs and outputs of the layer, of inputs and outputs of the head
    )
    layer: Any  # flat (width + 1, width): the last row is zero
    layer_bias: Any  # (width,)
    head: Any  # (1 + actions, width): row 0 is not used
    head_bias: Any  # (1 + actions,)


class Memory(NamedTuple):
    """Space for one state or one batch, flat but for the last three; rows behind the last one are SPARE."""

    identity: Any
    seen: Any  # (inputs,)
    columns: Any  # (inputs,): which are not zero
    tile: Any  # (inputs, ROWS), or (ROWS, batch)
    index: Any  # (width,): features that are not zero
    active: Any  # (width,): hidden numbers with a gradient
    cosines: Any  # (COSINES, lanes)
    cosine_rows: Any  # (quantiles, COSINES)
    acting_cosines: Any  # (COSINES, acting_lanes)
    acting_phi: Any  # (width, acting_lanes)
    phi: Any  # (features, lanes)
    x: Any  # (features, lanes): of the layer
    hidden: Any  # (quantiles, width)
    hidden_grad: Any  # (quantiles, width)
    hidden_grad_t: Any  # (hidden, lanes)
    x_grad: Any  # (features, lanes)
    means: Any  # (batch, width): of hidden numbers over the fixed quantiles
    advantages: Any  # (batch, columns)
    head_t: Any  # (width, columns): of the advantages
    parts: Any  # (LANE,)
    values: Any  # (quantiles,)
    targets: Any  # (quantiles,)
    pulls: Any  # (quantiles,): gradients of the values
    best: Any  # (batch,)
    features: Any  # (3, batch * width): of observations, and of what follows by network and target network
    head_grad: Any  # (1 + actions, width): gradient of NoisyLayers.head
    head_bias_grad: Any  # (1 + actions,)


class Rows(NamedTuple):
    """A batch of one agent, as in TransitionBatch."""

    obs: Any  # (batch, inputs), in the game's dtype
    next_obs: Any
    actions: Any
    returns: Any
    discounts: Any
    allowed: Any  # (batch, actions), or (0, 0) if all actions always are
    taus: Any  # (2, batch, quantiles)


@kernel(arithmetic=True, allocates=False)
def rectify(out: Any, o0: int, rows: int, width: int, bias: Any, b0: int) -> None:
    """Add a bias (width,) to rows of a flat array and set what is negative to zero; nan stays nan."""
    for i in range(rows):
        row, own = out[o0 + i * width : o0 + (i + 1) * width], bias[b0 : b0 + width]
        for j in range(width):
            value = row[j] + own[j]
            row[j] = ZERO if value < ZERO else value


@kernel(allocates=False)
def read_block(rows: Any, first: int, count: int, factor: Any, memory: Any) -> int:
    """Copy `count` rows of observations, scaled, to `memory.tile` (columns, ROWS): columns in which one is not zero."""
    seen, columns, tile = memory.seen, memory.columns, memory.tile
    seen[:] = False
    for r in range(first, first + count):
        row = rows[r]
        for j in range(len(row)):
            seen[j] |= row[j] != 0
    n = 0
    for j in range(rows.shape[1]):
        columns[n] = j
        n += seen[j]
    tile[: n * ROWS] = ZERO
    for r in range(count):
        row = rows[first + r]
        for i in range(n):
            tile[i * ROWS + r] = factor * np.float32(row[columns[i]])
    return n


@kernel(allocates=False)
def block_features(
    count: int, found: int, weights: Any, at: Any, sizes: Any, memory: Any, out: Any, first: int
) -> None:
    """Features of the rows in `memory.tile`, to the rows of `out` (rows, width) from `first` on."""
    width, one = sizes.width, memory.identity
    add_product(
        memory.tile, 0, one, 1, one, ROWS, found, weights, at.body, memory.columns, width, out, first * width, one,
        width, count, width, False,
    )  # fmt: skip
    rectify(out, first * width, count, width, weights, at.body_bias)


@kernel(arithmetic=True, allocates=False)
def fill_cosines(taus: Any, lanes: int, out: Any) -> None:
    """cos(π c τ) for c = 1 … COSINES: out (COSINES, lanes)."""
    for c in range(COSINES):
        row = out[c * lanes : (c + 1) * lanes]
        for q in range(len(taus)):
            x = np.float64(c + 1) * np.float64(taus[q])
            turn = np.float32(x - 2.0 * np.floor(0.5 * x + 0.5))  # in ±1: of half a circle
            s = PI * (HALF - abs(turn))
            t = s * s
            row[q] = s * (ONE + t * (S3 + t * (S5 + t * (S7 + t * (S9 + t * S11)))))


@kernel(arithmetic=True, allocates=False)
def embed(index: Any, count: int, weights: Any, at: Any, cosines: Any, lanes: int, out: Any, identity: Any) -> None:
    """φ of some features at the quantiles of `cosines`: out (features, lanes)."""
    add_product(
        weights, at.phi, index, COSINES, identity, 1, COSINES, cosines, 0, identity, lanes, out, 0, identity, lanes,
        count, lanes, False,
    )  # fmt: skip
    for i in range(count):
        row, bias = out[i * lanes : (i + 1) * lanes], weights[at.phi_bias + index[i]]
        for q in range(lanes):
            value = row[q] + bias
            row[q] = ZERO if value < ZERO else value


@kernel(arithmetic=True, allocates=False)
def hidden_rows(
    features: Any, f0: int, phi: Any, by_place: bool, lanes: int, quantiles: int, layer: Any, l0: int, bias: Any,
    b0: int, width: int, memory: Any, count: int,
) -> None:  # fmt: skip
    """Hidden numbers of one state, to `memory.hidden` (quantiles, width), from φ (features, lanes).

    φ has the features in memory.index, `count` of them, or all: then `by_place` is True.
    """
    index, x = memory.index, memory.x
    for i in range(count):
        own, value = x[i * lanes : (i + 1) * lanes], features[f0 + index[i]]
        place = index[i] if by_place else i
        row = phi[place * lanes : (place + 1) * lanes]
        for q in range(lanes):
            own[q] = value * row[q]
    add_product(
        x, 0, memory.identity, 1, memory.identity, lanes, count, layer, l0, index, width, memory.hidden, 0,
        memory.identity, width, quantiles, width, False,
    )  # fmt: skip
    rectify(memory.hidden, 0, quantiles, width, bias, b0)


@kernel(arithmetic=True, allocates=False)
def mean_rows(rows: Any, count: int, width: int, out: Any, o0: int) -> None:
    """The mean of `count` rows of a flat array (rows, width)."""
    own, share = out[o0 : o0 + width], ONE / np.float32(count)
    for j in range(width):
        own[j] = rows[j]
    for i in range(1, count):
        row = rows[i * width : (i + 1) * width]
        for j in range(width):
            own[j] += row[j]
    for j in range(width):
        own[j] *= share


@kernel(arithmetic=True, allocates=False)
def dot_rows(rows: Any, count: int, width: int, weight: Any, bias: Any, parts: Any, out: Any) -> None:
    """Each row of a flat array (rows, width) times `weight` (width,), plus a bias."""
    for i in range(count):
        parts[:] = ZERO
        for j in range(0, width, LANE):
            row, own = rows[i * width + j : i * width + j + LANE], weight[j : j + LANE]
            for k in range(LANE):
                parts[k] += row[k] * own[k]
        total = bias
        for k in range(LANE):
            total += parts[k]
        out[i] = total


@kernel(arithmetic=True, allocates=False)
def fill_advantages(rows: int, head_t: Any, weights: Any, at: Any, sizes: Any, memory: Any) -> None:
    """Advantages of `memory.means` (rows, width), with the bias, to `memory.advantages` (rows, columns)."""
    width, columns, one, out = sizes.width, sizes.columns, memory.identity, memory.advantages
    add_product(
        memory.means, 0, one, width, one, 1, width, head_t, 0, one, columns, out, 0, one, columns, rows,
        columns, False,
    )  # fmt: skip
    for i in range(rows):
        for a in range(sizes.actions):
            out[i * columns + a] += weights[at.head_bias + 1 + a]


@kernel(allocates=False)
def choose(rows: int, sizes: Any, allowed: Any, advantages: Any, out: Any) -> None:
    """The allowed action with the largest advantage, the first of equal ones, for each row."""
    for i in range(rows):
        best = -1
        for a in range(sizes.actions):
            if len(allowed) and not allowed[i, a]:
                continue
            if best < 0 or advantages[i * sizes.columns + a] > advantages[i * sizes.columns + best]:
                best = a
        out[i] = max(best, 0)


@kernel(allocates=False)
def prepare_greedy(
    weights: Any, at: Any, sizes: Any, taus: Any, phi: Any, head_t: Any, identity: Any, cosines: Any
) -> None:
    """What the greedy choice needs of the weights alone: φ at the fixed quantiles, and the head transposed."""
    fill_cosines(taus, sizes.acting_lanes, cosines)
    embed(identity, sizes.width, weights, at, cosines, sizes.acting_lanes, phi, identity)
    width = sizes.width
    transpose(weights, at.head + width, sizes.actions, width, width, head_t, 0, sizes.columns)


@kernel(allocates=False)
def greedy_means(features: Any, rows: int, phi: Any, weights: Any, at: Any, sizes: Any, memory: Any) -> None:
    """Hidden numbers of states, without noise, averaged over the fixed quantiles: `memory.means` (rows, width)."""
    width = sizes.width
    for i in range(rows):
        count = list_nonzero(features, i * width, width, width, memory.index)
        hidden_rows(
            features, i * width, phi, True, sizes.acting_lanes, sizes.acting, weights, at.layer, weights,
            at.layer_bias, width, memory, count,
        )  # fmt: skip
        mean_rows(memory.hidden, sizes.acting, width, memory.means, i * width)


@kernel(arithmetic=True, allocates=False)
def add_noise(weights: Any, at: Any, sizes: Any, noisy: bool, out: Any) -> None:
    """Fill `out` from the weights of one agent and out.noise."""
    width, heads, noise = sizes.width, 1 + sizes.actions, out.noise
    for i in range(width):
        own = out.layer[i * width : (i + 1) * width]
        plain = weights[at.layer + i * width : at.layer + (i + 1) * width]
        for j in range(width):
            own[j] = plain[j]
        if noisy:
            sigma, inner = weights[at.layer_sigma + i * width : at.layer_sigma + (i + 1) * width], noise[i]
            for j in range(width):
                own[j] += sigma[j] * (noise[width + j] * inner)
    for j in range(width):
        out.layer_bias[j] = weights[at.layer_bias + j]
        if noisy:
            out.layer_bias[j] += weights[at.layer_bias_sigma + j] * noise[width + j]
    for a in range(heads):
        own, outer = out.head[a], noise[3 * width + a]
        plain = weights[at.head + a * width : at.head + (a + 1) * width]
        out.head_bias[a] = weights[at.head_bias + a]
        for j in range(width):
            own[j] = plain[j]
        if noisy:
            sigma = weights[at.head_sigma + a * width : at.head_sigma + (a + 1) * width]
            for j in range(width):
                own[j] += sigma[j] * (outer * noise[2 * width + j])
            out.head_bias[a] += weights[at.head_bias_sigma + a] * outer
    make_dueling(out.head, out.head_bias)


@kernel(arithmetic=True, allocates=False)
def make_dueling(head: Any, bias: Any) -> None:
    """Turn value and advantages (1 + actions, width) into Q: value + advantage - mean advantage; row 0 is used up."""
    actions, value = len(head) - 1, head[0]
    share = ONE / np.float32(actions)
    for a in range(1, actions + 1):
        row = head[a]
        for j in range(len(value)):
            value[j] -= share * row[j]
        bias[0] -= share * bias[a]
    for a in range(1, actions + 1):
        row = head[a]
        for j in range(len(value)):
            row[j] += value[j]
        bias[a] += bias[0]
