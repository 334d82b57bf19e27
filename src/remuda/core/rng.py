"""Counter-based randomness: a random number is a function of what it is for, never of the order of draws.

A key is 64 bits, hashed from (seed, stream, coordinates…). The coordinates say what the number is for: world, agent,
episode, turn, update. Draw `i` of a key is output `i` of SplitMix64 started at that key. No generator has a state, so
Python, compiled code and any number of workers get the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel

Keys = NDArray[np.uint64]


class Stream(IntEnum):
    """What a number is for. Streams of one seed are independent of each other."""

    TRAIN = 1
    EVALUATE = 2
    ACT = 3
    INIT = 4
    SAMPLE = 5
    TAU = 6
    NOISE = 7
    CHECK = 8
    TEST = 9
    OUTSIDE = 10  # episodes played through the adapters for other libraries
    SEARCH = 11
    STUDY = 20


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ONE = np.uint64(1)
_UNIT = 2.0**-53


@kernel
def _mix(x: Any) -> Any:
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@kernel
def fold(key: Any, coordinate: Any) -> Any:
    """Hash one more coordinate into a key; returns the new key."""
    return _mix((key ^ np.uint64(coordinate)) + _GOLDEN)


@kernel
def bits(key: Any, draw: Any) -> Any:
    """64 random bits: draw number `draw` of `key`."""
    return _mix(key + (np.uint64(draw) + _ONE) * _GOLDEN)


@kernel
def uniform(key: Any, draw: Any) -> Any:
    """A float64 uniform in [0, 1): draw number `draw` of `key`."""
    return np.float64(bits(key, draw) >> _S11) * _UNIT


@kernel
def below(key: Any, draw: Any, bound: Any) -> Any:
    """An integer uniform in 0 … bound-1: draw number `draw` of `key`."""
    return np.int64(uniform(key, draw) * bound)


@kernel
def _fold_all(keys: Any, coordinate: Any) -> None:
    for i in range(keys.size):
        keys[i] = fold(keys[i], coordinate)


@kernel
def _fold_pairs(keys: Any, coordinates: Any) -> None:
    for i in range(keys.size):
        keys[i] = fold(keys[i], coordinates[i])


@kernel
def _fill_uniform(keys: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = uniform(keys[i], j)


@kernel
def _fill_normal(keys: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            radius = math.sqrt(-2.0 * math.log(1.0 - uniform(keys[i], 2 * j)))
            out[i, j] = radius * math.cos(2.0 * math.pi * uniform(keys[i], 2 * j + 1))


def key(seed: int, stream: Stream, *coordinates: int) -> np.uint64:
    """The key of a stream at these coordinates."""
    result = np.uint64(fold(np.uint64(seed), 0))
    for coordinate in (stream, *coordinates):
        result = np.uint64(fold(result, int(coordinate)))
    return result


def keys(base: np.uint64 | Keys, coordinate: int | NDArray[Any]) -> Keys:
    """Fold one coordinate, or an array of them, into a key or an array of keys."""
    if isinstance(coordinate, int):  # the fast path: the rollout takes it every turn
        out = np.array(base, np.uint64, order="C")
        _fold_all(out.reshape(-1), coordinate)
        return out
    shape = np.broadcast_shapes(np.shape(base), np.shape(coordinate))
    out = np.array(np.broadcast_to(base, shape), np.uint64, order="C")
    coordinates = np.empty(shape, np.uint64)
    coordinates[...] = coordinate
    _fold_pairs(out.reshape(-1), coordinates.reshape(-1))
    return out


def uniforms(base: Keys, count: int) -> NDArray[np.float64]:
    """The first `count` uniform draws of each key, (*keys, count)."""
    out = np.empty((base.size, count))
    _fill_uniform(base.reshape(-1), out)
    return out.reshape(*base.shape, count)


def normals(base: Keys, count: int) -> NDArray[np.float64]:
    """`count` standard normal draws of each key (Box and Muller), (*keys, count)."""
    out = np.empty((base.size, count))
    _fill_normal(base.reshape(-1), out)
    return out.reshape(*base.shape, count)


@contextmanager
def torch_seeded(base: np.uint64) -> Iterator[None]:
    """Seed torch's global generator, for a user's module that draws from it, and restore its state afterwards."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(int(base) >> 1)
        yield
