"""IQN: the stacked update against a plain program for one network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.network import Noise
from remuda.learners.iqn.options import IQNOptions
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

AGENTS, WORLDS, TURNS = 3, 4, 30
OPTIONS = IQNOptions(
    layer=20, frames=3, quantiles=6, acting_quantiles=5, batch_size=16, replay_size=500, lr=0.01, n_step=3, tau=0.001
)


@pytest.fixture(scope="module")
def played() -> Fragment:
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS, "turns": TURNS}, range(WORLDS))
    rollout = Rollout(game, random_bindings(game), RolloutConfig(1, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    return rollout.play(rollout.empty_fragments())[0]


def learner(options: IQNOptions = OPTIONS, first: int = 0, last: int = AGENTS) -> IQN:
    group = make_game(find_game("treasurehunt"), {"agents": AGENTS}, [0]).spec.groups[0]
    return IQN(LearnerContext(group, 0, first, last, first, 5, TURNS, WORLDS, 100), options)


class Plain(nn.Module):
    """The network of one agent as a plain torch module, without padding."""

    def __init__(self, named: dict[str, np.ndarray]) -> None:
        super().__init__()
        for name, array in named.items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(torch.from_numpy(array.copy())))

    def forward(self, x: torch.Tensor, taus: torch.Tensor, noise: dict[str, torch.Tensor] | None) -> torch.Tensor:
        features = torch.relu(x @ self.body_weight.T + self.body_bias)  # (batch, width)
        cosines = torch.cos(taus[..., None] * torch.arange(1, 65) * torch.pi)  # (batch, q, 64)
        phi = torch.relu(cosines @ self.phi_weight.T + self.phi_bias)
        hidden = features[:, None] * phi
        for name in ("layer", "head"):
            weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
            if noise is not None:
                inner, outer = noise[f"{name}_in"], noise[f"{name}_out"]
                weight = weight + getattr(self, f"{name}_weight_sigma") * torch.outer(outer, inner)
                bias = bias + getattr(self, f"{name}_bias_sigma") * outer
            hidden = hidden @ weight.T + bias
            if name == "layer":
                hidden = torch.relu(hidden)
        value, advantages = hidden[..., :1], hidden[..., 1:]
        return value + advantages - advantages.mean(dim=-1, keepdim=True)  # (batch, q, actions)


def plain_noise(own: IQN, keys: dict[Stream, np.ndarray], which: int, agent: int) -> dict[str, torch.Tensor]:
    noise = Noise.draw(keys[Stream.NOISE], which, own.network, torch.device("cpu"))
    assert noise is not None
    width, outputs = OPTIONS.layer, 5
    return {
        "layer_in": noise.layer_in[agent, 0, :width],
        "layer_out": noise.layer_out[agent, :width, 0],
        "head_in": noise.head_in[agent, 0, :width],
        "head_out": noise.head_out[agent, :outputs, 0],
    }


def plain_update(own: IQN, agent: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The first update of one agent in plain torch; returns its new weights and the gradients."""
    layout = own.network.layout
    named = layout.unpack(own.weights[agent].numpy())
    online, target = Plain(named), Plain(named)
    keys = own.update_keys(slice(0, AGENTS), 0)
    gamma = np.full(AGENTS, 0.99)
    batch = own.replay.sample(0, AGENTS, keys[Stream.SAMPLE], 16, 3, gamma)
    u = torch.from_numpy(rng.uniforms(keys[Stream.TAU], 2 * 16 * 6)[agent]).float()
    taus, target_taus = u[: 16 * 6].view(16, 6), u[16 * 6 :].view(16, 6)
    x, next_x = (torch.from_numpy(a[agent]).float() for a in (batch.obs, batch.next_obs))
    middle = ((torch.arange(5) + 0.5) / 5).expand(16, 5)
    with torch.no_grad():
        best = online(next_x, middle, None).mean(dim=1).argmax(dim=1)
        future = target(next_x, target_taus, plain_noise(own, keys, 1, agent))[torch.arange(16), :, best]
        returns, discounts = (torch.from_numpy(a[agent])[:, None] for a in (batch.returns, batch.discounts))
        targets = returns + discounts * future
    actions = torch.from_numpy(batch.actions[agent])
    values = online(x, taus, plain_noise(own, keys, 0, agent))[torch.arange(16), :, actions]
    error = targets[:, None, :] - values[:, :, None]
    huber = nn.functional.huber_loss(
        values[:, :, None].expand_as(error), targets[:, None, :].expand_as(error), reduction="none"
    )
    loss = ((taus[:, :, None] - (error < 0).float()).abs() * huber).mean()
    optimiser = torch.optim.Adam(online.parameters(), lr=0.01)
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 1.0)
    optimiser.step()
    moved = {name: getattr(online, name.replace(".", "_")) for name in named}
    return {name: (p.detach().numpy(), p.grad.numpy()) for name, p in moved.items()}


