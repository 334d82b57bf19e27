"""Functions of a network that cost less here than put together from torch's: fewer passes over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FORBIDDEN = -1e9
"""The logit of an action that cannot be taken: its probability is 0, and still every product is a number."""


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.mul(x, 2.0).exp_().add_(1.0).reciprocal_().mul_(-2.0).add_(1.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        result: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return result


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as 1 - 2 / (e²ˣ + 1), to within 2e-7.

    On one core, 2500 × 64 numbers: 0.3 ms; torch's own takes 0.6. (Its sigmoid would be faster still, but the
    last few numbers of an array come out with other bits there, so the result would depend on how many there are.)
    """
    y: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Judge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = logits.log_softmax(dim=2)
        probs = log_probs.exp()
        entropy = (probs * log_probs).sum(dim=2).neg_()
        ctx.save_for_backward(log_probs, probs, entropy, actions)
        return log_probs.gather(2, actions.unsqueeze(2)).squeeze(2), entropy

    @staticmethod
    def backward(ctx: Any, by_chosen: Tensor, by_entropy: Tensor) -> tuple[Tensor, None]:
        log_probs, probs, entropy, actions = ctx.saved_tensors
        base = (by_entropy * entropy).add_(by_chosen).neg_().unsqueeze(2)
        grad = torch.mul(log_probs, -by_entropy.unsqueeze(2)).add_(base).mul_(probs)
        grad.scatter_add_(2, actions.unsqueeze(2), by_chosen.unsqueeze(2))
        return grad, None


def judge(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of the actions taken, and the entropy of the choice, from logits (…, …, actions)."""
    result: tuple[Tensor, Tensor] = _Judge.apply(logits, actions)  # type: ignore[no-untyped-call]
    return result
