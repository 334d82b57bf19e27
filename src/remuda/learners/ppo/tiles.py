"""Gradients and values of one agent, computed for distinct rows in tiles that stay in the cache.

A tile goes forward through all layers, through the loss and back before the next one begins. Tiles, and the order in
which their gradients are added, depend on the agent's own rows alone. So no bit depends on the engine, on threads or on
other agents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.learners import fused
from remuda.learners.ppo.kernels import SUMS, actor_loss, critic_loss
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.row_inputs import RowInputs

TILE_ROWS = 1250
"""Distinct rows of a tile."""


class Layer(NamedTuple):
    """The arrays of a layer in a flat row, as a tensor and as numpy arrays of the same memory."""

    weight: Tensor  # (outputs, inputs); of the first layer (inputs, outputs)
    weight_array: NDArray[np.float32]
    bias: NDArray[np.float32]  # (outputs,)


class TileLayout:
    """Where arrays are in an agent's own row: as in the herd's, but with first layers transposed.

    A sparse input adds up rows of a transposed layer. To the optimiser all orders are alike.
    """

    def __init__(self, network: PPONetwork) -> None:
        self.size = network.layout.size
        self.entries = {entry.name: entry for entry in network.layout.entries}

    def own_copy(self, row: Tensor) -> Tensor:
        """A row of the herd, (columns,), copied into this layout."""
        own = row.clone()  # aligned as torch aligns memory, wherever the row is: products may depend on it
        for name in ("actor", "critic"):
            shape = self.entries[f"{name}.0.weight"].padded_shape
            self._first(name, own).copy_(self._first(name, row).view(shape).t().reshape(-1))
        return own

    def copy_back(self, own: Tensor, row: Tensor) -> None:
        """Copy a row of this layout to a row of the herd."""
        row.copy_(own)
        for name in ("actor", "critic"):
            shape = self.entries[f"{name}.0.weight"].padded_shape[::-1]
            self._first(name, row).copy_(self._first(name, own).view(shape).t().reshape(-1))

    def _first(self, name: str, row: Tensor) -> Tensor:
        entry = self.entries[f"{name}.0.weight"]
        return row[entry.offset : entry.offset + entry.size]

    def layers(self, name: str, own: Tensor) -> list[Layer]:
        """The layers of "actor" or "critic" in a row of this layout, as views."""
        found: list[Layer] = []
        while (entry := self.entries.get(f"{name}.{len(found)}.weight")) is not None:
            shape = entry.padded_shape if found else entry.padded_shape[::-1]
            weight = own[entry.offset : entry.offset + entry.size].view(shape)
            bias = self.entries[f"{name}.{len(found)}.bias"]
            found.append(Layer(weight, weight.numpy(), own[bias.offset : bias.offset + bias.size].numpy()))
        return found


class FirstLayer:
    """The layer that reads a tile's inputs: products for dense columns, sums of rows of weights for sparse ones."""

    def __init__(self, layer: Layer, grad: Layer, tile_rows: int) -> None:
        self.layer, self.grad = layer, grad
        self.tile_rows = tile_rows
        self._memory = torch.zeros(tile_rows * len(layer.weight))
        self._packed, self._packed_grad = torch.zeros_like(layer.weight), torch.zeros_like(layer.weight)

    def load(self, x: RowInputs) -> None:
        """Read inputs like these; call it again after the weights changed."""
        self.x = x
        self.dense = self._memory[: self.tile_rows * x.width].view(self.tile_rows, x.width)
        self.weight, self.weight_grad = self.layer.weight, self.grad.weight
        if x.sparse is not None:
            self.weight, self.weight_grad = self._packed[: x.width], self._packed_grad[: x.width]
            fused.gather_rows(self.layer.weight_array, x.columns, self.weight.numpy())

    def read(self, ids: NDArray[np.int32]) -> None:
        """Read the dense columns of distinct rows `ids`."""
        x = self.x
        if x.width:
            fused.fill_input(x.dense, x.places[ids], x.scale, x.mean, x.std, self.dense.numpy())

    def forward(self, ids: NDArray[np.int32], out: Tensor, out_array: NDArray[np.float32]) -> None:
        """Sums without the bias, (rows, outputs), of the rows that were read."""
        if self.x.width:
            torch.mm(self.dense[: len(ids)], self.weight, out=out)
        if self.x.sparse is not None:
            fused.add_sparse(self.x.sparse, ids, self.layer.weight_array, out_array, self.x.width > 0)

    def backward(self, ids: NDArray[np.int32], grad: Tensor, grad_array: NDArray[np.float32]) -> None:
        """Write the gradient of the weights from that of the sums, (rows, outputs)."""
        if self.x.width:
            torch.mm(self.dense[: len(ids)].t(), grad, out=self.weight_grad)
        if self.x.sparse is not None:
            fused.add_sparse_backward(self.x.sparse, ids, grad_array, self.grad.weight_array)
            fused.scatter_rows(self.weight_grad.numpy(), self.x.columns, self.grad.weight_array)


