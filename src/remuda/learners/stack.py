"""N networks as one: every agent's weights in one row, every layer one batched product.

Two rules make the numbers independent of how rows are batched, so that a herd of fifty and a lone
agent compute the same bits: widths are padded to a multiple of 8, and where the number of rows depends on how
worlds are batched no product has fewer than 16 rows. Measured with torch 2.13, rows alone against the same rows in a
larger batch: on an AVX512 CPU the last bits differ below 16 rows where there are many inputs (from 152 inputs below 7
rows, from 384 below 16), and from 16 rows on in none of 10,636 cases; on an AVX2 CPU from 4 rows on in none of 1,800.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from remuda.core import rng
from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.policy import UNVERSIONED, Policy
from remuda.core.rng import Keys, Stream

LEAST_ROWS = 16
CHUNK_BYTES = 8 << 20
"""Activations of the agents that are worked on together: enough to be worth a call, few enough to stay cached.

Measured, agent updates per second at 1, 2, 4, 8, 16 MiB: 16 networks of layer 64: 213, 299, 338, 321, 302;
8 networks of the default size: 67, 67, 70, 75, 71.
"""


def padded(width: int) -> int:
    """The width a layer really has."""
    return -(-width // 8) * 8


@dataclass(frozen=True)
class WeightEntry:
    """One named array of a network: its true shape, the padded one, and where it starts in the row."""

    name: str
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]
    offset: int
    spread: float  # initial values are uniform in ±spread
    centre: float = 0.0

    @property
    def size(self) -> int:
        """Numbers it takes in the row."""
        return math.prod(self.padded_shape)


class WeightLayout:
    """How the arrays of one network lie in a row."""

    def __init__(self) -> None:
        self.entries: list[WeightEntry] = []

    def add(self, name: str, shape: Sequence[int], spread: float, centre: float = 0.0, pad: bool = True) -> None:
        """Append an array; padding stays zero for ever because nothing flows through it."""
        padded_shape = tuple(padded(n) for n in shape) if pad else tuple(shape)
        self.entries.append(WeightEntry(name, tuple(shape), padded_shape, self.size, spread, centre))

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def _sizes(self) -> list[int]:
        return [entry.size for entry in self.entries]

    def arrays(self, rows: Tensor) -> dict[str, Tensor]:
        """Each array of all agents, (agents, *room), differentiable with respect to `rows`."""
        pieces = rows.split_with_sizes(self._sizes, dim=1)
        return {e.name: piece.view(len(rows), *e.padded_shape) for e, piece in zip(self.entries, pieces, strict=True)}

    def initial(self, keys: Keys) -> NDArray[np.float32]:
        """First weights, one row per key, each drawn from its own key."""
        rows = np.zeros((len(keys), self.size), np.float32)
        for index, e in enumerate(self.entries):
            values = rng.uniforms(rng.keys(keys, index), math.prod(e.shape))
            values = e.centre + (2.0 * values - 1.0) * e.spread
            for row, own in zip(rows, values, strict=True):
                self._place(row, e)[...] = own.reshape(e.shape)
        return rows

    def _place(self, row: NDArray[np.float32], entry: WeightEntry) -> NDArray[np.float32]:
        """The part of a row that holds an array, without its padding, as a view."""
        padded_shape = row[entry.offset : entry.offset + entry.size].reshape(entry.padded_shape)
        return padded_shape[tuple(slice(n) for n in entry.shape)]

    def named(self, row: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """One agent's arrays without padding."""
        return {e.name: self._place(row, e).copy() for e in self.entries}

    def row(self, arrays: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """The row that has these named arrays."""
        row = np.zeros(self.size, np.float32)
        for e in self.entries:
            self._place(row, e)[...] = arrays[e.name]
        return row


def add_linear(layout: WeightLayout, name: str, inputs: int, outputs: int, gain: float = 1.0) -> None:
    """Room for a layer, uniform in ±gain/√inputs at first."""
    spread = gain * math.sqrt(1.0 / inputs)
    layout.add(f"{name}.weight", (outputs, inputs), spread)
    layout.add(f"{name}.bias", (outputs,), spread)


def input_scale(group: Group) -> float:
    """Bytes that mean a fraction of their range (colours) are scaled to it; counts and flags stay as they are."""
    integer = np.issubdtype(np.dtype(group.obs_dtype), np.integer)
    return 1.0 / group.high if integer and np.isfinite(group.high) and group.high > 1 else 1.0


def stack_frames(obs: NDArray[Any], ages: NDArray[np.int64], scale: float, width: int) -> Tensor:
    """Frames (frames, worlds, agents, *obs) as network input (agents, rows, width), at least 16 rows."""
    worlds, agents = ages.shape
    x = np.zeros((agents, max(worlds, LEAST_ROWS), width), np.float32)
    _stack_frames(obs.reshape(len(obs), worlds, agents, -1), ages, scale, x)
    return torch.from_numpy(x)


@kernel
def _stack_frames(obs: Any, ages: Any, scale: float, out: Any) -> None:
    """Copy each agent's own frames side by side, oldest first; frames older than the agent stay zero."""
    frames, worlds, agents, size = obs.shape
    factor = np.float32(scale)
    for a in range(agents):
        for w in range(worlds):
            for f in range(max(0, frames - 1 - ages[w, a]), frames):
                for i in range(size):
                    out[a, w, f * size + i] = obs[f, w, a, i] * factor


def pad_windows(
    windows: NDArray[Any], scale: float, width: int, device: torch.device, least_rows: int = LEAST_ROWS
) -> Tensor:
    """Windows (agents, rows, frames * obs) as network input (agents, rows, width), with at least `least_rows` rows.

    Whoever always has the same number of rows, as the plan says, needs no more of them.
    """
    agents, rows, size = windows.shape
    x = torch.zeros((agents, max(rows, least_rows), width), device=device)
    x[:, :rows, :size] = torch.from_numpy(windows).to(device)
    return x if scale == 1.0 else x.mul_(scale)


def init_keys(seed: int, numbers: NDArray[np.int64]) -> Keys:
    """Keys for the first weights of these agents."""
    return rng.keys(rng.key(seed, Stream.INIT), numbers)


def linear(x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    """x (agents, rows, in) through each agent's own layer, (agents, rows, out)."""
    if precision == "bf16":
        return product(x, weight.transpose(1, 2), precision) + bias.unsqueeze(1)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """Each agent's own matrix product, (agents, …, …)."""
    return torch.bmm(a.bfloat16(), b.bfloat16()).float() if precision == "bf16" else torch.bmm(a, b)


def fill_rows(x: Tensor) -> Tensor:
    """Append zero rows until a product is batch-invariant."""
    missing = LEAST_ROWS - x.shape[1]
    return x if missing <= 0 else torch.nn.functional.pad(x, (0, 0, 0, missing))


def chunks(agents: int, bytes_each: int) -> Iterator[tuple[int, int]]:
    """Ranges of neighbouring agents whose activations fit the cache together."""
    step = max(1, CHUNK_BYTES // max(bytes_each, 1))
    for first in range(0, agents, step):
        yield first, min(first + step, agents)


class StackedNetwork:
    """What every network of a herd knows about its input and where it runs."""

    def __init__(self, group: Group, frames: int, precision: str, device: str) -> None:
        self.precision = precision
        self.device = torch.device(device)
        self.frames = frames
        self.actions = group.actions
        self.obs_size = math.prod(group.obs_shape)
        self.inputs = padded(frames * self.obs_size)
        self.scale = input_scale(group)


class StackedPolicy(Policy):
    """A policy whose networks are rows; after the weights a row may have columns that are no weights."""

    def __init__(self, group: Group, agents: int, layout: WeightLayout, columns: int, device: str) -> None:
        super().__init__(group, agents)
        self.layout = layout
        self.columns = columns
        self._rows = np.zeros((agents, layout.size + columns), np.float32)
        self._weights = torch.zeros((agents, layout.size), device=device)
        self._slices: dict[tuple[int, int], dict[str, Tensor]] = {}

    @property
    def rows(self) -> NDArray[np.float32]:
        """Weights, then the other columns."""
        return self._rows

    def load(self, rows: NDArray[np.float32], versions: int | NDArray[np.int64]) -> None:
        """Take over published rows."""
        super().load(rows, versions)
        self._rows[:] = rows
        self._weights.copy_(torch.from_numpy(self._rows[:, : self.layout.size]))
        self._slices = {(0, self.agents): self.prepare(self.layout.arrays(self._weights))}

    def prepare(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add what acting needs and only changes with the weights."""
        return arrays

    def slice(self, first: int, last: int) -> dict[str, Tensor]:
        """Views of some agents' arrays, made once per version."""
        if (first, last) not in self._slices:
            whole = self._slices[0, self.agents]
            self._slices[first, last] = {name: array[first:last] for name, array in whole.items()}
        return self._slices[first, last]

    def named(self, rows: NDArray[np.float32]) -> list[dict[str, NDArray[np.float32]]]:
        """Named arrays per agent, without padding and the other columns."""
        return [self.layout.named(row[: self.layout.size]) for row in rows]

    def load_weights(self, weights: list[dict[str, NDArray[np.float32]]]) -> None:
        """Take over named arrays; the other columns stay as they are."""
        rows = np.stack([self.layout.row(arrays) for arrays in weights])
        self.load(np.concatenate([rows, self._rows[:, self.layout.size :]], axis=1), UNVERSIONED)


class Adam:
    """Adam over rows of weights, with a learning rate per agent and gradients clipped per agent.

    The step itself is torch's fused one, an agent at a time: written out in tensor operations it took
    4.4 ms per agent at the default size with cold caches, fused 0.5 ms.
    """

    def __init__(self, rows: Tensor, beta2: float = 0.999) -> None:
        self.rows = rows
        self.beta2 = beta2
        self.mean = torch.zeros_like(rows)
        self.square = torch.zeros_like(rows)
        self.counts = torch.zeros(len(rows), device=rows.device)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Weights and moments, one row per agent."""
        return {name: tensor.cpu().numpy() for name, tensor in self._tensors().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Become the optimiser that `state` was taken from, weights included."""
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(state[name]))

    def _tensors(self) -> dict[str, Tensor]:
        return {"weights": self.rows, "adam.mean": self.mean, "adam.square": self.square, "adam.counts": self.counts}

    def step(self, first: int, last: int, grad: Tensor, rates: NDArray[np.float64], clip: float) -> Tensor:
        """Move agents first … last-1 against their gradients; returns the norms of these.

        An agent whose gradient is not finite stays as it is.
        """
        norm: Tensor = torch.linalg.vector_norm(grad, dim=1)
        grad.mul_((clip / norm.clamp(min=clip)).unsqueeze(1))
        good = torch.isfinite(norm).tolist()
        for i in range(first, last):
            if not good[i - first]:
                continue
            adam(
                [self.rows[i]], [grad[i - first]], [self.mean[i]], [self.square[i]], [], [self.counts[i]],
                fused=True, amsgrad=False, beta1=0.9, beta2=self.beta2, lr=float(rates[i - first]),
                weight_decay=0.0, eps=1e-8, maximize=False,
            )  # fmt: skip
        return norm
