"""Sequences of a replay buffer: which turns they hold, stored states, burn-in, and a loss without padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import GameEntry, make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.replay import MEMORY
from remuda.learners.sequences import SequenceBatch, SequenceShape, sample_sequences
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing import RESPAWN
from remuda.testing.recall import RECALL

WORLDS = 4
SMALL: dict[str, Any] = {
    "body": "gru", "layer": 8, "frames": 1, "quantiles": 3, "acting_quantiles": 3, "batch_size": 12, "sequence": 4,
    "burn_in": 3, "n_step": 2, "sigma": 0.0,
}  # fmt: skip


def learner(entry: GameEntry, **options: Any) -> tuple[IQN, Fragment]:
    """A learner that has taken one round, and the round."""
    game = make_game(entry, {}, range(WORLDS))
    group, own = game.spec.groups[0], IQNOptions(**{**SMALL, **options})
    made = IQN(LearnerContext(group, 0, 0, group.size, 0, 1, game.spec.turns, WORLDS, 100), own)
    policy = IQN.make_policy(group, group.size, own, "fp32", "cpu")
    policy.load(made.rows(), 0)
    rollout = Rollout(game, [PolicyBinding(0, 0, group.size, policy)], RolloutConfig(1, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    (fragment,) = rollout.play(rollout.empty_fragments())
    made.take(fragment)
    return made, fragment


def drawn(own: IQN, count: int = 200) -> SequenceBatch:
    keys = rng.keys(rng.key(0, Stream.SAMPLE), np.arange(own.context.agents))
    shape = SequenceShape(count, 4, 3, 2)
    return sample_sequences(own.replay, 0, own.context.agents, keys, shape, np.full(own.context.agents, 0.9))


def test_sequences_hold_turns_of_one_life_in_order_with_the_states_that_acted() -> None:
    """In Respawn an observation is (world, agent, turn, segment), and the reward is 1 + the turn."""
    own, fragment = learner(RESPAWN)
    states = {
        (*fragment.obs[turn, world, agent, :3].tolist(), agent): fragment.extras[MEMORY][turn, world, agent]
        for turn, world, agent in np.argwhere(fragment.alive)
    }
    batch, short = drawn(own), 0
    for agent, row in np.ndindex(batch.valid.shape[:2]):
        obs, begun, valid = batch.obs[agent, row], batch.begun[agent, row], batch.valid[agent, row]
        first = int(np.argmax(begun))
        assert begun[first:].all()
        assert np.array_equal(batch.memory[agent, row], states[(*obs[first, :3].tolist(), agent)])
        count = int(valid.sum())
        assert valid[:count].all()
        last = int(batch.ahead[agent, row, count - 1])
        own_turns = obs[first : (last if batch.discounts[agent, row, count - 1] else 3 + count - 1) + 1]
        assert (np.diff(own_turns[:, 2]) == 1).all()
        assert (own_turns[:, 3] == own_turns[0, 3]).all()
        for place in range(count):
            ahead, turn = int(batch.ahead[agent, row, place]), int(obs[3 + place, 2])
            steps = ahead - 3 - place
            assert 1 <= steps <= 2
            assert batch.returns[agent, row, place] == pytest.approx(sum(0.9**i * (1 + turn + i) for i in range(steps)))
        short += count < 4
    assert short > 10


@pytest.mark.parametrize("body", ["gru", "lstm"])
def test_the_loss_is_that_of_the_turns_that_exist(body: str) -> None:
    """Padding of any content changes nothing: neither the loss nor its gradient."""
    own, _ = learner(RESPAWN, body=body)
    keys = own.update_keys(slice(0, 3), 0)
    batch = sample_sequences(own.replay, 0, 3, keys[Stream.SAMPLE], own.sequences, np.full(3, 0.9))
    assert not batch.valid.all()
    obs = batch.obs.copy()
    actions, returns = batch.actions.copy(), batch.returns.copy()
    actions[~batch.valid], returns[~batch.valid] = 2, 77.0
    for agent, row in np.ndindex(batch.valid.shape[:2]):
        count = int(batch.valid[agent, row].sum())
        obs[agent, row, ~batch.begun[agent, row]] = 55
        obs[agent, row, max(3 + count, batch.ahead[agent, row].max() + 1) :] = 55
    padded = batch._replace(obs=obs, actions=actions, returns=returns)
    losses = []
    for one in (batch, padded):
        rows = own.weights.clone().requires_grad_()
        loss = own.sequence_loss(rows, own.target, one, keys)
        losses.append((loss.detach(), torch.autograd.grad(loss.sum(), rows)[0]))
    assert torch.equal(losses[0][0], losses[1][0])
    assert torch.equal(losses[0][1], losses[1][1])
    assert losses[0][1].abs().sum() > 0


def test_a_stored_state_is_renewed_by_the_burn_in() -> None:
    """After a whole life of burn-in the features are those of a network that read the life from its beginning."""
    own, _ = learner(RECALL, burn_in=30)
    own.weights += 0.05
    keys = own.update_keys(slice(0, 2), 0)
    batch = sample_sequences(own.replay, 0, 2, keys[Stream.SAMPLE], own.sequences, np.full(2, 0.9))
    arrays = own.network.layout.arrays(own.weights)
    x = torch.nn.functional.pad(torch.from_numpy(batch.obs).float(), (0, own.network.inputs - batch.obs.shape[3]))
    features, _ = own.network.unroll(arrays, x, torch.from_numpy(batch.begun), torch.from_numpy(batch.memory))
    assert not batch.memory.any()  # windows reach back to the beginning of the life
    first = int(np.argmax(batch.begun[0, 0]))
    own_arrays = {name: array[:1] for name, array in arrays.items()}
    seen = x[:1, :1, first:]
    begun = torch.ones(seen.shape[:3], dtype=torch.bool)
    alone, _ = own.network.unroll(own_arrays, seen, begun, torch.zeros(1, 1, 8))
    torch.testing.assert_close(alone[0, 0], features[0, 0, first:])


def test_a_width_that_no_cell_can_have_is_one_sentence() -> None:
    with pytest.raises(Exception, match=r"body=gru has iqn\.layer=250: give a multiple of 8, e\.g\. iqn\.layer=256"):
        learner(RECALL, layer=250)