class TileNetwork:
    """Forward and backward passes of one actor or critic over a tile, in memory that is reused."""

    def __init__(self, relu: bool, layers: list[Layer], grads: list[Layer], tile_rows: int) -> None:
        self.relu, self.layers, self.grads = relu, layers, grads
        self.first = FirstLayer(layers[0], grads[0], tile_rows)
        widths = [len(layer.bias) for layer in layers]
        self.outputs = [torch.empty(tile_rows, width) for width in widths]  # of each layer
        self.output_grads = [torch.empty(tile_rows, width) for width in widths[:-1]]
        self.output_arrays = [tensor.numpy() for tensor in self.outputs]
        self.grad_arrays = [tensor.numpy() for tensor in self.output_grads]

    def forward(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Outputs without the last bias, (rows, outputs), of the distinct rows `ids` that the first layer read."""
        count, out = len(ids), self.outputs[0][: len(ids)]
        self.first.forward(ids, out, self.output_arrays[0])
        for i in range(1, len(self.layers)):
            fused.activate(self.output_arrays[i - 1], self.layers[i - 1].bias, count, self.relu)
            below, out = out, self.outputs[i][:count]
            torch.mm(below, self.layers[i].weight.t(), out=out)
        return self.output_arrays[-1][:count]

    def backward(self, ids: NDArray[np.int32]) -> None:
        """Write the gradients of all arrays but the last bias; that of the outputs has replaced the outputs."""
        count = len(ids)
        grad, grad_array = self.outputs[-1][:count], self.output_arrays[-1]
        for i in range(len(self.layers) - 1, 0, -1):
            below, below_grad = self.outputs[i - 1][:count], self.output_grads[i - 1][:count]
            torch.mm(grad.t(), below, out=self.grads[i].weight)
            torch.mm(grad, self.layers[i].weight, out=below_grad)
            grad, grad_array = below_grad, self.grad_arrays[i - 1]
            fused.activate_backward(grad_array, self.output_arrays[i - 1], count, self.relu, self.grads[i - 1].bias)
        self.first.backward(ids, grad, grad_array)


class Batch(NamedTuple):
    """A minibatch of one agent: groups of equal rows. Arrays (rows,) are in the order of the groups."""

    ids: NDArray[np.int32]  # (groups,): distinct row of each group
    starts: NDArray[np.int32]  # (groups + 1,): where its rows begin
    actions: NDArray[Any]
    log_probs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    targets: NDArray[np.float32]  # standardised returns
    allowed: NDArray[np.bool_]  # (distinct rows, actions), or (distinct rows, 0) if all actions are always allowed

    def tiles(self) -> list[tuple[int, int]]:
        """First and last + 1 group of each tile."""
        count = len(self.ids)
        return [(first, min(first + TILE_ROWS, count)) for first in range(0, count, TILE_ROWS)]


class TileGradient:
    """Gradient of the mean loss of one agent over a tile of a minibatch, in memory that is reused."""

    def __init__(self, network: PPONetwork, layout: TileLayout, weights: Tensor, rows: int) -> None:
        self.network = network
        self.grad = torch.zeros(layout.size)
        self.sums = np.zeros(len(SUMS))
        relu, tile_rows = network.options.activation == "relu", max(1, min(TILE_ROWS, rows))
        self.actor, self.critic = (
            TileNetwork(relu, layout.layers(name, weights), layout.layers(name, self.grad), tile_rows)
            for name in ("actor", "critic")
        )

    def load(self, actor: RowInputs, critic: RowInputs) -> None:
        """Read these inputs; call it again after the weights changed."""
        self.actor.first.load(actor)
        self.critic.first.load(critic)
        self._one_input = actor is critic

    def compute(self, batch: Batch, tile: tuple[int, int], bonus: float) -> None:
        """Write the gradient to `grad` and sums of the metrics over rows to `sums`."""
        actor, critic, options = self.actor, self.critic, self.network.options
        ids, share = batch.ids[tile[0] : tile[1]], 1.0 / len(batch.actions)
        critic.first.read(ids)
        weight = 2.0 * options.value_weight * share
        critic_loss(
            critic.forward(ids), critic.layers[-1].bias, batch.starts, tile[0], batch.targets, weight,
            critic.grads[-1].bias, self.sums,
        )  # fmt: skip
        critic.backward(ids)
        if self._one_input:
            actor.first.dense = critic.first.dense
        else:
            actor.first.read(ids)
        rows = (batch.actions, batch.log_probs, batch.advantages, np.empty(len(batch.actions), np.float32))
        settings = (self.network.actions, options.clip, bonus, share)
        actor_loss(
            actor.forward(ids), actor.layers[-1].bias, (batch.ids, batch.starts), tile[0], rows, batch.allowed,
            settings, actor.grads[-1].bias, self.sums,
        )  # fmt: skip
        actor.backward(ids)

    def values(self, distinct: int) -> NDArray[np.float32]:
        """The critic's plain outputs for all distinct rows, (distinct,)."""
        critic, out = self.critic, np.empty(distinct, np.float32)
        for first in range(0, distinct, TILE_ROWS):
            ids = np.arange(first, min(first + TILE_ROWS, distinct), dtype=np.int32)
            critic.first.read(ids)
            out[first : first + len(ids)] = critic.forward(ids)[:, 0] + critic.layers[-1].bias[0]
        return out
