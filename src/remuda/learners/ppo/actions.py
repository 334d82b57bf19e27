"""What an actor's outputs mean: how actions are drawn from them, and how likely given actions are.

| action space | outputs of the actor | action |
| --- | --- | --- |
| Discrete | a logit per action | drawn from their softmax |
| MultiDiscrete, MultiBinary | a logit per choice of each part | each part drawn from its own softmax |
| Box | the mean of each number; with `spread=predicted` also the logarithm of its standard deviation | a draw from a
Gaussian; where a number has two bounds, tanh squashes it between them, and where it has one, it is clipped |

PPO compares probabilities of the same action under two policies. What squashing changes in them is the same for both,
so the draw before squashing is stored, and its density is compared.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, normals, uniform
from remuda.core.spaces import bounds_of

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
MIN_PROB = np.float32(1e-38)  # its logarithm is still finite
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Draw(NamedTuple):
    """Actions drawn for some worlds and agents."""

    actions: NDArray[Any]  # (worlds, agents, *action)
    stored: NDArray[np.float32] | None  # (worlds, agents, numbers): before squashing; None: the actions themselves
    log_probs: NDArray[np.float32]  # (worlds, agents)


class MultiDiscreteHead:
    """Several discrete choices at once."""

    def __init__(self, group: Group) -> None:
        self.choices = np.array(group.choices, np.int64)
        self.outputs = int(self.choices.sum())
        self.parameters = 0
        self.stored_size = 0

    def draw(self, outputs: NDArray[np.float32], spread: Any, keys: Keys, greedy: bool) -> Draw:
        """Draw from outputs (worlds, agents, outputs), or take the likeliest."""
        worlds, agents, _ = outputs.shape
        actions = np.empty((worlds, agents, len(self.choices)), np.int64)
        log_probs = np.empty((worlds, agents), np.float32)
        _draw_choices(outputs, self.choices, keys, greedy, actions, log_probs)
        return Draw(actions, None, log_probs)

    def log_prob(self, outputs: Tensor, spread: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities of actions (agents, rows, parts), differentiable: (agents, rows)."""
        parts = outputs.split_with_sizes(self.choices.tolist(), dim=2)
        chosen = [part.log_softmax(2).gather(2, actions[:, :, i : i + 1]) for i, part in enumerate(parts)]
        return torch.cat(chosen, dim=2).sum(dim=2)

    def entropy(self, outputs: Tensor, spread: Tensor) -> Tensor:
        """The sum of the entropies of all choices, (agents, rows)."""
        logs = [part.log_softmax(2) for part in outputs.split_with_sizes(self.choices.tolist(), dim=2)]
        return -torch.stack([(log.exp() * log).sum(dim=2) for log in logs]).sum(dim=0)


class GaussianHead:
    """Continuous actions: a Gaussian, squashed by tanh where there are bounds."""

    def __init__(self, group: Group, predicted: bool) -> None:
        low, high = bounds_of(group.action_space)
        bounded = np.isfinite(low) & np.isfinite(high)
        self.shape, self.size = group.action_shape, len(low)
        self.low, self.high = low, high
        self.half = np.where(bounded, high - low, 0).astype(np.float32) / 2  # 0: not squashed
        self.centre = np.where(bounded, low, 0).astype(np.float32) + self.half
        self.predicted = predicted
        self.outputs = self.size * (2 if predicted else 1)
        self.parameters = 0 if predicted else self.size
        self.stored_size = self.size

    def draw(self, outputs: NDArray[np.float32], spread: Any, keys: Keys, greedy: bool) -> Draw:
        """Draw from outputs (worlds, agents, outputs) and spreads (agents, numbers), or take the mean."""
        worlds, agents, _ = outputs.shape
        mean = outputs[:, :, : self.size]
        log_std = outputs[:, :, self.size :] if self.predicted else np.broadcast_to(spread, mean.shape)
        noise = np.zeros(mean.shape) if greedy else normals(keys, self.size)
        stored, actions = np.empty((2, worlds, agents, self.size), np.float32)
        log_probs = np.empty((worlds, agents), np.float32)
        bounds = (self.low, self.high, self.centre, self.half)
        _draw_numbers(
            np.ascontiguousarray(mean), np.ascontiguousarray(log_std), noise, bounds, stored, actions, log_probs
        )
        return Draw(actions.reshape(worlds, agents, *self.shape), stored, log_probs)

    def _moments(self, outputs: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and logarithms of the standard deviations, (agents, rows, numbers) or (agents, 1, numbers)."""
        log_std = outputs[:, :, self.size :] if self.predicted else spread.unsqueeze(1)
        return outputs[:, :, : self.size], log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)

    def log_prob(self, outputs: Tensor, spread: Tensor, actions: Tensor) -> Tensor:
        """Log-densities of draws (agents, rows, numbers) before squashing, differentiable: (agents, rows)."""
        mean, log_std = self._moments(outputs, spread)
        scaled = (actions - mean) * (-log_std).exp()
        return (-0.5 * scaled.square() - log_std - HALF_LOG_2PI).sum(dim=2)

    def entropy(self, outputs: Tensor, spread: Tensor) -> Tensor:
        """The entropy of the Gaussian before squashing, (agents, rows)."""
        mean, log_std = self._moments(outputs, spread)
        return (log_std + (0.5 + HALF_LOG_2PI)).expand_as(mean).sum(dim=2)


Head = MultiDiscreteHead | GaussianHead


def make_head(group: Group, predicted_spread: bool) -> Head | None:
    """The head for a group's actions; None for Discrete, which has a faster way of its own."""
    if group.action_space is None:
        return None
    return MultiDiscreteHead(group) if group.choices else GaussianHead(group, predicted_spread)


@kernel
def _draw_choices(logits: Any, choices: Any, keys: Any, greedy: bool, out: Any, out_log_probs: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            first = 0
            total_log = 0.0
            for part in range(len(choices)):
                count = choices[part]
                best = first
                for i in range(first, first + count):
                    if logits[w, a, i] > logits[w, a, best]:
                        best = i
                total = 0.0
                for i in range(first, first + count):
                    total += math.exp(logits[w, a, i] - logits[w, a, best])
                chosen = best
                if not greedy:
                    left = uniform(keys[w, a], part) * total
                    for i in range(first, first + count):
                        chosen = i
                        left -= math.exp(logits[w, a, i] - logits[w, a, best])
                        if left < 0.0:
                            break
                out[w, a, part] = chosen - first
                total_log += logits[w, a, chosen] - logits[w, a, best] - math.log(total)
                first += count
            out_log_probs[w, a] = total_log


@kernel
def _draw_numbers(
    mean: Any, log_std: Any, noise: Any, bounds: Any, out_stored: Any, out: Any, out_log_probs: Any
) -> None:
    low, high, centre, half = bounds
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            total = 0.0
            for i in range(out.shape[2]):
                spread = min(max(log_std[w, a, i], MIN_LOG_STD), MAX_LOG_STD)
                draw = np.float32(mean[w, a, i] + math.exp(spread) * noise[w, a, i])
                scaled = (draw - mean[w, a, i]) * math.exp(-spread)
                total += -0.5 * scaled * scaled - spread - HALF_LOG_2PI
                out_stored[w, a, i] = draw
                value = draw if half[i] == 0.0 else centre[i] + half[i] * math.tanh(draw)
                out[w, a, i] = min(max(value, low[i]), high[i])
            out_log_probs[w, a] = total
