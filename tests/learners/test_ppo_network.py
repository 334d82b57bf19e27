"""Both forms of PPO's gradient, stacked in torch and tiled in kernels, are those of torch's autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from remuda.core.game import Group
from remuda.core.learner import LearnerContext
from remuda.learners import fused
from remuda.learners.ppo import tiles
from remuda.learners.ppo.experience import Experience
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.network import tanh_
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.rounds import After, Round
from remuda.learners.ppo.stacked import StackedLearning, stacked_gradient
from remuda.learners.ppo.tiled import TiledLearning
from remuda.learners.stack import MIN_ROWS, linear

AGENTS, OBS, ACTIONS = 2, 5, 7
STATE = 4


@given(st.integers(0, 2**31), st.floats(0.001, 30.0))
def test_tanh_is_the_hyperbolic_tangent(seed: int, scale: float) -> None:
    x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(seed)) * scale
    assert torch.allclose(tanh_(x.clone()), x.tanh(), rtol=0, atol=2e-7)


@given(st.integers(0, 2**31), st.floats(0.001, 30.0))
def test_compiled_exp_and_tanh_are_close(seed: int, scale: float) -> None:
    x = (np.random.default_rng(seed).normal(size=(5, 8)) * scale).astype(np.float32)
    rows, bias = x.copy(), np.full(8, 0.5, np.float32)
    fused.activate(rows, bias, 5, False)
    np.testing.assert_allclose(rows, np.tanh(x.astype(float) + 0.5), rtol=0, atol=3e-7)
    powers = np.array([fused.exp(value) for value in x.reshape(-1)])
    np.testing.assert_allclose(powers, np.exp(np.clip(x.reshape(-1).astype(float), -87, 88)), rtol=2e-7)


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 40))
def test_bits_of_tanh_do_not_depend_on_the_number_of_elements(seed: int, few: int, more: int) -> None:
    x = torch.randn(few + more, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(tanh_(x.clone())[:few], tanh_(x[:few].clone()))


@pytest.mark.parametrize(("width_in", "width_out"), [(8, 8), (16, 8), (8, 16), (152, 16), (304, 8), (752, 64)])
@pytest.mark.parametrize("agents", [1, 3])
def test_bits_of_a_layer_do_not_depend_on_the_number_of_rows(width_in: int, width_out: int, agents: int) -> None:
    generator = torch.Generator().manual_seed(width_in + width_out)
    weight, bias, x = (
        torch.randn(agents, *s, generator=generator) for s in ((width_out, width_in), (width_out,), (40, width_in))
    )
    whole = linear(x, weight, bias, "fp32")
    for rows in range(MIN_ROWS, 40):
        few = linear(x[:, :rows].contiguous(), weight, bias, "fp32")
        assert few.is_contiguous()
        assert torch.equal(few, whole[:, :rows]), rows


def _learner(**options: Any) -> PPO:
    group = Group("all", AGENTS, (OBS,), "float32", ACTIONS, state_shape=(2, STATE // 2))
    settings: dict[str, Any] = {
        "layers": [6, 11], "entropy": [0.05, 0.2], "grad_clip": 1e9, "normalise_advantages": False, **options
    }  # fmt: skip
    return PPO(LearnerContext(group, 0, 0, AGENTS, 0, 3, 10, 10, 100), PPOOptions(**settings))


def _experience(seed: int, rows: int, masked: bool, state: int = 0, kinds: int = 0) -> Experience:
    """Random rows; if `kinds` is given, of so many different observations, most of whose numbers are zero."""
    source = np.random.default_rng(seed)
    mask = source.random((AGENTS, rows, ACTIONS)) < 0.6 if masked else np.ones((AGENTS, rows, 0), np.bool_)
    actions = source.integers(ACTIONS, size=(AGENTS, rows))
    if masked:
        np.put_along_axis(mask, actions[:, :, None], True, axis=2)
    likely = source.uniform(-3.5, -0.5, (AGENTS, rows))
    numbers = [array.astype(np.float32) for array in (likely, *source.normal(size=(2, AGENTS, rows)))]
    stacks = source.normal(size=(AGENTS, rows, OBS)).astype(np.float32)
    states, none = source.normal(size=(AGENTS, rows, state)).astype(np.float32), np.zeros((AGENTS, rows, 0))
    if kinds:
        stacks = (stacks * (source.random(stacks.shape) < [0.0, 0.02, 0.1, 0.5, 1.0]))[
            :, source.integers(kinds, size=rows) % rows
        ]
    return Experience(stacks, states, actions, *numbers, mask, none, none.astype(np.int64))


def _round(learner: PPO, batch: Experience) -> Round:
    """A round with these rows, with advantages and returns as they are."""
    padded = np.zeros((*batch.stacks.shape[:2], learner.network.inputs), batch.stacks.dtype)
    padded[:, :, : batch.stacks.shape[2]] = batch.stacks
    none, flags = np.zeros((AGENTS, 0), np.float32), np.zeros(batch.actions.shape, np.bool_)
    after = [After(batch.stacks[0, :0], batch.states[0, :0])] * AGENTS
    return Round(
        0, AGENTS, batch, padded, none[:, :, None], batch.returns, flags, flags, np.ones(flags.shape, np.int64), after
    )


def gradient(learner: PPO, batch: Experience, tiled: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of all agents over one minibatch, and its terms, by one of the two forms."""
    learner.tiled, settings = tiled, learner.round_settings()
    learning = learner.learning(_round(learner, batch))
    if isinstance(learning, StackedLearning):
        return stacked_gradient(learning.agents, settings, batch, 0, AGENTS)
    assert isinstance(learning, TiledLearning)
    learning.values()
    grads, parts = torch.empty_like(learner.weights), []
    for agent, own in enumerate(learning.learners):
        rows = Experience(*(array[agent : agent + 1] for array in batch))  # type: ignore[arg-type]
        grad, terms = own.gradient(
            own.batch(rows, settings.value_moments[agent], np.arange(len(batch.actions[0]))), settings.bonuses[agent]
        )
        own.layout.copy_back(grad, grads[agent])
        parts.append(terms)
    return grads, {name: torch.tensor([terms[name] for terms in parts]) for name in parts[0]}


