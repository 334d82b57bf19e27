"""Trained agents as plain torch modules.

`remuda export` copies the source of these classes and functions, so they must not import remuda.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class IQNAgent(nn.Module):
    """An implicit quantile network as it acts: without noise, at fixed quantiles."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        frames: int,
        actions: int,
        scale: float,
        layer: int,
        quantiles: int,
        body: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.cosines: Tensor
        self.own_body = body is not None
        self.body = body if body is not None else nn.Linear(frames * math.prod(obs_shape), layer)
        self.phi = nn.Linear(64, layer)
        self.layer = nn.Linear(layer, layer)
        self.head = nn.Linear(layer, 1 + actions)
        taus = (torch.arange(quantiles) + 0.5) / quantiles
        self.register_buffer("cosines", torch.cos(taus[:, None] * (math.pi * torch.arange(1, 65))), persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Expected return of every action, (batch, actions)."""
        x = frames.float() * self.scale
        features = self.body(x) if self.own_body else torch.relu(self.body(x.flatten(1)))  # (batch, layer)
        phi = torch.relu(self.phi(self.cosines))  # (quantiles, layer)
        hidden = torch.relu(self.layer(features[:, None] * phi))  # (batch, quantiles, layer)
        out = self.head(hidden.mean(dim=1))  # the head is linear: it may follow the mean over quantiles
        value, advantages = out[:, :1], out[:, 1:]
        expected: Tensor = value + advantages - advantages.mean(dim=1, keepdim=True)
        return expected


class PPOAgent(nn.Module):
    """An actor, and the critic it was trained with if that sees what the actor sees."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        frames: int,
        actions: int,
        scale: float,
        layers: list[int],
        activation: str,
        critic: bool = True,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.activation = activation
        widths = [frames * math.prod(obs_shape), *layers]
        self.actor = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, [*layers, actions], strict=True))
        if critic:
            self.critic = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, [*layers, 1], strict=True))

    def forward(self, frames: Tensor) -> Tensor:
        """Logits of the actions, (batch, actions)."""
        return self.run(self.actor, frames)

    def value(self, frames: Tensor) -> Tensor:
        """What the critic expects, (batch, 1); in standard deviations of the returns if it was trained so."""
        return self.run(self.critic, frames)

    def run(self, layers: nn.ModuleList, frames: Tensor) -> Tensor:
        """One of the two networks."""
        x = frames.float().flatten(1) * self.scale
        for layer in layers[:-1]:
            x = torch.tanh(layer(x)) if self.activation == "tanh" else torch.relu(layer(x))
        out: Tensor = layers[-1](x)
        return out


def choose(outputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """The best action of every row, (batch,); `mask` (batch, actions) is True where an action is allowed."""
    if mask is not None:
        outputs = outputs.masked_fill(~mask.bool(), -torch.inf)
    return outputs.argmax(dim=1)
