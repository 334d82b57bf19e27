"""Minibatches of a round: which rows of each agent make a gradient step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.ranges import split_evenly
from remuda.core.rng import Keys
from remuda.learners.ppo.experience import Experience, sequence_lengths
from remuda.learners.ppo.options import PPOOptions


def minibatch_count(rows: Experience, options: PPOOptions) -> int:
    """Gradient steps per pass: as the options say, but no more than there are sequences."""
    steps = options.steps_per_pass(rows.actions.shape[1])
    return min(steps, int((rows.place[0] == 0).sum())) if rows.place.shape[2] else steps


def minibatch_rows(rows: Experience, options: PPOOptions, keys: Keys) -> Iterator[NDArray[np.int64] | None]:
    """Rows of each minibatch in a random order per agent, (agents, rows); None: all of them. Sequences stay whole."""
    parts, count = minibatch_count(rows, options), rows.actions.shape[1]
    if parts == 1:
        yield None
        return
    if not rows.place.shape[2]:
        order = rng.uniforms(keys, count).argsort(axis=1, kind="stable")
        yield from (order[:, a:b] for a, b in split_evenly(count, parts))
        return
    lengths = sequence_lengths(rows.place[0, :, 0])  # several agents are stacked only where all are equal
    firsts, numbers = np.cumsum(lengths) - lengths, np.arange(count)
    order = rng.uniforms(keys, len(lengths)).argsort(axis=1, kind="stable")
    for a, b in split_evenly(len(lengths), parts):
        picked = [[numbers[firsts[i] : firsts[i] + lengths[i]] for i in agent[a:b]] for agent in order]
        yield np.array([np.concatenate(agent) for agent in picked])


def normalised(advantages: NDArray[np.float32]) -> NDArray[np.float32]:
    """Advantages (…, rows) with mean 0 and variance 1."""
    centred = advantages - advantages.mean(axis=-1, keepdims=True)
    std = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True))
    scaled: NDArray[np.float32] = centred / (std + np.float32(1e-8))
    return scaled