both_forms = pytest.mark.parametrize("tiled", [False, True], ids=["stacked", "tiled"])


def _by_torch(learner: PPO, batch: Experience) -> tuple[Tensor, dict[str, Tensor]]:
    """Gradient and terms of the loss as in the paper, in double precision, by torch's autograd."""
    options, layout = learner.options, learner.network.layout
    leaf = learner.weights.double().requires_grad_()
    arrays = layout.arrays(leaf)
    activation = torch.relu if options.activation == "relu" else torch.tanh

    def run(name: str, outputs: int) -> Tensor:
        seen = {"obs": [batch.stacks], "state": [batch.states], "both": [batch.stacks, batch.states]}[
            options.critic if name == "critic" else "obs"
        ]
        x = torch.cat([torch.from_numpy(array).double() for array in seen], dim=2)
        x = torch.nn.functional.pad(x, (0, arrays[f"{name}.0.weight"].shape[2] - x.shape[2]))
        for i in range(3):
            x = x @ arrays[f"{name}.{i}.weight"].transpose(1, 2) + arrays[f"{name}.{i}.bias"].unsqueeze(1)
            x = activation(x) if i < 2 else x
        return x[:, :, :outputs]

    actions, old, advantages, returns, mask = (torch.from_numpy(array) for array in batch[2:7])
    logits = run("actor", ACTIONS)
    logits = logits.masked_fill(~mask, -1e9) if mask.shape[2] else logits
    chosen = logits.log_softmax(2).gather(2, actions.unsqueeze(2)).squeeze(2)
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean(1)
    ratio = (chosen - old).exp()
    clipped = ratio.clamp(1 - options.clip, 1 + options.clip)
    policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean(1)
    value_loss = (run("critic", 1)[:, :, 0] - returns).square().mean(1)
    loss = policy_loss + options.value_weight * value_loss - torch.tensor([0.05, 0.2]) * entropy
    (grad,) = torch.autograd.grad(loss.sum(), leaf)
    parts = {"loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": (old - chosen).mean(1)}
    return grad, parts


