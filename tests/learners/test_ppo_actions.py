"""Actions that are not Discrete: draws, densities, bounds, gradients, and who refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import remuda
from dqn import DQN
from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import Group
from remuda.core.learner import LearnerContext
from remuda.core.policy import actions_fit, random_actions
from remuda.core.spaces import space_from_json, space_to_json
from remuda.learners.iqn.network import IQNNetwork
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.ppo.actions import make_head
from remuda.learners.ppo.experience import Experience
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.learning import Agents
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.stacked import stacked_gradient
from remuda.testing.odd_games import LEVERS, STEERING

LOW, HIGH = np.array([[-2, 0], [-np.inf, 1]], np.float32), np.array([[2, 5], [np.inf, np.inf]], np.float32)
BOX = spaces.Box(LOW, HIGH)
LEVER_SPACE = spaces.MultiDiscrete([3, 2, 4])
AGENTS, OBS, ROWS = 2, 5, 40
KEYS = rng.keys(rng.keys(rng.key(3, rng.Stream.ACT), np.arange(200))[:, None], np.arange(AGENTS))
every_space = pytest.mark.parametrize("space", [BOX, LEVER_SPACE, spaces.MultiBinary(3)], ids=str)


def group(space: Any) -> Group:
    return Group("all", AGENTS, (OBS,), np.float32, action_space=space)


@every_space
@pytest.mark.parametrize("predicted", [False, True])
def test_a_stored_draw_has_the_density_that_learning_computes(space: Any, predicted: bool) -> None:
    head = make_head(group(space), predicted)
    assert head is not None
    outputs = np.random.default_rng(1).normal(size=(200, AGENTS, head.outputs)).astype(np.float32)
    spread = np.random.default_rng(2).normal(size=(AGENTS, head.parameters)).astype(np.float32)
    draw = head.draw(outputs, spread, KEYS, greedy=False)
    stored = draw.actions if draw.stored is None else draw.stored
    rows, actions = torch.from_numpy(outputs).transpose(0, 1), torch.from_numpy(stored).transpose(0, 1)
    again = head.log_prob(rows, torch.from_numpy(spread), actions)
    np.testing.assert_allclose(again.T.numpy(), draw.log_probs, atol=1e-4)
    entropy = head.entropy(rows, torch.from_numpy(spread))
    many = -again.double().mean(dim=1)  # the entropy is what minus the logarithm is on average
    np.testing.assert_allclose(entropy.mean(dim=1).numpy(), many.numpy(), atol=0.6)


@every_space
def test_actions_stay_in_their_space(space: Any) -> None:
    own = group(space)
    head = make_head(own, False)
    assert head is not None
    outputs = np.random.default_rng(1).normal(size=(200, AGENTS, head.outputs), scale=20).astype(np.float32)
    for actions in (head.draw(outputs, np.zeros((AGENTS, head.parameters), np.float32), KEYS, False).actions,
                    random_actions(own, KEYS)):  # fmt: skip
        assert actions.shape == (200, AGENTS, *own.action_shape)
        assert actions.dtype == own.action_dtype
        assert actions_fit(actions, own)
        assert all(space.contains(action.astype(space.dtype)) for action in actions.reshape(-1, *own.action_shape))
        assert len(np.unique(actions.reshape(400, -1), axis=0)) > 5


def test_the_greedy_action_is_the_middle_or_the_likeliest() -> None:
    head = make_head(group(BOX), False)
    assert head is not None
    still = head.draw(np.zeros((1, AGENTS, 4), np.float32), np.zeros((AGENTS, 4), np.float32), KEYS[:1], greedy=True)
    assert still.actions[0, 0].tolist() == [[0.0, 2.5], [0.0, 1.0]]
    levers = make_head(group(LEVER_SPACE), False)
    assert levers is not None
    outputs = np.array([0, 2, 1, 5, 4, 0, 0, 1, 0], np.float32)
    likeliest = levers.draw(np.tile(outputs, (1, AGENTS, 1)), None, KEYS[:1], greedy=True)
    assert likeliest.actions[0].tolist() == [[1, 0, 2]] * AGENTS


@every_space
@pytest.mark.parametrize("spread", ["shared", "predicted"])
def test_the_gradient_is_that_of_the_loss(space: Any, spread: str) -> None:
    own = group(space)
    options = PPOOptions(layers=[6], entropy=[0.05, 0.2], grad_clip=1e9, spread=spread)  # type: ignore[arg-type]
    learner = PPO(LearnerContext(own, 0, 0, AGENTS, 0, 3, 10, 10, 100), options)
    learner.weights *= 3
    source = np.random.default_rng(5)
    if own.choices:
        actions: Any = source.integers(own.choices, size=(AGENTS, ROWS, len(own.choices)))
    else:
        actions = source.normal(size=(AGENTS, ROWS, 4)).astype(np.float32)
    numbers = [array.astype(np.float32) for array in source.normal(size=(3, AGENTS, ROWS))]
    stacks = source.normal(size=(AGENTS, ROWS, OBS)).astype(np.float32)
    none = np.zeros((AGENTS, ROWS, 0))
    batch = Experience(stacks, none, actions, *numbers, none.astype(np.bool_), none, none.astype(np.int64))
    numbers[0] -= 5.0
    agents = Agents(
        learner.context, options, learner.network, learner.weights, learner.adam, learner.inputs, learner.pool
    )
    grad, _ = stacked_gradient(agents, learner.round_settings(), batch, 0, AGENTS)
    torch.testing.assert_close(grad.double(), _by_torch(learner, batch), rtol=1e-3, atol=2e-4)


def _by_torch(learner: PPO, batch: Experience) -> Tensor:
    """The gradient of the loss as in the paper, in double precision, by torch's autograd and distributions."""
    network, leaf = learner.network, learner.weights.double().requires_grad_()
    arrays, head = network.layout.arrays(leaf), network.head
    assert head is not None
    x = torch.nn.functional.pad(torch.from_numpy(batch.stacks).double(), (0, network.inputs - OBS))

    def run(name: str, outputs: int) -> Tensor:
        hidden = torch.tanh(x @ arrays[f"{name}.0.weight"].transpose(1, 2) + arrays[f"{name}.0.bias"].unsqueeze(1))
        return (hidden @ arrays[f"{name}.1.weight"].transpose(1, 2) + arrays[f"{name}.1.bias"].unsqueeze(1))[
            :, :, :outputs
        ]

    outputs, actions = run("actor", head.outputs), torch.from_numpy(batch.actions)
    choices = learner.context.group.choices
    if choices:
        parts = [torch.distributions.Categorical(logits=part) for part in outputs.split(list(choices), dim=2)]
        chosen = torch.stack([part.log_prob(actions[:, :, i]) for i, part in enumerate(parts)]).sum(0)
        entropy = torch.stack([part.entropy() for part in parts]).sum(0)
    else:
        log_std = outputs[:, :, 4:] if learner.options.spread == "predicted" else network.spread(arrays).unsqueeze(1)
        normal = torch.distributions.Normal(outputs[:, :, :4], log_std.clamp(-5, 2).exp())
        chosen, entropy = normal.log_prob(actions).sum(2), normal.entropy().expand_as(actions).sum(2)
    old, advantages, returns = (torch.from_numpy(array) for array in batch[3:6])
    ratio = (chosen - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean(1)
    loss = 0.5 * (run("critic", 1)[:, :, 0] - returns).square().mean(1) - gain
    loss = loss - torch.tensor([0.05, 0.2]) * entropy.mean(1)
    return torch.autograd.grad(loss.sum(), leaf)[0]


def test_spaces_survive_json_and_a_group_reads_them() -> None:
    assert space_from_json(space_to_json(BOX)) == BOX
    assert space_from_json(space_to_json(LEVER_SPACE)) == LEVER_SPACE
    seen = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2, 2))})
    own = Group("all", 1, observation_space=seen, action_space=spaces.Discrete(4))
    assert (own.obs_shape, own.actions, own.action_space, own.action_shape) == ((7,), 4, None, ())
    image = Group("all", 1, observation_space=spaces.Box(0, 255, (4, 4, 3), np.uint8), action_space=BOX)
    assert (image.obs_shape, image.obs_dtype, image.high, image.action_shape) == ((4, 4, 3), np.uint8, 255.0, (2, 2))


def test_who_cannot_says_so_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="learner iqn chooses one of some actions"):
        IQNNetwork(group(BOX), IQNOptions(), "fp32", "cpu")
    with pytest.raises(ConfigError, match="learner DQN chooses one of some actions"):
        DQN.make_policy(group(BOX), 1, DQN.options_class(), "fp32", "cpu")
    with pytest.raises(ConfigError, match=r"they should be Discrete, MultiDiscrete"):
        group(spaces.Text(4))
    with pytest.raises(ConfigError, match="is masked, and its actions are not Discrete"):
        Group("all", 1, (2,), np.float32, masked=True, action_space=BOX)


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["shared", "predicted"])
def test_agents_learn_to_steer_and_to_pull_levers(tmp_path: Path, spread: str) -> None:
    for entry, random, good in ((STEERING, -31.0, -13.0), (LEVERS, 5.0, 10.0)):
        run = remuda.train(
            entry, out=tmp_path / entry.name, quiet=True, pictures=False, learner="ppo", total_episodes=1600, lr=0.01,
            layers=[16], spread=spread, agents=2, entropy=0.0, seed=2,
        )  # fmt: skip
        scores = remuda.evaluate(run.path, episodes=16).returns
        assert np.mean(scores) > good > random
