"""Trained agents as plain torch modules.

`remuda export` copies the source of these classes and functions, so they must not import remuda.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class MemoryCell(nn.Module):
    """A GRU or an LSTM. The first `width` numbers of its state are its output."""

    def __init__(self, kind: str, inputs: int, width: int) -> None:
        super().__init__()
        self.kind, self.width, self.gates = kind, width, 3 if kind == "gru" else 4
        self.input = nn.Linear(inputs, self.gates * width)
        self.memory = nn.Linear(width, self.gates * width)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """The state after this turn, (batch, width) or for an LSTM (batch, 2 * width); x is (batch, inputs)."""
        width, hidden = self.width, state[:, : self.width]
        read, recalled = self.input(x), self.memory(hidden)
        if self.kind == "gru":
            reset = torch.sigmoid(read[:, :width] + recalled[:, :width])
            keep = torch.sigmoid(read[:, width : 2 * width] + recalled[:, width : 2 * width])
            new = torch.tanh(read[:, 2 * width :] + reset * recalled[:, 2 * width :])
            return new + keep * (hidden - new)
        gates = read + recalled
        enter, forget, out = torch.sigmoid(gates[:, : 3 * width]).chunk(3, dim=1)
        cell = forget * state[:, width:] + enter * torch.tanh(gates[:, 3 * width :])
        return torch.cat([out * torch.tanh(cell), cell], dim=1)


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
        memory: str | None = None,
        body: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.width = scale, layer
        self.cosines: Tensor
        inputs = frames * math.prod(obs_shape)
        self.own_body = body is not None
        self.body = body or (MemoryCell(memory, inputs, layer) if memory else nn.Linear(inputs, layer))
        self.state_size = {None: 0, "gru": 1, "lstm": 2}[memory] * self.width
        self.phi = nn.Linear(64, layer)
        self.layer = nn.Linear(layer, layer)
        self.head = nn.Linear(layer, 1 + actions)
        taus = (torch.arange(quantiles) + 0.5) / quantiles
        self.register_buffer("cosines", torch.cos(taus[:, None] * (math.pi * torch.arange(1, 65))), persistent=False)

    def forward(self, frames: Tensor, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Expected return of every action, (batch, actions); with a memory also its next state."""
        x = frames.float() * self.scale
        if state is not None:
            state = self.body(x.flatten(1), state)
            return self.expected(state[:, : self.width]), state
        return self.expected(self.body(x) if self.own_body else torch.relu(self.body(x.flatten(1))))

    def expected(self, features: Tensor) -> Tensor:
        """Expected return of every action, (batch, actions), from features (batch, layer)."""
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
        width: int = 0,
        memory: str | None = None,
        body: nn.Module | None = None,
        bounds: list[tuple[float | None, float | None]] | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.activation = activation
        inputs = frames * math.prod(obs_shape)
        self.body = MemoryCell(memory, inputs, width) if memory else body
        self.width = width
        self.state_size = {None: 0, "gru": 1, "lstm": 2}[memory] * self.width
        widths = [width or inputs, *layers]
        self.actor = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, [*layers, actions], strict=True))
        if critic:
            self.critic = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, [*layers, 1], strict=True))
        self.bounds = bounds

    def forward(self, frames: Tensor, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """What actions are chosen by, (batch, actions); with a memory also its next state."""
        features, state = self.features(frames, state)
        out = self.numbers(self.run(self.actor, features))
        return out if state is None else (out, state)

    def value(self, frames: Tensor, state: Tensor | None = None) -> Tensor:
        """What the critic expects, (batch, 1); in standard deviations of the returns if it was trained so."""
        return self.run(self.critic, self.features(frames, state)[0])

    def features(self, frames: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What actor and critic see, and the next state of a memory."""
        x = frames.float() * self.scale
        if state is not None and self.body is not None:
            state = self.body(x.flatten(1), state)
            return state[:, : self.width], state
        return (x.flatten(1) if self.body is None else self.body(x)), None

    def run(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        """One of the two networks."""
        for layer in layers[:-1]:
            x = torch.tanh(layer(x)) if self.activation == "tanh" else torch.relu(layer(x))
        out: Tensor = layers[-1](x)
        return out

    def numbers(self, out: Tensor) -> Tensor:
        """Continuous actions within their bounds; what is not bounded, and logits, as they are."""
        if self.bounds is None:
            return out
        columns = []
        for i, (low, high) in enumerate(self.bounds):
            x = out[:, i]
            if low is not None and high is not None:
                x = low + (high - low) / 2 * (1 + torch.tanh(x))
            columns.append(x.clamp(low, high) if low is not None or high is not None else x)
        return torch.stack(columns, dim=1)


class OwnAgent(nn.Module):
    """The network of a learner that is written for one agent, and how its actions are scored."""

    def __init__(self, network: nn.Module, scores: Callable[[nn.Module, Tensor], Tensor], scale: float) -> None:
        super().__init__()
        self.network, self.scores, self.scale = network, scores, scale

    def forward(self, frames: Tensor) -> Tensor:
        """The scores of all actions, (batch, actions)."""
        return self.scores(self.network, frames.float() * self.scale)


def choose(outputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """The best action of every row, (batch,); `mask` (batch, actions) is True where an action is allowed."""
    if mask is not None:
        outputs = outputs.masked_fill(~mask.bool(), -torch.inf)
    return outputs.argmax(dim=1)


def choose_parts(outputs: Tensor, parts: list[int]) -> Tensor:
    """The best choice of every part, (batch, parts); `parts` says how many choices each has."""
    return torch.stack([own.argmax(dim=1) for own in outputs.split_with_sizes(parts, dim=1)], dim=1)
