"""Actor and critic of a herd as functions of stacked weights."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remuda.game import Group
from remuda.learners.fused import FORBIDDEN, tanh
from remuda.learners.stack import Layout, StackedNetwork, add_linear, linear, padded

if TYPE_CHECKING:
    from remuda.learners.ppo import PPOOptions


class PPONetwork(StackedNetwork):
    """Actor and critic as functions of stacked weights."""

    def __init__(self, group: Group, options: PPOOptions, precision: str, device: str) -> None:
        super().__init__(group, options.frames, precision, device)
        self.options = options
        self.layout = Layout()
        for name, outputs in (("actor", group.actions), ("critic", 1)):
            widths = [self.frames * self.obs_size, *options.layers, outputs]
            for i, (inside, outside) in enumerate(pairwise(widths)):
                # A small last layer: every action about as likely, every state worth about nothing.
                gain = 0.01 if i == len(widths) - 2 else 1.0
                add_linear(self.layout, f"{name}.{i}", inside, outside, gain)

    def run(self, arrays: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        """One of the two networks, (agents, rows, outputs)."""
        last = len(self.options.layers)
        for i in range(last + 1):
            x = linear(x, arrays[f"{name}.{i}.weight"], arrays[f"{name}.{i}.bias"], self.precision)
            if i < last and self.options.activation == "relu":
                x = x.relu()
            elif i < last:  # one call less for those who act, fewer passes for those who learn
                x = tanh(x) if torch.is_grad_enabled() else x.tanh()
        return x

    def logits(self, arrays: dict[str, Tensor], x: Tensor, mask: Tensor | None) -> Tensor:
        """How much every action is preferred, (agents, rows, padded actions); the padding is forbidden."""
        logits = self.run(arrays, "actor", x)
        logits.detach()[:, :, self.actions :] = FORBIDDEN  # whose gradients are 0
        if mask is not None:
            forbidden = torch.nn.functional.pad(~mask, (0, logits.shape[2] - self.actions))
            logits = logits.masked_fill(forbidden, FORBIDDEN)
        return logits

    def log_probs(self, arrays: dict[str, Tensor], x: Tensor, mask: Tensor | None) -> Tensor:
        """Log-probability of every action, (agents, rows, actions)."""
        return self.logits(arrays, x, mask).log_softmax(dim=2)[:, :, : self.actions]

    def values(self, arrays: dict[str, Tensor], x: Tensor) -> Tensor:
        """What the critic says, (agents, rows); standardised if the options say so."""
        return self.run(arrays, "critic", x)[:, :, 0]

    def row_bytes(self, rows: int) -> int:
        """Bytes one agent's largest activation takes."""
        return 4 * rows * max(self.inputs, padded(self.actions), *(padded(n) for n in self.options.layers))
