"""Recurrent policies: cells against torch's own, gradients, states in fragments, and lives that end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remuda
from remuda.core.fragment import Fragment
from remuda.core.game import GameEntry, make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.learners.ppo.experience import Experience, sequence_lengths
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.rounds import gather_rounds
from remuda.learners.ppo.stacked import StackedLearning, stacked_gradient
from remuda.learners.recurrent import RecurrentCell
from remuda.learners.stack import WeightLayout
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing.odd_games import RESPAWN
from remuda.testing.recall import RECALL

WIDTH, WORLDS = 8, 5
every_cell = pytest.mark.parametrize("kind", ["gru", "lstm"])


def learner(entry: GameEntry, kind: str, **options: Any) -> PPO:
    spec = make_game(entry, {}, [0]).spec
    group = spec.groups[0]
    own: dict[str, Any] = {"body": kind, "features": WIDTH, "sequence": 4, "layers": [6], "minibatches": 2, **options}
    return PPO(LearnerContext(group, 0, 0, group.size, 0, 1, spec.turns, WORLDS, 100), PPOOptions(**own))


def start(own: PPO, entry: GameEntry, worlds: int = WORLDS) -> Rollout:
    group = own.context.group
    policy = PPO.make_policy(group, group.size, own.options, "fp32", "cpu")
    policy.load(own.rows(), 0)
    rollout = Rollout(
        make_game(entry, {}, range(worlds)), [PolicyBinding(0, 0, group.size, policy)], RolloutConfig(1, worlds)
    )
    rollout.start(Task(tuple(range(worlds))))
    return rollout


def play(own: PPO, entry: GameEntry) -> Fragment:
    rollout = start(own, entry)
    return rollout.play(rollout.empty_fragments())[0]


@every_cell
def test_a_cell_is_torchs_own(kind: str) -> None:
    cell, layout = RecurrentCell(kind, 5, WIDTH, "fp32"), WeightLayout()
    cell.add_to(layout)
    rows = torch.from_numpy(layout.initial_rows(np.arange(2, dtype=np.uint64)))
    x = torch.randn(2, 20, 7, 8, generator=torch.Generator().manual_seed(1))
    x[..., 5:] = 0
    outputs = cell.unroll(layout.arrays(rows), x, torch.zeros(2, 20, cell.memory_size))
    for agent in range(2):
        named = {name: torch.from_numpy(array) for name, array in layout.unpack(rows[agent].numpy()).items()}
        own: Any = nn.GRU(5, WIDTH, batch_first=True) if kind == "gru" else nn.LSTM(5, WIDTH, batch_first=True)
        order = slice(None) if kind == "gru" else [*range(16), *range(24, 32), *range(16, 24)]  # ours: cell gate last
        names = ("input.weight", "memory.weight", "input.bias", "memory.bias")
        for parameter, name in zip(own.parameters(), names, strict=True):
            parameter.data.copy_(named[f"body.{name}"][order])
        torch.testing.assert_close(outputs[agent], own(x[agent, ..., :5])[0].detach(), rtol=1e-4, atol=1e-5)


@every_cell
@pytest.mark.parametrize("entry", [RECALL, RESPAWN], ids=["recall", "respawn"])
def test_the_gradient_is_that_of_the_loss(kind: str, entry: GameEntry) -> None:
    """With unchanged weights, sequences as long as lives: the loss is a function of the weights that acted."""
    own = learner(entry, kind, sequence=50, minibatches=1, normalise_values=False, normalise_advantages=False)
    own.take(play(own, entry))
    one, *_ = gather_rounds(own.fragments, False, own.network, own.weights)
    learning = own.learning(one)
    assert isinstance(learning, StackedLearning)
    own.fill_advantages(one, learning)
    batch = Experience(*(array[:1] for array in one.rows))  # type: ignore[arg-type]
    grad, _ = stacked_gradient(learning.agents, own.round_settings(), batch, 0, 1)
    torch.testing.assert_close(grad.double(), _by_torch(own, batch), rtol=1e-3, atol=1e-4)


def _by_torch(own: PPO, batch: Any) -> Tensor:
    """The gradient of agent 0, each sequence run on its own, in double precision."""
    network, leaf = own.network, own.weights[:1].double().requires_grad_()
    arrays, cell = network.layout.arrays(leaf), network.cell
    assert cell is not None
    x = torch.from_numpy(batch.stacks).double() * network.scale
    x = torch.nn.functional.pad(x, (0, network.inputs - x.shape[2]))
    features, first = [], 0
    for length in sequence_lengths(batch.place[0, :, 0]):
        memory = torch.from_numpy(batch.memory[:, first : first + 1]).double()
        features.append(cell.unroll(arrays, x[:, first : first + length].unsqueeze(1), memory)[:, 0])
        first += length
    seen = torch.cat(features, dim=1)
    actions, old, advantages, returns, _ = (torch.from_numpy(array) for array in batch[2:7])

    def run(name: str, outputs: int) -> Tensor:
        hidden = torch.tanh(seen @ arrays[f"{name}.0.weight"].transpose(1, 2) + arrays[f"{name}.0.bias"].unsqueeze(1))
        last = hidden @ arrays[f"{name}.1.weight"].transpose(1, 2) + arrays[f"{name}.1.bias"].unsqueeze(1)
        return last[:, :, :outputs]

    policy = torch.distributions.Categorical(logits=run("actor", own.context.group.actions))
    ratio = (policy.log_prob(actions) - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean(1)
    loss = 0.5 * (run("critic", 1)[:, :, 0] - returns).square().mean(1) - gain - 0.01 * policy.entropy().mean(1)
    return torch.autograd.grad(loss.sum(), leaf)[0]


@every_cell
def test_states_begin_at_zero_with_each_life_and_go_on_through_slices(kind: str) -> None:
    own = learner(RESPAWN, kind)
    whole = play(own, RESPAWN)
    rollout, parts = start(own, RESPAWN), []
    while sum(part.turns for part in parts) < whole.turns:
        parts += rollout.play(rollout.empty_fragments(turns=5))
    assert np.array_equal(np.concatenate([part.actions for part in parts]), whole.actions)
    assert whole.memory is not None
    assert not whole.memory.any()
    later = parts[1].memory
    assert later is not None
    assert np.array_equal((later != 0).any(axis=2), parts[1].ages[0] > 0)
    own.take(whole)
    split = learner(RESPAWN, kind)
    for part in parts:
        split.take(part)
    one, other = (
        Experience(*(array[0] for array in gather_rounds(each.fragments, False, each.network, each.weights)[0].rows))
        for each in (own, split)
    )
    rows = [np.lexsort(each.stacks.reshape(len(each.stacks), -1).T) for each in (one, other)]
    assert np.array_equal(one.memory[rows[0]], other.memory[rows[1]])  # also where a slice begins within a life
    assert not one.memory[one.place[:, 0] == 0][0].any()


def test_an_agent_of_a_run_remembers(tmp_path: Path) -> None:
    run = remuda.train(
        RECALL,
        out=tmp_path / "run",
        quiet=True,
        pictures=False,
        learner="ppo",
        body="gru",
        features=8,
        total_episodes=16,
    )
    agent, other = run.agent(0), run.agent(0)
    obs = np.eye(4, dtype=np.uint8)
    for turn in range(3):
        agent.act(obs[turn])
    other.act(obs[3])
    assert agent.state.any()
    assert agent.act(obs[0]) == other.act(obs[0], state=_before(run, obs))
    assert np.array_equal(agent.state, other.state)
    agent.reset()
    assert not agent.state.any()


def _before(run: remuda.Run, obs: Any) -> Any:
    again = run.agent(0)
    for turn in range(3):
        again.act(obs[turn])
    return again.state


@pytest.mark.slow
@pytest.mark.parametrize(("body", "low", "high"), [("gru", 0.95, 1.0), ("mlp", 0.0, 0.35)])
def test_only_iqn_with_a_memory_plays_recall_well(tmp_path: Path, body: str, low: float, high: float) -> None:
    run = remuda.train(
        RECALL, out=tmp_path / "run", quiet=True, pictures=False, learner="iqn", engine="vectorized", worlds=32,
        total_episodes=2560, body=body, layer=32, frames=1, batch_size=128, sequence=8, burn_in=4, lr="0.005:0.0005",
        tau=0.02, gamma=0.5, epsilon="0.3:0.02:0.6", agents=1, n_workers=1,
    )  # fmt: skip
    assert low <= np.mean(remuda.evaluate(run.path, episodes=32).returns) <= high + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("body", "low", "high"), [("gru", 0.95, 1.0), ("mlp", 0.0, 0.35)])
def test_only_an_agent_with_a_memory_plays_recall_well(tmp_path: Path, body: str, low: float, high: float) -> None:
    run = remuda.train(
        RECALL, out=tmp_path / "run", quiet=True, pictures=False, learner="ppo", engine="vectorized", worlds=64,
        total_episodes=9600, body=body, features=32, layers=[32], sequence=8, lr="0.01:0.001", minibatches=4, agents=1,
        gamma=0.5, gae_lambda=0.5, entropy=0.001, n_workers=1,
    )  # fmt: skip
    assert low <= np.mean(remuda.evaluate(run.path, episodes=32).returns) <= high + 1e-6