@pytest.mark.promise
@both_forms
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("masked", [False, True])
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 40), kinds=st.integers(0, 40))
def test_the_gradient_is_that_of_the_loss(
    activation: str, masked: bool, tiled: bool, seed: int, rows: int, kinds: int
) -> None:
    learner = _learner(activation=activation)
    learner.weights *= 1 + seed % 5  # policies with clear preferences as well
    batch = _experience(seed, rows, masked, kinds=kinds)
    grad, parts = gradient(learner, batch, tiled)
    expected, expected_parts = _by_torch(learner, batch)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-3, atol=2e-4)
    for name, part in parts.items():
        torch.testing.assert_close(part.double(), expected_parts[name], rtol=1e-3, atol=1e-4)


@both_forms
@pytest.mark.parametrize("critic", ["state", "both"])
def test_the_gradient_with_a_privileged_critic_is_that_of_the_loss(critic: str, tiled: bool) -> None:
    learner, batch = _learner(critic=critic), _experience(3, 30, masked=True, state=STATE)
    grad, parts = gradient(learner, batch, tiled)
    expected, expected_parts = _by_torch(learner, batch)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-3, atol=2e-4)
    for name, part in parts.items():
        torch.testing.assert_close(part.double(), expected_parts[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("critic", ["obs", "both"])
def test_standardised_inputs_give_both_forms_the_same_gradient(critic: str) -> None:
    learner, batch = (
        _learner(critic=critic, normalise_observations=True),
        _experience(4, 30, False, STATE if critic == "both" else 0, kinds=9),
    )
    for agent in range(AGENTS):
        learner.inputs.observe(agent, batch.stacks[agent] * 2 + 1, batch.states[agent] * 3)
    stacked, tiled = (gradient(learner, batch, form)[0] for form in (False, True))
    torch.testing.assert_close(tiled, stacked, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_microbatches_add_up_to_the_minibatch_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    batch = _experience(5, 40, masked=True)
    whole, whole_parts = gradient(_learner(), batch, tiled=False)
    monkeypatch.setattr("remuda.learners.ppo.stacked.MIN_MICROBATCH_ROWS", 9)
    learner = _learner()
    learner.pool.threads = threads
    grad, parts = gradient(learner, batch, tiled=False)
    learner.close()
    torch.testing.assert_close(grad, whole, rtol=1e-4, atol=1e-6)
    for name, part in parts.items():
        torch.testing.assert_close(part, whole_parts[name], rtol=1e-4, atol=1e-6)
    assert (learner.pool.cpu_s > 0) == (threads > 1)


def test_tiles_add_up_to_the_minibatch_with_the_same_bits_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = _experience(5, 40, masked=True)
    whole, _ = gradient(_learner(), batch, tiled=True)
    monkeypatch.setattr(tiles, "TILE_ROWS", 9)
    grads = []
    for threads in (1, 3):
        learner = _learner()
        learner.pool.threads = threads
        grads.append(gradient(learner, batch, tiled=True)[0])
        learner.close()
    torch.testing.assert_close(grads[0], whole, rtol=1e-4, atol=1e-6)
    assert torch.equal(*grads)


@both_forms
@pytest.mark.parametrize("field", ["stacks", "log_probs", "advantages", "returns"])
def test_a_nan_in_the_data_makes_the_agents_gradient_not_finite(field: str, tiled: bool) -> None:
    batch = _experience(5, 12, masked=False)
    getattr(batch, field)[1, 3] = np.nan
    grad, _ = gradient(_learner(), batch, tiled)
    assert grad[0].isfinite().all()
    assert not grad[1].isfinite().all()


@given(st.integers(0, 2**31), st.integers(1, 12), st.sampled_from([[8], [8, 8], [16, 8]]))
def test_small_networks_give_the_same_bits_for_few_rows_and_for_many(seed: int, few: int, layers: list[int]) -> None:
    """Torch multiplies small matrices with another kernel than larger ones, so rows are padded."""
    learner = _learner(layers=layers)
    learner.weights.normal_(generator=torch.Generator().manual_seed(seed))
    seen = np.random.default_rng(seed).normal(size=(AGENTS, 40, OBS)).astype(np.float32)
    arrays = learner.network.layout.arrays(learner.weights)
    many = learner.network.values(arrays, learner.inputs.actor(seen, slice(0, AGENTS)))
    alone = learner.network.values(arrays, learner.inputs.actor(seen[:, :few], slice(0, AGENTS)))
    assert torch.equal(alone[:, :few], many[:, :few])
