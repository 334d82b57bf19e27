"""The loss of PPO and its gradient, written out for some rows of a minibatch."""

from __future__ import annotations

import torch
from torch import Tensor

from remuda.learners.devices import to_device
from remuda.learners.ppo.experience import Experience
from remuda.learners.ppo.network import LOG_STD, PPONetwork
from remuda.learners.ppo.options import PPOOptions


@torch.no_grad()
def loss_gradient(
    network: PPONetwork,
    options: PPOOptions,
    weights: Tensor,  # (agents, columns)
    x: tuple[Tensor, Tensor],  # (agents, padded rows, inputs): inputs of actor and critic for the rows of `batch`
    batch: Experience,
    minibatch_rows: int,  # of which `batch` has some
    entropy_weights: Tensor,  # (agents,)
    value_moments: Tensor,  # (agents, 2): mean and std of the returns
) -> tuple[Tensor, dict[str, Tensor], tuple[Tensor | None, Tensor | None]]:
    """What some rows add to the gradient of a minibatch's mean loss, (agents, columns), and to each of its metrics.

    The gradients of the inputs of actor and critic come with it if there is a body, whose own columns are not filled.
    """
    actions, old, advantages, returns, mask = (to_device(array, weights.device) for array in batch[2:7])
    arrays, grad = network.layout.arrays(weights), torch.empty_like(weights)
    grads = network.layout.arrays(grad)
    targets = (returns - value_moments[:, :1]) / value_moments[:, 1:]
    value_error, critic_grad = _critic_gradient(
        network, arrays, grads, x[1], targets, 2.0 * options.value_weight / minibatch_rows
    )
    data = (actions, old, advantages, mask)
    gradient = _actor_gradient if network.head is None else _head_gradient
    terms, actor_grad = gradient(network, arrays, grads, x[0], data, options.clip, minibatch_rows, entropy_weights)
    metrics = {**terms, "value_loss": value_error.square()}
    means = {name: each.sum(dim=1) / minibatch_rows for name, each in metrics.items()}
    return grad, means, (actor_grad, critic_grad)


def _critic_gradient(
    network: PPONetwork, arrays: dict[str, Tensor], grads: dict[str, Tensor], x: Tensor, targets: Tensor, weight: float
) -> tuple[Tensor, Tensor | None]:
    """Write the gradient of the squared error to `grads`; returns the errors, (agents, rows), and that of the input."""
    rows = targets.shape[1]
    layer_inputs: list[Tensor] = []
    values = network.forward(arrays, "critic", x, layer_inputs)
    error = values[:, :rows, 0] - targets
    grad_values = torch.zeros_like(values)  # zero in padded rows and columns
    grad_values[:, :rows, 0] = error * weight
    return error, network.backward(arrays, "critic", layer_inputs, grad_values, grads)


def _actor_gradient(
    network: PPONetwork,
    arrays: dict[str, Tensor],
    grads: dict[str, Tensor],
    x: Tensor,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    clip: float,
    minibatch_rows: int,
    entropy_weights: Tensor,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Write the gradient of the clipped objective and the entropy bonus to `grads`.

    Returns metrics, (agents, rows), and the gradient of the input.
    """
    actions, old, advantages, mask = data
    rows = actions.shape[1]
    layer_inputs: list[Tensor] = []
    logits = network.logits(arrays, x, mask if mask.shape[2] else None, layer_inputs)
    log_probs, probs = logits.log_softmax(dim=2), logits.softmax(dim=2)
    chosen = log_probs[:, :rows].gather(2, actions.unsqueeze(2)).squeeze(2)
    ratio = (chosen - old).exp_()
    gain = ratio * advantages
    clipped_gain = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantages)

    # With p = softmax(logits) and H the entropy: d log p_a / d logit_j = [a = j] - p_j and
    # dH / d logit_j = -p_j (log p_j + H). Below, `plogp` is p log p; log_probs and probs are reused in place.
    grad_chosen = gain.masked_fill(gain > clipped_gain, 0.0).mul_(-1.0 / minibatch_rows)  # no gradient where clipped
    grad_entropy = entropy_weights.neg().div_(minibatch_rows)[:, None, None]
    plogp = log_probs.mul_(probs)
    entropy = plogp.sum(dim=2).neg_()
    base = (grad_entropy[:, :, 0] * entropy).neg_()
    base[:, :rows].sub_(grad_chosen)
    grad_logits = probs.mul_(base.unsqueeze(2)).sub_(plogp.mul_(grad_entropy))
    grad_logits[:, :rows].scatter_add_(2, actions.unsqueeze(2), grad_chosen.unsqueeze(2))
    grad_logits[:, rows:] = 0.0
    input_grad = network.backward(arrays, "actor", layer_inputs, grad_logits, grads)
    loss = torch.minimum(gain, clipped_gain).neg_()
    return {"loss": loss, "entropy": entropy[:, :rows], "kl": old - chosen}, input_grad


def _head_gradient(
    network: PPONetwork,
    arrays: dict[str, Tensor],
    grads: dict[str, Tensor],
    x: Tensor,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    clip: float,
    minibatch_rows: int,
    entropy_weights: Tensor,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """As `_actor_gradient`, for actions that are not Discrete: autograd goes through the head alone."""
    actions, old, advantages, _ = data
    head, rows = network.head, actions.shape[1]
    assert head is not None
    layer_inputs: list[Tensor] = []
    outputs = network.forward(arrays, "actor", x, layer_inputs)
    own = outputs[:, :rows, : head.outputs].detach().requires_grad_()
    spread = network.spread(arrays).detach().requires_grad_()
    with torch.enable_grad():
        chosen, entropy = head.log_prob(own, spread, actions), head.entropy(own, spread)
        ratio = (chosen - old).exp()
        loss = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).neg()
        total = (loss - entropy_weights.unsqueeze(1) * entropy).sum() / minibatch_rows
        leaves = [own, spread] if head.parameters else [own]
        gradients = torch.autograd.grad(total, leaves)
    grad_outputs = torch.zeros_like(outputs)  # zero in padded rows and columns
    grad_outputs[:, :rows, : head.outputs] = gradients[0]
    input_grad = network.backward(arrays, "actor", layer_inputs, grad_outputs, grads)
    if head.parameters:
        grads[LOG_STD].zero_()[:, : head.parameters] = gradients[1]
    return {"loss": loss.detach(), "entropy": entropy.detach(), "kl": old - chosen.detach()}, input_grad