@pytest.mark.parametrize("agent", range(AGENTS))
def test_the_stacked_update_equals_the_plain_one(played: Fragment, agent: int) -> None:
    own = learner()
    own.take(played)
    expected = plain_update(own, agent)
    before = own.weights.clone()
    own.update(1)
    moved = own.network.layout.unpack(own.weights[agent].numpy())
    for name, (array, grad) in expected.items():
        # Adam's first step is as long for a gradient of 1e-9 as for 1; of the tiny ones only the size is compared.
        large = np.abs(grad) > 1e-6
        np.testing.assert_allclose(moved[name][large], array[large], atol=2e-5, err_msg=name)
        assert np.abs(moved[name] - array).max() < 0.02, name
    assert not torch.equal(own.weights[agent], before[agent])


def test_slices_of_the_herd_learn_the_same_bits(played: Fragment) -> None:
    whole = learner()
    parts = [learner(first=0, last=1), learner(first=1, last=3)]
    for own in (whole, *parts):
        own.take(own.context.select([played]))
        own.update(5)
    assert torch.equal(whole.weights, torch.cat([own.weights for own in parts]))
    assert torch.equal(whole.target, torch.cat([own.target for own in parts]))


def test_padding_stays_zero(played: Fragment) -> None:
    own = learner()
    own.take(played)
    own.update(20)
    layout = own.network.layout
    for row in own.weights.numpy():
        assert np.array_equal(layout.pack(layout.unpack(row)), row)


def test_the_target_follows_slowly_and_gets_no_gradient(played: Fragment) -> None:
    own = learner(OPTIONS.model_copy(update={"tau": 0.25}))
    own.take(played)
    before = own.target.clone()
    own.update(1)
    torch.testing.assert_close(own.target, before + 0.25 * (own.weights - before))


def test_an_agent_without_enough_transitions_waits_and_the_others_do_not(played: Fragment) -> None:
    own = learner(OPTIONS.model_copy(update={"learning_starts": WORLDS * TURNS}))
    short = Fragment(**{**vars(played), "alive": played.alive.copy()})
    short.alive[5:, :, 1] = False
    own.take(short)
    before = own.weights.clone()
    own.update(2)
    report = own.report()
    assert own.steps.tolist() == [2, 0, 2]
    assert torch.equal(own.weights[1], before[1])
    assert np.isnan(report["loss"]).tolist() == [False, True, False]


def test_epsilon_follows_its_schedule_and_is_published_with_the_weights(played: Fragment) -> None:
    own = learner(OPTIONS.model_copy(update={"epsilon": ["0.8:0.2:0.5", 0.3, "0.5:0.1:1"]}))
    own.take(played)
    np.testing.assert_allclose(own.rows()[:, -1], [0.8, 0.3, 0.5])
    own.update(25)
    np.testing.assert_allclose(own.rows()[:, -1], [0.5, 0.3, 0.4], atol=1e-6)
    own.update(75)
    np.testing.assert_allclose(own.rows()[:, -1], [0.2, 0.3, 0.1], atol=1e-6)


def test_it_learns_the_rewarded_action(played: Fragment) -> None:
    """If only one action has a reward, the greedy policy finds it."""
    own = learner(OPTIONS.model_copy(update={"gamma": 0.5, "tau": 0.05}))
    paid = Fragment(**{**vars(played), "rewards": (played.actions == 2).astype(np.float32)})
    own.take(paid)
    own.update(150)
    policy = IQN.make_policy(own.context.group, AGENTS, own.options, "fp32", "cpu")
    policy.load(own.rows(), 1)
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS, "turns": TURNS}, range(WORLDS))
    rollout = Rollout(game, [PolicyBinding(0, 0, AGENTS, policy)], RolloutConfig(2, WORLDS))
    rollout.start(Task(tuple(range(WORLDS)), exploration=0.0))
    assert (rollout.play(rollout.empty_fragments())[0].actions == 2).mean() > 0.95
