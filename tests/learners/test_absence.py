"""Agents that leave and come back: the values that are learned, against values computed by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import Learner, LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.learners.iqn.learner import IQN
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.rounds import gather_rounds
from remuda.learners.transitions import find_transitions
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing import ERRANDS

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from a2c import A2C
from dqn import DQN

AWAY, GAMMA, TURNS, WORLDS = 3, 0.8, 30, 4
LEAVING = (1 + GAMMA ** (AWAY + 1) * 2) / (1 - GAMMA ** (AWAY + 2))
STAYING = 2 + GAMMA * LEAVING
VIEWS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
LEARNERS: dict[str, tuple[type[Learner], dict[str, Any]]] = {
    "iqn": (IQN, {"layer": 16, "frames": 1, "n_step": 2, "tau": 0.05, "lr": 0.01, "sigma": 0.0, "quantiles": 4}),
    "ppo": (PPO, {"layers": [16], "lr": 0.02, "minibatches": 2, "passes": 8, "normalise_values": False}),
    "ppo with a memory": (PPO, {"body": "gru", "features": 8, "layers": [16], "lr": 0.02, "normalise_values": False}),
    "dqn": (DQN, {"lr": 0.01, "tau": 0.05}),
    "a2c": (A2C, {"lr": 0.02, "passes": 8, "grad_clip": 5.0}),
}
SLOWER = dict.fromkeys(("ppo with a memory", "dqn", "a2c"), pytest.mark.promise)


def learned(name: str, rounds: int) -> tuple[Learner, Fragment]:
    """The learner after some rounds of Errands, and the last round."""
    kind, options = LEARNERS[name]
    game = make_game(ERRANDS, {"agents": 1, "turns": TURNS, "away": AWAY}, range(WORLDS))
    group, own = game.spec.groups[0], kind.options_type()(**{"gamma": GAMMA, **options})
    learner = kind(LearnerContext(group, 0, 0, 1, 0, 1, TURNS, WORLDS, 100 * rounds), own)
    policy = kind.make_policy(group, 1, own, "fp32", "cpu")
    rollout = Rollout(game, [PolicyBinding(0, 0, 1, policy)], RolloutConfig(1, WORLDS))
    for number in range(rounds):
        policy.load(learner.rows(), number)
        rollout.start(Task(tuple(range(number * WORLDS, (number + 1) * WORLDS))))
        (fragment,) = rollout.play(rollout.empty_fragments())
        learner.take(fragment)
        learner.update(20)
    return learner, fragment


def values(learner: Any, fragment: Fragment) -> np.ndarray:
    """What the learner thinks that (1, 0) and (0, 1) are worth."""
    if isinstance(learner, IQN):
        taus = torch.linspace(0.05, 0.95, 8).repeat(2)[None]
        x = torch.nn.functional.pad(VIEWS[None], (0, learner.network.inputs - 2))
        arrays = learner.network.layout.arrays(learner.weights)
        q = learner.network.quantiles(arrays, learner.network.features(arrays, x), taus, None)
        return q.mean(dim=(2, 3))[0].detach().numpy()
    if isinstance(learner, PPO):
        (own,) = gather_rounds([fragment], learner.context.in_turn, learner.network, learner.weights)
        plain, _ = learner.learning(own).values()
        mean, std = learner.value_moments()[0]
        stacks = own.rows.stacks[0]
        return np.array([(plain[0] * std + mean)[stacks[:, i] == 1].mean() for i in range(2)])
    with torch.no_grad():
        if isinstance(learner, A2C):
            return learner.module.call(learner.logits_and_values, (learner.weights[0],), VIEWS[:, None])[1].numpy()
        return learner.module.call(learner.q_values, (learner.weights[0],), VIEWS[:, None]).mean(dim=1).numpy()


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOWER.get(name, ())) for name in LEARNERS])
def test_the_learned_values_are_those_computed_by_hand(name: str) -> None:
    """Time goes on while an agent is away, and what it is shown then is not worth anything."""
    found = values(*learned(name, rounds=40))
    np.testing.assert_allclose(found, [LEAVING, STAYING], rtol=0.05)


def test_nothing_is_learned_from_an_action_whose_outcome_nobody_saw() -> None:
    _, fragment = learned("ppo", rounds=1)
    found = find_transitions(fragment, in_turn=False)
    seen = fragment.obs[fragment.before :]
    views = np.take_along_axis(seen[..., 0], found.after, axis=0)[found.learnable]
    assert set(views.tolist()) == {0.0, 1.0}  # never what is shown to who is away
    unknown = fragment.alive & ~found.learnable
    assert np.array_equal(unknown.sum(axis=0), fragment.away.astype(int))
    assert set(found.elapsed[found.learnable].tolist()) == {1, AWAY + 1}
    waiting = find_transitions(fragment, in_turn=True)
    assert np.array_equal(waiting.after, found.after)
    assert set(waiting.elapsed.reshape(-1).tolist()) == {1}
