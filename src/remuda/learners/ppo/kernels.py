"""The loss of PPO and its gradient by the outputs of actor and critic, for groups of equal rows of one agent.

All rows of a group have the same outputs, so softmax and entropy are computed once per group. `loss.py` has the same
loss in torch, row by row; tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remuda.core.kernels import kernel
from remuda.learners.fused import ONE, ZERO, exp
from remuda.learners.ppo.network import FORBIDDEN

NOT_ALLOWED = np.float32(FORBIDDEN)
LOSS, VALUE_LOSS, ENTROPY, KL = range(4)
SUMS = {"loss": LOSS, "value_loss": VALUE_LOSS, "entropy": ENTROPY, "kl": KL}
"""Places of the metrics among the sums."""


@kernel(arithmetic=True)
def fill_batch(order: Any, rows: Any, moments: Any, normalise: bool, out: Any) -> None:
    """Copy rows in this order: actions, log-probabilities, advantages, and returns standardised by `moments`.

    Advantages get mean 0 and variance 1 if `normalise` is on.
    """
    actions, log_probs, advantages, returns = rows
    out_actions, out_log_probs, out_advantages, out_targets = out
    mean, spread = 0.0, 1.0
    if normalise:
        for row in order:
            mean += np.float64(advantages[row])
        mean /= len(order)
        squares = 0.0
        for row in order:
            squares += (np.float64(advantages[row]) - mean) ** 2
        spread = np.sqrt(squares / len(order)) + 1e-8
    for i in range(len(order)):
        row = order[i]
        out_actions[i] = actions[row]
        out_log_probs[i] = log_probs[row]
        out_advantages[i] = np.float32((np.float64(advantages[row]) - mean) / spread)
        out_targets[i] = np.float32((np.float64(returns[row]) - moments[0]) / moments[1])


@kernel(arithmetic=True)
def critic_loss(
    values: Any, bias: Any, starts: Any, first: int, targets: Any, weight: float, bias_grad: Any, sums: Any
) -> None:
    """Turn values (groups, padded 1) without bias into the gradient of `weight` × the summed squared errors, in place.

    The groups are first, first + 1, …, and group g has rows starts[g] … starts[g + 1] - 1. `targets` (rows,) are
    standardised returns. Writes the sum of squared errors to `sums`.
    """
    total = squares = 0.0
    for i in range(len(values)):
        value, errors = values[i, 0] + bias[0], 0.0
        for k in range(starts[first + i], starts[first + i + 1]):
            error = np.float64(value - targets[k])
            errors += error
            squares += error * error
        values[i] = ZERO
        values[i, 0] = np.float32(weight * errors)
        total += weight * errors
    bias_grad[:] = ZERO
    bias_grad[0] = np.float32(total)
    sums[VALUE_LOSS] = squares


@kernel(arithmetic=True)
def actor_loss(
    logits: Any, bias: Any, groups: Any, first: int, rows: Any, allowed: Any, settings: Any, bias_grad: Any, sums: Any
) -> None:
    """Turn logits (groups, padded actions) without bias into gradients of the clipped objective and bonus, in place.

    `groups` are numbers of distinct rows and starts, as in `critic_loss`. `rows` are actions, log-probabilities and
    advantages, and space for a number each, (rows,). `allowed` (distinct rows, actions) may have no columns: then all
    are. `settings` are the number of actions, the clip range, the weight of the entropy, and 1 / rows of the minibatch.
    """
    ids, starts = groups
    actions, old, advantages, gains = rows
    count, clip, bonus, share = settings
    low, high = np.float32(1.0 - clip), np.float32(1.0 + clip)
    probs = np.empty(logits.shape[1], np.float32)
    losses = entropies = divergence = 0.0
    bias_grad[:] = ZERO
    for i in range(len(logits)):
        row, begin, end = logits[i], starts[first + i], starts[first + i + 1]
        for j in range(count):
            row[j] += bias[j]
        if allowed.shape[1]:
            for j in range(count):
                row[j] = row[j] if allowed[ids[first + i], j] else NOT_ALLOWED
        row[count:] = NOT_ALLOWED
        top = _largest(row)
        for j in range(len(row)):
            probs[j] = exp(row[j] - top) if row[j] > NOT_ALLOWED else ZERO * row[j]
        total = _sum(probs)
        log_total = np.float32(top + np.log(total))
        inverse = ONE / total
        for j in range(len(row)):
            probs[j] *= inverse
        entropy = log_total - _dot(probs, row)
        pull = 0.0  # sum of the gradients by the log-probabilities of the chosen actions
        for k in range(begin, end):
            log_ratio = row[actions[k]] - log_total - old[k]
            ratio = exp(log_ratio)
            gain = ratio * advantages[k]
            bounded = low if ratio < low else (high if ratio > high else ratio)
            clipped = bounded * advantages[k]
            gains[k] = ZERO if gain > clipped else -np.float32(share) * gain
            pull += np.float64(gains[k])
            losses -= np.float64(clipped if gain > clipped else gain)
            divergence -= np.float64(log_ratio)
        entropies += np.float64(entropy) * (end - begin)
        # With p the probabilities and H the entropy: d log p_a / d logit_j = [a = j] - p_j and
        # dH / d logit_j = -p_j (log p_j + H).
        heat, shift = np.float32(bonus * share * (end - begin)), entropy - log_total
        back = np.float32(pull)
        for j in range(len(row)):
            row[j] = probs[j] * (heat * (row[j] + shift) - back)
        for k in range(begin, end):
            row[actions[k]] += gains[k]
        for j in range(len(row)):
            bias_grad[j] += row[j]
    sums[LOSS], sums[ENTROPY], sums[KL] = losses, entropies, divergence


@kernel(arithmetic=True)
def _largest(row: Any) -> Any:
    """The largest of a multiple of 8 numbers."""
    a, b, c, d, e, f, g, h = row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]
    for j in range(8, len(row), 8):
        a = row[j] if row[j] > a else a
        b = row[j + 1] if row[j + 1] > b else b
        c = row[j + 2] if row[j + 2] > c else c
        d = row[j + 3] if row[j + 3] > d else d
        e = row[j + 4] if row[j + 4] > e else e
        f = row[j + 5] if row[j + 5] > f else f
        g = row[j + 6] if row[j + 6] > g else g
        h = row[j + 7] if row[j + 7] > h else h
    return max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)))


@kernel(arithmetic=True)
def _sum(row: Any) -> Any:
    """The sum of a multiple of 8 numbers, in eight parts: one vector register."""
    a = b = c = d = e = f = g = h = ZERO
    for j in range(0, len(row), 8):
        a += row[j]
        b += row[j + 1]
        c += row[j + 2]
        d += row[j + 3]
        e += row[j + 4]
        f += row[j + 5]
        g += row[j + 6]
        h += row[j + 7]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@kernel(arithmetic=True)
def _dot(one: Any, other: Any) -> Any:
    """The sum of products of a multiple of 8 numbers, as `_sum`."""
    a = b = c = d = e = f = g = h = ZERO
    for j in range(0, len(one), 8):
        a += one[j] * other[j]
        b += one[j + 1] * other[j + 1]
        c += one[j + 2] * other[j + 2]
        d += one[j + 3] * other[j + 3]
        e += one[j + 4] * other[j + 4]
        f += one[j + 5] * other[j + 5]
        g += one[j + 6] * other[j + 6]
        h += one[j + 7] * other[j + 7]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))
