"""Recurrent cells of a herd, as functions of stacked weights: GRU (Cho et al. 2014) and LSTM (Hochreiter et al. 1997).

A cell reads an input and a recurrent state and gives the next state; its output is the first part of that state. All
states are zero when a life begins. The bits of a row do not depend on the other rows: products have at least MIN_ROWS
rows, and gates use exp, because torch's sigmoid computes the last numbers of an array with other bits.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.errors import ConfigError
from remuda.learners.stack import MIN_ROWS, WeightLayout, linear, padded

CELLS = ("gru", "lstm")
"""Names of the shipped cells, as values of the option `body`."""


class RecurrentCell:
    """A GRU or an LSTM. It holds no weights: they are arguments."""

    def __init__(self, kind: str, inputs: int, width: int, precision: str, option: str = "features") -> None:
        """`option` is the name by which the user gives the width, with its learner: a herd may have several."""
        if padded(width) != width:
            raise ConfigError(f"body={kind} has {option}={width}: give a multiple of 8, e.g. {option}={padded(width)}")
        self.kind, self.inputs, self.width, self.precision = kind, inputs, width, precision
        self.gates = 3 if kind == "gru" else 4
        self.memory_size = width if kind == "gru" else 2 * width

    def add_to(self, layout: WeightLayout) -> None:
        """Append the cell's arrays, initially as torch's own cells have them."""
        scale = math.sqrt(1.0 / self.width)
        layout.add("body.input.weight", (self.gates * self.width, self.inputs), scale)
        layout.add("body.input.bias", (self.gates * self.width,), scale)
        layout.add("body.memory.weight", (self.gates * self.width, self.width), scale)
        layout.add("body.memory.bias", (self.gates * self.width,), scale)

    def read(self, arrays: dict[str, Tensor], x: Tensor) -> Tensor:
        """What inputs (agents, rows, inputs) add to the gates, (agents, rows, gates * width); any turns at once."""
        return linear(x, arrays["body.input.weight"], arrays["body.input.bias"], self.precision)

    def step(self, arrays: dict[str, Tensor], read: Tensor, memory: Tensor) -> Tensor:
        """The state after one turn, from `read` and the state before, (agents, rows, memory_size)."""
        width, hidden = self.width, memory[:, :, : self.width]
        recalled = linear(hidden, arrays["body.memory.weight"], arrays["body.memory.bias"], self.precision)
        if self.kind == "gru":
            both = read[:, :, : 2 * width] + recalled[:, :, : 2 * width]
            reset, keep = _sigmoid(both).split_with_sizes([width, width], dim=2)
            new = torch.tanh(read[:, :, 2 * width :] + reset * recalled[:, :, 2 * width :])
            return new + keep * (hidden - new)
        gates = read + recalled
        enter, forget, out = _sigmoid(gates[:, :, : 3 * width]).split_with_sizes([width, width, width], dim=2)
        cell = forget * memory[:, :, width:] + enter * torch.tanh(gates[:, :, 3 * width :])
        return torch.cat([out * torch.tanh(cell), cell], dim=2)

    def unroll(self, arrays: dict[str, Tensor], x: Tensor, memory: Tensor) -> Tensor:
        """Outputs of sequences: x (agents, sequences, turns, inputs), memory (agents, sequences, memory_size).

        Returns (agents, sequences, turns, width).
        """
        agents, sequences, turns, inputs = x.shape
        read = self.read(arrays, x.reshape(agents, sequences * turns, inputs)).view(agents, sequences, turns, -1)
        outputs = []
        for turn in range(turns):
            memory = self.step(arrays, read[:, :, turn], memory)
            outputs.append(memory[:, :, : self.width])
        return torch.stack(outputs, dim=2)


def _sigmoid(x: Tensor) -> Tensor:
    return torch.reciprocal(torch.exp(-x) + 1.0)


def memory_rows(memory: NDArray[np.float32]) -> Tensor:
    """States (worlds, agents, numbers) as rows of a network, (agents, rows, numbers), with at least MIN_ROWS rows."""
    worlds, agents, size = memory.shape
    rows = np.zeros((agents, max(worlds, MIN_ROWS), size), np.float32)
    rows[:, :worlds] = memory.swapaxes(0, 1)
    return torch.from_numpy(rows)
