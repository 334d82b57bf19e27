"""The privileged state: critics see it, actors never do, and what a fragment has of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remuda.core.errors import ConfigError
from remuda.core.fragment import Fragment
from remuda.core.game import Group, make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.rounds import gather_rounds
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing.recall import RECALL, Recall

SMALL: dict[str, Any] = {"agents": 2, "symbols": 3, "delay": 2, "turns": 7}
OPTIONS = PPOOptions(layers=[8], critic="both", minibatches=2, normalise_observations=True)


def learner(**options: Any) -> PPO:
    group = make_game(RECALL, SMALL, [0]).spec.groups[0]
    own = OPTIONS.model_copy(update=options)
    return PPO(LearnerContext(group, 0, 0, group.size, 0, 1, 7, 4, 100), own)


def play(own: PPO, worlds: int = 4, parallel: bool = True) -> Fragment:
    policy = PPO.make_policy(own.context.group, 2, own.options, "fp32", "cpu")
    policy.load(own.rows(), 0)
    game = make_game(RECALL, SMALL, range(worlds))
    rollout = Rollout(game, [PolicyBinding(0, 0, 2, policy)], RolloutConfig(1, worlds, parallel))
    rollout.start(Task(tuple(range(worlds))))
    return rollout.play(rollout.empty_fragments())[0]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_fragment_has_the_state_beside_every_observation(parallel: bool) -> None:
    fragment = play(learner(), parallel=parallel)
    assert fragment.state is not None
    assert fragment.state.shape == (8, 4, 2, 3)
    assert not fragment.state[:2].any()
    assert np.array_equal(fragment.state[2:7], fragment.obs[:5])  # the symbols shown two turns before


def test_a_fragment_has_no_state_unless_a_learner_reads_it() -> None:
    assert play(learner(critic="obs")).state is None


@pytest.mark.parametrize("critic", ["state", "both"])
def test_only_the_critic_depends_on_the_state(critic: str) -> None:
    own, other = learner(critic=critic), learner(critic=critic)
    fragment = play(own)
    assert fragment.state is not None
    changed = Fragment(**{**vars(fragment), "state": 1 - fragment.state})
    values = []
    for each, data in ((own, fragment), (other, changed)):
        (one,) = gather_rounds([data], False, each.network, each.weights)
        values.append(each.learning(one).values()[0])
    assert not np.array_equal(*values)
    sizes = {entry.name: entry.shape for entry in own.network.layout.entries}
    assert sizes["actor.0.weight"] == (8, 3)
    assert sizes["critic.0.weight"] == (8, 6 if critic == "state" else 9)


def test_observations_and_states_are_normalised_together_or_by_hand() -> None:
    own = learner(minibatches=1, passes=1)
    fragment = play(own)
    own.take(fragment)
    own.update(1)
    rows = own.network.layout.unpack(own.rows()[0])
    raw = own.network.layout.unpack(own.weights[0].numpy())
    state, obs = fragment.state, fragment.obs[:-1, :, 0].reshape(-1, 3)
    assert state is not None
    x = np.concatenate([obs, state[:-1].reshape(-1, 6)], axis=1).astype(np.float64)
    std = np.where(x.std(axis=0) < 1e-3, 1.0, x.std(axis=0))
    expected = (x - x.mean(axis=0)) / std @ raw["critic.0.weight"].T + raw["critic.0.bias"]
    np.testing.assert_allclose(x @ rows["critic.0.weight"].T + rows["critic.0.bias"], expected, atol=1e-5)


def test_a_game_without_a_state_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="critic=state needs a privileged state"):
        PPONetwork(Group("all", 1, (3,), np.float32, 2), PPOOptions(critic="state"), "fp32", "cpu")


def test_a_state_that_is_not_finite_is_an_invalid_sample() -> None:
    class Infinite(Recall):
        def observe_state(self, group: int, out: Any) -> None:
            out[:] = 0
            out[self.turn == 3] = np.nan

    game = Infinite(RECALL.options(**SMALL), [0, 1])
    object.__setattr__(game.spec.groups[0], "state_dtype", np.float32)
    policy = PPO.make_policy(game.spec.groups[0], 2, OPTIONS, "fp32", "cpu")
    policy.load(learner().rows(), 0)
    rollout = Rollout(game, [PolicyBinding(0, 0, 2, policy)], RolloutConfig(1, 2))
    rollout.start(Task((0, 1)))
    (fragment,) = rollout.play(rollout.empty_fragments())
    assert [(s.world, s.turn) for s in rollout.invalid_samples] == [(0, 3), (0, 3), (1, 3), (1, 3)]
    assert not fragment.alive.any()
    assert fragment.state is not None
    assert np.isfinite(fragment.state).all()
