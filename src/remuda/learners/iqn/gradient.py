"""The gradient of IQN's loss for one agent, state by state, and the step that follows; see `kernels.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from remuda.core.kernels import kernel
from remuda.learners.fused import EPSILON, HALF, ONE, ZERO
from remuda.learners.iqn.kernels import (
    COSINES,
    ROWS,
    add_noise,
    block_features,
    choose,
    dot_rows,
    embed,
    fill_advantages,
    fill_cosines,
    greedy_means,
    hidden_rows,
    prepare_greedy,
    read_block,
)
from remuda.learners.products import SPARE, add_product, list_nonzero


@kernel(arithmetic=True, allocates=False)
def quantile_loss(values: Any, targets: Any, taus: Any, share: Any, pulls: Any) -> Any:
    """The summed quantile Huber loss of one state; writes `share` × its gradient by the values to `pulls`."""
    total = 0.0
    for i in range(len(values)):
        pull, below, above = ZERO, ONE - taus[i], taus[i]
        for j in range(len(targets)):
            error = targets[j] - values[i]
            weight = below if error < ZERO else above
            size = abs(error)
            total += np.float64(weight * (HALF * error * error if size <= ONE else size - HALF))
            pull += weight * (ONE if error > ONE else (-ONE if error < -ONE else error))
        pulls[i] = -share * pull
    return total


@kernel(arithmetic=True, allocates=False)
def head_backward(quantiles: int, lanes: int, action: int, layers: Any, memory: Any, grad: Any, b0: int) -> int:
    """Gradients behind the head and the ReLU before it, from `memory.pulls`; how many hidden numbers have one.

    Writes memory.hidden_grad, memory.active and memory.hidden_grad_t; adds to the gradients of the head of this action
    and of the layer's bias, at b0 in `grad`.
    """
    hidden, out, pulls, width = memory.hidden, memory.hidden_grad, memory.pulls, len(layers.layer_bias)
    head, own, bias = layers.head[action], memory.head_grad[action], grad[b0 : b0 + width]
    for q in range(quantiles):
        row, below, pull = hidden[q * width : (q + 1) * width], out[q * width : (q + 1) * width], pulls[q]
        for j in range(width):
            own[j] += pull * row[j]
            below[j] = pull * head[j] if row[j] > ZERO else ZERO
            bias[j] += below[j]
        memory.head_bias_grad[action] += pull
    n, active, turned = 0, memory.active, memory.hidden_grad_t
    for j in range(width):
        some = False
        for q in range(quantiles):
            value = out[q * width + j]
            turned[n * lanes + q] = value
            some |= value != ZERO
        active[n] = j
        n += some
    return n


@kernel(arithmetic=True, allocates=False)
def layer_backward(
    count: int, active: int, f0: int, weights: Any, at: Any, sizes: Any, layers: Any, memory: Any, grad: Any
) -> None:
    """From the gradient of the hidden numbers of one state to those of layer, φ and features.

    The features, at f0 in `memory.features[0]`, are replaced by their gradients.
    """
    width, lanes, one, index = sizes.width, sizes.lanes, memory.identity, memory.index
    features, phi, x_grad = memory.features[0], memory.phi, memory.x_grad
    memory.x[count * lanes : (count + SPARE) * lanes] = ZERO
    add_product(
        memory.x, 0, one, lanes, one, 1, sizes.quantiles, memory.hidden_grad, 0, one, width, grad, at.layer, index,
        width, count, width, True,
    )  # fmt: skip
    add_product(
        layers.layer, 0, index, width, memory.active, 1, active, memory.hidden_grad_t, 0, one, lanes, x_grad, 0, one,
        lanes, count, lanes, False,
    )  # fmt: skip
    for i in range(count):
        own, row = x_grad[i * lanes : (i + 1) * lanes], phi[i * lanes : (i + 1) * lanes]
        value, pull, bias = features[f0 + index[i]], ZERO, ZERO
        for q in range(sizes.quantiles):
            pull += own[q] * row[q]
            own[q] = own[q] * value if row[q] > ZERO else ZERO
            bias += own[q]
        features[f0 + index[i]] = pull
        grad[at.phi_bias + index[i]] += bias
    x_grad[count * lanes : (count + SPARE) * lanes] = ZERO
    add_product(
        x_grad, 0, one, lanes, one, 1, sizes.quantiles, memory.cosine_rows, 0, one, COSINES, grad, at.phi, index,
        COSINES, count, COSINES, True,
    )  # fmt: skip


@kernel(arithmetic=True, allocates=False)
def body_backward(obs: Any, factor: Any, at: Any, sizes: Any, memory: Any, grad: Any) -> None:
    """The gradient of the body from those of the features of a batch, `memory.features[0]`."""
    width, batch, one, columns = sizes.width, sizes.batch, memory.identity, memory.columns
    features, seen, tile = memory.features[0], memory.seen, memory.tile
    seen[:] = False
    for b in range(batch):
        row = obs[b]
        for j in range(len(row)):
            seen[j] |= row[j] != 0
        own, bias = features[b * width : (b + 1) * width], grad[at.body_bias : at.body_bias + width]
        for j in range(width):
            bias[j] += own[j]
    found = 0
    for j in range(obs.shape[1]):
        columns[found] = j
        found += seen[j]
    for i in range(found, found + SPARE):
        columns[i] = sizes.inputs
    for first in range(0, found, ROWS):
        tile[:] = ZERO
        count = min(ROWS, found - first)
        for i in range(count):
            own = tile[i * batch : (i + 1) * batch]
            for b in range(batch):
                own[b] = factor * np.float32(obs[b, columns[first + i]])
        add_product(
            tile, 0, one, batch, one, 1, batch, features, 0, one, width, grad, at.body, columns[first:], width, count,
            width, False,
        )  # fmt: skip


@kernel(arithmetic=True, allocates=False)
def spread_gradient(at: Any, sizes: Any, noisy: bool, noise: Any, memory: Any, grad: Any) -> None:
    """From the gradients of noisy layer and dueling head to those of weights and their σ."""
    width, actions = sizes.width, sizes.actions
    common, share = memory.head_grad[0], ONE / np.float32(actions)
    total = ZERO
    common[:] = ZERO
    for a in range(1, actions + 1):
        row = memory.head_grad[a]
        for j in range(width):
            common[j] += row[j]
        total += memory.head_bias_grad[a]
    for a in range(actions + 1):
        row, own = memory.head_grad[a], grad[at.head + a * width : at.head + (a + 1) * width]
        for j in range(width):
            own[j] = row[j] - share * common[j] if a else common[j]
        grad[at.head_bias + a] = memory.head_bias_grad[a] - share * total if a else total
    if not noisy:
        return
    for i in range(width):
        row = grad[at.layer + i * width : at.layer + (i + 1) * width]
        own, inner = grad[at.layer_sigma + i * width : at.layer_sigma + (i + 1) * width], noise[i]
        for j in range(width):
            own[j] = row[j] * (noise[width + j] * inner)
    for j in range(width):
        grad[at.layer_bias_sigma + j] = grad[at.layer_bias + j] * noise[width + j]
    for a in range(actions + 1):
        row, outer = grad[at.head + a * width : at.head + (a + 1) * width], noise[3 * width + a]
        own = grad[at.head_sigma + a * width : at.head_sigma + (a + 1) * width]
        for j in range(width):
            own[j] = row[j] * (outer * noise[2 * width + j])
        grad[at.head_bias_sigma + a] = grad[at.head_bias + a] * outer


@kernel(allocates=False)
def loss_gradient(
    nets: Any, rows: Any, factor: Any, at: Any, sizes: Any, noisy: bool, noise: Any, acting_taus: Any, memory: Any,
    grad: Any,
) -> Any:  # fmt: skip
    """The mean loss of one agent over a batch; writes its gradient to `grad`, flat as the weights.

    `nets` are the weights of network and target network, `noise` the two NoisyLayers.
    """
    weights, target = nets
    own, behind = noise
    batch, width, lanes = sizes.batch, sizes.width, sizes.lanes
    add_noise(weights, at, sizes, noisy, own)
    add_noise(target, at, sizes, noisy, behind)
    grad[:] = ZERO
    memory.head_grad[:] = ZERO
    memory.head_bias_grad[:] = ZERO
    features, ahead, ahead_target = memory.features[0], memory.features[1], memory.features[2]
    for first in range(0, batch, ROWS):
        count = min(ROWS, batch - first)
        found = read_block(rows.next_obs, first, count, factor, memory)
        block_features(count, found, weights, at, sizes, memory, ahead, first)
        block_features(count, found, target, at, sizes, memory, ahead_target, first)
        found = read_block(rows.obs, first, count, factor, memory)
        block_features(count, found, weights, at, sizes, memory, features, first)
    phi, head_t = memory.acting_phi, memory.head_t
    prepare_greedy(weights, at, sizes, acting_taus, phi, head_t, memory.identity, memory.acting_cosines)
    greedy_means(ahead, batch, phi, weights, at, sizes, memory)
    fill_advantages(batch, head_t, weights, at, sizes, memory)
    choose(batch, sizes, rows.allowed, memory.advantages, memory.best)
    share = 1.0 / (batch * sizes.quantiles * sizes.quantiles)
    total = 0.0
    for b in range(batch):
        state_values(ahead_target, b, rows.taus[1, b], memory.best[b] + 1, target, at, sizes, behind, memory)
        for q in range(sizes.quantiles):
            memory.targets[q] = rows.returns[b] + rows.discounts[b] * memory.values[q]
        count = state_values(features, b, rows.taus[0, b], rows.actions[b] + 1, weights, at, sizes, own, memory)
        total += quantile_loss(memory.values, memory.targets, rows.taus[0, b], np.float32(share), memory.pulls)
        active = head_backward(sizes.quantiles, lanes, rows.actions[b] + 1, own, memory, grad, at.layer_bias)
        for q in range(sizes.quantiles):
            for c in range(COSINES):
                memory.cosine_rows[q * COSINES + c] = memory.cosines[c * lanes + q]
        layer_backward(count, active, b * width, weights, at, sizes, own, memory, grad)
    body_backward(rows.obs, factor, at, sizes, memory, grad)
    spread_gradient(at, sizes, noisy, own.noise, memory, grad)
    return total * share


@kernel(allocates=False)
def state_values(
    features: Any, b: int, taus: Any, action: int, weights: Any, at: Any, sizes: Any, layers: Any, memory: Any
) -> int:
    """Q of one action of state b at the quantiles `taus`, to `memory.values`; how many features are not zero."""
    width, lanes = sizes.width, sizes.lanes
    count = list_nonzero(features, b * width, width, width, memory.index)
    fill_cosines(taus, lanes, memory.cosines)
    embed(memory.index, count, weights, at, memory.cosines, lanes, memory.phi, memory.identity)
    hidden_rows(
        features, b * width, memory.phi, False, lanes, sizes.quantiles, layers.layer, 0, layers.layer_bias, 0, width,
        memory, count,
    )  # fmt: skip
    dot_rows(
        memory.hidden, sizes.quantiles, width, layers.head[action], layers.head_bias[action], memory.parts,
        memory.values,
    )  # fmt: skip
    return count


@kernel(arithmetic=True, allocates=False)
def norm_of(grad: Any, parts: Any) -> Any:
    """The norm of a flat array, in double precision; its squares are summed in `parts`."""
    parts[:] = 0.0
    lanes = len(parts)
    whole, total = len(grad) // lanes * lanes, 0.0
    for j in range(0, whole, lanes):
        row = grad[j : j + lanes]
        for k in range(lanes):
            parts[k] += np.float64(row[k]) * np.float64(row[k])
    for j in range(whole, len(grad)):
        total += np.float64(grad[j]) * np.float64(grad[j])
    for k in range(lanes):
        total += parts[k]
    return np.sqrt(total)


@kernel(arithmetic=True, allocates=False)
def adam_and_target(weights: Any, target: Any, grad: Any, mean: Any, square: Any, norm: float, settings: Any) -> None:
    """A step of Adam with the gradient clipped, after which the target network follows; all arrays are flat.

    `settings` are the number of this step, learning rate, largest norm, and the target's share.
    """
    count, rate, clip, share = settings
    factor = np.float32(min(1.0, clip / norm) if norm > 0.0 else 1.0)
    keep1, new1, keep2, new2 = np.float32(0.9), np.float32(1.0 - 0.9), np.float32(0.999), np.float32(1.0 - 0.999)
    step, root = np.float32(rate / (1.0 - 0.9**count)), np.float32(1.0 / np.sqrt(1.0 - 0.999**count))
    tau = np.float32(share)
    for j in range(len(weights)):
        g = grad[j] * factor
        mean[j] = keep1 * mean[j] + new1 * g
        square[j] = keep2 * square[j] + new2 * g * g
        weights[j] -= step * mean[j] / (np.sqrt(square[j]) * root + EPSILON)
        target[j] += tau * (weights[j] - target[j])
