"""Functions made of fewer passes are the same functions."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from remuda.learners.fused import FORBIDDEN, judge, tanh


@given(st.integers(0, 2**31), st.floats(0.001, 30.0))
def test_tanh_is_the_hyperbolic_tangent(seed: int, scale: float) -> None:
    x = (torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(seed)) * scale).requires_grad_()
    weight = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(seed + 1))
    (grad,) = torch.autograd.grad((tanh(x) * weight).sum(), x)
    (expected,) = torch.autograd.grad((x.tanh() * weight).sum(), x)
    assert torch.allclose(tanh(x), x.tanh(), rtol=0, atol=2e-7)
    assert torch.allclose(grad, expected, rtol=0, atol=4e-6)


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 9), st.integers(2, 12), st.integers(0, 4))
def test_judging_is_log_softmax_and_its_entropy(
    seed: int, agents: int, rows: int, actions: int, forbidden: int
) -> None:
    """Values and gradients, against the same in double precision from torch's own functions."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(agents, rows, actions + forbidden, generator=source) * 3
    logits[:, :, actions:] = FORBIDDEN
    logits.requires_grad_()
    taken = torch.randint(actions, (agents, rows), generator=source)
    by_chosen = torch.randn(agents, rows, generator=source)
    by_entropy = torch.randn(agents, rows, generator=source)
    chosen, entropy = judge(logits, taken)
    (grad,) = torch.autograd.grad((chosen * by_chosen + entropy * by_entropy).sum(), logits)

    exact = logits.detach()[:, :, :actions].double().requires_grad_()
    log_probs = exact.log_softmax(dim=2)
    plain = (log_probs * one_hot(taken, actions)).sum(dim=2)
    uncertain = -(log_probs.exp() * log_probs).sum(dim=2)
    (expected,) = torch.autograd.grad((plain * by_chosen + uncertain * by_entropy).sum(), exact)
    assert torch.allclose(chosen.double(), plain, atol=1e-5)
    assert torch.allclose(entropy.double(), uncertain, atol=1e-5)
    assert torch.allclose(grad[:, :, :actions].double(), expected, atol=1e-5)
    assert not grad[:, :, actions:].any()


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 40))
def test_bits_do_not_depend_on_how_many_there_are(seed: int, few: int, more: int) -> None:
    x = torch.randn(few + more, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(tanh(x)[:few], tanh(x[:few].clone()))
