"""IQN's compiled form against its readable one: gradients, updates, actions, and what its bits depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding, PolicyInput
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.iqn.compiled import AgentRows, CompiledUpdates
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.stack import init_keys
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

AGENTS, WORLDS, TURNS = 3, 5, 30
SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "odd sizes": {"layer": 20, "frames": 3, "quantiles": 6, "acting_quantiles": 5, "batch_size": 13, "n_step": 3},
    "more quantiles than a lane": {"layer": 70, "quantiles": 19, "acting_quantiles": 18, "batch_size": 9},
    "one of each": {"layer": 1, "frames": 1, "quantiles": 1, "acting_quantiles": 1, "batch_size": 4},
    "no noise": {"layer": 64, "sigma": 0.0, "batch_size": 8},
}


def play(game_name: str, options: dict[str, Any] | None = None) -> Fragment:
    entry = find_game(game_name)
    game = make_game(entry, options or {}, range(WORLDS))
    rollout = Rollout(game, random_bindings(game), RolloutConfig(1, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    return rollout.play(rollout.empty_fragments())[0]


@pytest.fixture(scope="module")
def played() -> Fragment:
    return play("treasurehunt", {"agents": AGENTS, "turns": TURNS})


def learner(played: Fragment, shape: dict[str, Any], game: str = "treasurehunt", compiled: bool = True) -> IQN:
    agents = played.actions.shape[2]
    group = make_game(find_game(game), {"agents": agents} if game == "treasurehunt" else {}, [0]).spec.groups[0]
    own = IQN(LearnerContext(group, 0, 0, agents, 0, 5, TURNS, WORLDS, 100), IQNOptions(replay_size=500, **shape))
    assert own.compiled
    own.compiled = compiled
    own.take(played)
    return own


def gradients(own: IQN, agent: int) -> tuple[float, NDArray[np.float32], float, NDArray[np.float32]]:
    """Loss and gradient of the first update of one agent, in both forms."""
    one, options = slice(agent, agent + 1), own.options
    keys = own.update_keys(one, 0)
    batch = own.replay.sample(
        agent, agent + 1, keys[Stream.SAMPLE], options.batch_size, options.n_step, np.array([0.99])
    )
    rows = own.weights[one].clone().requires_grad_()
    loss = own._loss(rows, own.target[one], batch, keys)
    (expected,) = torch.autograd.grad(loss.sum(), rows)
    kernels = CompiledUpdates(own.network)
    arrays = (own.weights, own.target, own.adam.mean, own.adam.square)
    found = kernels.gradient(AgentRows(*(tensor[agent].numpy() for tensor in arrays)), batch, keys)
    return found, kernels.grad, float(loss.detach()), expected[0].numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_both_forms_agree(played: Fragment, name: str) -> None:
    own = learner(played, SHAPES[name])
    draw = torch.Generator().manual_seed(0)
    for rows in (own.weights, own.target):  # two networks whose best actions are no near ties
        rows += 0.05 * torch.randn(rows.shape, generator=draw)
        rows.copy_(torch.from_numpy(np.stack([padding_removed(own, row) for row in rows.numpy()])))
    for agent in range(AGENTS):
        loss, grad, expected_loss, expected = gradients(own, agent)
        assert np.isclose(loss, expected_loss, rtol=1e-5)
        assert np.linalg.norm(grad - expected) < 2e-5 * np.linalg.norm(expected)


def padding_removed(own: IQN, row: NDArray[np.float32]) -> NDArray[np.float32]:
    return own.network.layout.pack(own.network.layout.unpack(row))


def test_gradients_agree_where_actions_are_masked() -> None:
    played = play("remuda.testing:MASKED")
    own = learner(played, {"layer": 20, "batch_size": 16}, "remuda.testing:MASKED")
    assert own.replay.mask is not None
    assert not own.replay.mask.all()
    _, grad, _, expected = gradients(own, 0)
    assert np.linalg.norm(grad - expected) < 2e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["odd sizes", "no noise"])
def test_updates_of_both_forms_agree(played: Fragment, name: str) -> None:
    forms = [learner(played, SHAPES[name], compiled=compiled) for compiled in (True, False)]
    before = forms[0].weights.clone()
    for own in forms:
        own.update(20)
    compiled, readable = forms
    moved = (readable.weights - before).norm(dim=1)
    assert ((compiled.weights - readable.weights).norm(dim=1) < 1e-2 * moved).all()
    assert ((compiled.target - readable.target).norm(dim=1) < 1e-2 * moved).all()
    expected = readable.report()
    for metric, values in compiled.report().items():
        np.testing.assert_allclose(values, expected[metric], rtol=1e-3)


def test_padding_stays_zero(played: Fragment) -> None:
    own = learner(played, SHAPES["odd sizes"])
    own.update(10)
    for row in (*own.weights.numpy(), *own.target.numpy(), *own.adam.mean.numpy()):
        assert np.array_equal(padding_removed(own, row), row)


def test_an_update_with_a_reward_that_is_no_number_changes_only_the_target(played: Fragment) -> None:
    for reward in (np.nan, np.inf):
        spoiled = Fragment(**{**vars(played), "rewards": played.rewards.copy()})
        spoiled.rewards[:, :, 1] = reward
        own = learner(spoiled, SHAPES["odd sizes"])
        before = own.weights.clone()
        own.update(2)
        assert own.steps.tolist() == [2, 0, 2]
        assert torch.equal(own.weights[1], before[1])
        assert torch.isfinite(own.adam.mean).all()


def policy(agents: int, shape: dict[str, Any]) -> IQNPolicy:
    group = make_game(find_game("treasurehunt"), {"agents": agents}, [0]).spec.groups[0]
    own = IQN.make_policy(group, agents, IQNOptions(**shape), "fp32", "cpu")
    assert isinstance(own, IQNPolicy)
    rows = own.network.initial_rows(init_keys(0, np.arange(agents)))
    own.load(np.pad(rows, ((0, 0), (0, 1))), 0)
    return own


@pytest.mark.parametrize("name", SHAPES)
def test_both_forms_choose_the_same_actions(name: str) -> None:
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS, "turns": TURNS}, range(WORLDS))
    own, found = policy(AGENTS, SHAPES[name]), []
    assert own.compiled
    for own.compiled in (True, False):
        rollout = Rollout(game, [PolicyBinding(0, 0, AGENTS, own)], RolloutConfig(2, WORLDS))
        rollout.start(Task(tuple(range(WORLDS)), exploration=0.3))
        found.append(rollout.play(rollout.empty_fragments())[0].actions.copy())
    assert np.array_equal(*found)


def test_actions_do_not_depend_on_how_worlds_and_agents_are_batched() -> None:
    """Of advantages, bit by bit: equal actions could hide a difference."""
    rng, own, worlds = np.random.default_rng(0), policy(AGENTS, SHAPES["odd sizes"]), 21
    frames = rng.integers(0, 2, (3, worlds, AGENTS, *own.group.obs_shape)).astype(own.group.obs_dtype)
    ages = rng.integers(0, 4, (worlds, AGENTS))
    acting = own._acting
    assert acting is not None

    def advantages(rows: slice, agent: int) -> NDArray[np.float32]:
        """Of the last block of the worlds `rows`."""
        keys = np.zeros((len(range(worlds)[rows]), 1), np.uint64)
        inputs = PolicyInput(frames[:, rows, agent : agent + 1], ages[rows, agent : agent + 1], None, keys, None)
        acting.greedy(inputs, agent)
        (memory, _), actions = next(iter(acting._memory.values())), own.group.actions
        return memory.advantages.reshape(-1, acting.layout.sizes.columns)[:, :actions].copy()

    for agent in range(AGENTS):
        alone = np.stack([advantages(slice(w, w + 1), agent)[0] for w in range(worlds)])
        together = np.concatenate([advantages(slice(w, min(w + 8, worlds)), agent)[:8] for w in range(0, worlds, 8)])
        assert np.array_equal(alone, together[:worlds])
        shifted = advantages(slice(3, 3 + 5), agent)[:5]
        assert np.array_equal(alone[3:8], shifted)
