"""Actors and critics of a herd, as functions of stacked weights, and their gradients.

The backward pass is written out. Torch's autograd cost twice as much, mostly for building the graph, and threads that
share a minibatch spent their time waiting for each other in it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.errors import ConfigError
from remuda.core.game import Group
from remuda.core.rng import Keys
from remuda.learners.body import Body, own_body
from remuda.learners.ppo.actions import make_head
from remuda.learners.recurrent import CELLS, RecurrentCell
from remuda.learners.stack import MIN_ROWS, StackedNetwork, WeightLayout, add_linear, linear, matmul, padded

if TYPE_CHECKING:
    from remuda.learners.ppo.options import PPOOptions


LOG_STD = "actor.log_std"
"""Name of the spreads of continuous actions among the arrays, unless the actor predicts them."""
FORBIDDEN = -1e9
"""Logit of an action that is not allowed: its probability is 0, and unlike -inf it gives no nan in products."""


def tanh_(x: Tensor) -> Tensor:
    """The hyperbolic tangent as 1 - 2 / (e²ˣ + 1), to within 2e-7, in place.

    On one core, 2500 × 64 numbers: 0.3 ms; torch's own takes 0.6. (Torch's sigmoid would be faster still, but it
    computes the last few numbers of an array with other bits, so a result would depend on the number of rows.)
    """
    return x.mul_(2.0).exp_().add_(1.0).reciprocal_().mul_(-2.0).add_(1.0)


class PPONetwork(StackedNetwork):
    """Shapes, forward and backward passes of actor and critic. It holds no weights: they are arguments."""

    def __init__(self, group: Group, options: PPOOptions, precision: str, device: str) -> None:
        super().__init__(group, options.frames, precision, device)
        self.options = options
        self.state_size = _state_size(group, options.critic)
        self.layout = WeightLayout()
        self.cell, self.body = self._add_body(group)
        self.body_columns = self.layout.size
        features = self.frames * self.obs_size if self.body_columns == 0 else options.features
        self.feature_inputs = padded(features)
        own = 0 if options.critic == "state" else features  # columns of the critic's input
        self.critic_inputs = padded(own + self.state_size)
        self.head = make_head(group, options.spread == "predicted")
        self.actor_outputs = group.actions if self.head is None else self.head.outputs
        sizes = (("actor", features, self.actor_outputs), ("critic", own + self.state_size, 1))
        for name, inputs, outputs in sizes:
            widths = [inputs, *options.layers, outputs]
            for i, (width_in, width_out) in enumerate(pairwise(widths)):
                # A small last layer: at first all actions are about equally likely and all values about zero.
                gain = 0.01 if i == len(widths) - 2 else 1.0
                add_linear(self.layout, f"{name}.{i}", width_in, width_out, gain)
        if self.head is not None and self.head.parameters:
            self.layout.add(LOG_STD, (self.head.parameters,), 0.0, math.log(options.initial_std))

    def _add_body(self, group: Group) -> tuple[RecurrentCell | None, Body | None]:
        """What reads observations for actor and critic, with its arrays first in the layout; none by default."""
        options, cell, body = self.options, None, None
        if options.body in CELLS:
            inputs = self.frames * self.obs_size
            cell = RecurrentCell(str(options.body), inputs, options.features, self.precision, "ppo.features")
            cell.add_to(self.layout)
        elif own_body(options.body):
            body = Body(str(options.body), group, self.frames, options.features)
            for name, shape in body.shapes.items():
                self.layout.add(f"body.{name}", shape, init_scale=0.0, pad=False)
        return cell, body

    @property
    def memory_size(self) -> int:
        """Numbers of the recurrent state; 0 without one."""
        return 0 if self.cell is None else self.cell.memory_size

    def initial_rows(self, keys: Keys) -> NDArray[np.float32]:
        """Initial weights, one row per key."""
        rows = self.layout.initial_rows(keys)
        for row, key in zip(rows, keys, strict=True) if self.body is not None else ():
            row[: self.body_columns] = self.body.initial_weights(key)  # type: ignore[union-attr]
        return rows

    def features(self, arrays: dict[str, Tensor], x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What actor and critic see of one turn, (agents, rows, feature_inputs), and the next recurrent state."""
        if self.cell is not None:
            assert memory is not None, "the policy has a recurrent state"
            memory = self.cell.step(arrays, self.cell.read(arrays, x), memory)
            return memory[:, :, : self.cell.width].contiguous(), memory
        if self.body is not None:
            return self.body.forward(arrays, x[:, :, : self.frames * self.obs_size], self.feature_inputs), None
        return x, None

    def sequence_features(self, arrays: dict[str, Tensor], x: Tensor, memory: Tensor, place: Tensor) -> Tensor:
        """As `features`, for rows that are turns of sequences, one after another; `place` (rows,) is 0 at each first.

        `memory` (agents, rows, memory_size) counts at the first row of a sequence. Where sequences are shorter than
        the longest, padding is computed and dropped.
        """
        if self.cell is None:
            return self.features(arrays, x, None)[0]
        first = place == 0
        sequence = first.cumsum(0) - 1
        count, turns, rows = int(sequence[-1]) + 1, int(place.max()) + 1, len(place)
        position = sequence * turns + place
        grid = x.new_zeros((len(x), count * turns, x.shape[2]))
        grid[:, position] = x[:, :rows]
        start = x.new_zeros((len(x), max(count, MIN_ROWS), memory.shape[2]))
        start[:, :count] = memory[:, first]
        grid = grid.view(len(x), count, turns, -1)
        if count < MIN_ROWS:
            grid = torch.nn.functional.pad(grid, (0, 0, 0, 0, 0, MIN_ROWS - count))
        out = self.cell.unroll(arrays, grid, start)[:, :count].reshape(len(x), count * turns, -1)[:, position]
        return torch.nn.functional.pad(out, (0, 0, 0, x.shape[1] - rows))

    def forward(
        self, arrays: dict[str, Tensor], name: str, x: Tensor, layer_inputs: list[Tensor] | None = None
    ) -> Tensor:
        """Run "actor" or "critic": x (agents, rows, inputs) → (agents, rows, outputs).

        The input of each layer is appended to `layer_inputs`, if it is given, for `backward`.
        """
        last = len(self.options.layers)
        for i in range(last + 1):
            if layer_inputs is not None:
                layer_inputs.append(x)
            x = linear(x, arrays[f"{name}.{i}.weight"], arrays[f"{name}.{i}.bias"], self.precision)
            if i < last and self.options.activation == "relu":
                x = x.relu_()
            elif i < last:  # acting has few rows, where one call is faster; learning has many, where tanh_ is
                x = x.tanh_() if layer_inputs is None else tanh_(x)
        return x

    def backward(
        self, arrays: dict[str, Tensor], name: str, layer_inputs: list[Tensor], grad: Tensor, grads: dict[str, Tensor]
    ) -> Tensor | None:
        """Write the gradients of a network's arrays to `grads`; `grad` is that of its output.

        Returns the gradient of its input if there is a body to pass it on to.
        """
        for i in reversed(range(len(self.options.layers) + 1)):
            grads[f"{name}.{i}.weight"].copy_(matmul(grad.transpose(1, 2), layer_inputs[i], self.precision))
            grads[f"{name}.{i}.bias"].copy_(grad.sum(dim=1))
            if i > 0:
                grad = matmul(grad, arrays[f"{name}.{i}.weight"], self.precision)
                if self.options.activation == "relu":
                    grad.mul_(layer_inputs[i] > 0)
                else:
                    torch.ops.aten.tanh_backward.grad_input(grad, layer_inputs[i], grad_input=grad)
        return matmul(grad, arrays[f"{name}.0.weight"], self.precision) if self.body_columns else None

    def logits(
        self, arrays: dict[str, Tensor], x: Tensor, mask: Tensor | None, layer_inputs: list[Tensor] | None = None
    ) -> Tensor:
        """Logits of the actor, (agents, rows, padded actions); FORBIDDEN where the mask is False and in the padding."""
        logits = self.forward(arrays, "actor", x, layer_inputs)
        logits[:, :, self.actions :] = FORBIDDEN
        if mask is not None:
            logits[:, : mask.shape[1], : self.actions].masked_fill_(~mask, FORBIDDEN)
        return logits

    def spread(self, arrays: dict[str, Tensor]) -> Tensor:
        """Logarithms of the spreads of continuous actions that the actor does not predict, (agents, numbers)."""
        if self.head is None or not self.head.parameters:
            return next(iter(arrays.values())).new_zeros(0)
        return arrays[LOG_STD][:, : self.head.parameters]

    def values(self, arrays: dict[str, Tensor], x: Tensor) -> Tensor:
        """Values by the critic, (agents, rows), of its own input; standardised if `normalise_values` is on."""
        return self.forward(arrays, "critic", x)[:, :, 0]

    def dense_flops(self, name: str) -> list[float]:
        """Floating-point operations of each layer of "actor" or "critic" for one row, forward and without padding."""
        shapes = {entry.name: entry.shape for entry in self.layout.entries}
        return [2.0 * math.prod(shapes[f"{name}.{i}.weight"]) for i in range(len(self.options.layers) + 1)]

    def row_bytes(self, rows: int) -> int:
        """Bytes of one agent's largest activation with so many rows."""
        widths = (self.actor_outputs, 4 * self.options.features if self.body_columns else 1, *self.options.layers)
        return 4 * rows * max(self.inputs, self.critic_inputs, *(padded(width) for width in widths))


def _state_size(group: Group, critic: str) -> int:
    """Numbers of the privileged state that the critic sees."""
    if critic == "obs":
        return 0
    if group.state_shape is None:
        raise ConfigError(
            f"critic={critic} needs a privileged state, and the game offers none to group {group.name!r}: "
            "use critic=obs, or a game with a state_shape"
        )
    return math.prod(group.state_shape)
