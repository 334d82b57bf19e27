"""Invariant 1: change anything of one agent and the others keep every bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import Learner, LearnerContext
from remuda.core.policy import PolicyInput
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.learners.iqn.learner import IQN
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

AGENTS, WORLDS, TURNS, UPDATES = 5, 3, 12, 3
OTHERS = [0, 1, 3, 4]  # everybody but agent 2
SMALL = {"layer": 12, "frames": 2, "quantiles": 3, "acting_quantiles": 3, "batch_size": 8, "memory": 100}
GAME = {"agents": AGENTS, "height": 7, "width": 7, "turns": TURNS, "spawn": 0.2}
ROUNDS = 3


def fragments() -> list[Fragment]:
    """Three rounds of random play."""
    game = make_game(find_game("treasurehunt"), GAME, range(WORLDS))
    player = Rollout(game, random_bindings(game), RolloutConfig(0, WORLDS))
    result = []
    for first in range(0, ROUNDS * WORLDS, WORLDS):
        player.start(Task(tuple(range(first, first + WORLDS))))
        result.append(player.play(player.empty_fragments())[0])
    return result


def learner(first: int = 0, last: int = AGENTS, **options: Any) -> Learner:
    group = make_game(find_game("treasurehunt"), GAME, [0]).spec.groups[0]
    context = LearnerContext(group, 0, first, last, first, 0, TURNS, WORLDS, ROUNDS * UPDATES)
    return IQN(context, IQN.options_type().read({**SMALL, **options}, "learner iqn"))


def teach(student: Learner, rounds: Sequence[Fragment]) -> dict[str, NDArray[Any]]:
    """Everything the agents are and report after some rounds of updates."""
    with one_thread_each():
        for fragment in rounds:
            student.take(student.context.select([fragment]))
            student.update(UPDATES)
            report = student.report()
    return {name: array.copy() for name, array in {**student.state(), **report, "rows": student.rows()}.items()}


def altered(change: Callable[[Fragment], None]) -> list[Fragment]:
    rounds = fragments()
    for fragment in rounds:
        change(fragment)
    return rounds


def assert_others_kept(result: dict[str, NDArray[Any]], usual: dict[str, NDArray[Any]]) -> None:
    for name, array in usual.items():
        assert array[OTHERS].tobytes() == result[name][OTHERS].tobytes(), name


def flip_observations(fragment: Fragment) -> None:
    fragment.obs[:, :, 2] = 1 - fragment.obs[:, :, 2]


def pay_more(fragment: Fragment) -> None:
    fragment.rewards[:, :, 2] += 1000


def pay_nan(fragment: Fragment) -> None:
    fragment.rewards[:, :, 2] = np.nan


def act_otherwise(fragment: Fragment) -> None:
    fragment.actions[:, :, 2] = 3 - fragment.actions[:, :, 2]


def die_early(fragment: Fragment) -> None:
    fragment.terminated[4, :, 2] = True
    fragment.alive[5:, :, 2] = False


def never_live(fragment: Fragment) -> None:
    fragment.alive[:, :, 2] = False


@pytest.fixture(scope="module")
def usual() -> dict[str, NDArray[Any]]:
    return teach(learner(), fragments())


@pytest.mark.parametrize("change", [flip_observations, pay_more, pay_nan, act_otherwise, die_early, never_live])
def test_another_agents_data(usual: dict[str, NDArray[Any]], change: Callable[[Fragment], None]) -> None:
    result = teach(learner(), altered(change))
    assert_others_kept(result, usual)
    assert result["weights"][2].tobytes() != usual["weights"][2].tobytes(), "the change did nothing"


@pytest.mark.parametrize(
    ("option", "plain", "column"), [("lr", 2.5e-4, "weights"), ("gamma", 0.99, "weights"), ("epsilon", 0.5, "rows")]
)
def test_another_agents_options(option: str, plain: float, column: str) -> None:
    usual = teach(learner(**{option: plain}), fragments())
    result = teach(learner(**{option: [plain, plain, plain / 2, plain, plain]}), fragments())
    assert_others_kept(result, usual)
    assert result[column][2].tobytes() != usual[column][2].tobytes(), "the change did nothing"


def test_another_agents_first_weights(usual: dict[str, NDArray[Any]]) -> None:
    student = learner()
    state = {name: array.copy() for name, array in student.state().items()}
    state["weights"][2] *= 3
    state["target"][2] *= -1
    student.restore(state)
    result = teach(student, fragments())
    assert_others_kept(result, usual)
    assert result["weights"][2].tobytes() != usual["weights"][2].tobytes(), "the change did nothing"


def test_another_agents_broken_weights(usual: dict[str, NDArray[Any]]) -> None:
    student = learner()
    student.weights[2] = np.nan
    assert_others_kept(teach(student, fragments()), usual)


@pytest.mark.parametrize("edges", [(0, 2, 5), (0, 1, 2, 3, 4, 5), (0, 4, 5)])
def test_slices_of_the_herd_learn_what_the_herd_learns(usual: dict[str, NDArray[Any]], edges: tuple[int, ...]) -> None:
    rounds = fragments()
    parts = [teach(learner(a, b), rounds) for a, b in pairwise(edges)]
    for name, array in usual.items():
        assert np.concatenate([part[name] for part in parts]).tobytes() == array.tobytes(), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_default_networks_learn_stacked_what_they_learn_alone(precision: str) -> None:
    default = {**dict.fromkeys(SMALL), "layer": 250, "frames": 5, "quantiles": 12, "acting_quantiles": 8}
    default = {**default, "batch_size": 64, "memory": 200}
    rounds = fragments()[:2]

    def at_precision(first: int, last: int) -> Learner:
        plain = learner(first, last, **default)
        return IQN(dataclasses.replace(plain.context, precision=precision), plain.options)

    whole = teach(at_precision(0, 3), rounds)
    for agent in range(3):
        alone = teach(at_precision(agent, agent + 1), rounds)
        assert alone["rows"][0].tobytes() == whole["rows"][agent].tobytes()


def test_agents_choose_by_their_own_rows() -> None:
    student = learner(epsilon=0.0)
    policy = IQN.make_policy(student.context.group, AGENTS, student.options, "fp32", "cpu")
    fragment = fragments()[0]
    keys = rng.keys(rng.keys(rng.key(0, Stream.CHECK), np.arange(WORLDS))[:, None], np.arange(AGENTS))
    inputs = PolicyInput(fragment.obs[4:6], np.full((WORLDS, AGENTS), 5), None, keys, 0.0)

    def choose(change: float) -> NDArray[np.int64]:
        rows = student.rows()
        rows[2, :-1] += change * rng.uniforms(rng.keys(rng.key(0, Stream.CHECK), np.arange(1)), rows.shape[1] - 1)[0]
        policy.load(rows, 0)
        return policy.act(inputs, 0, AGENTS).actions

    usual = choose(0.0)
    others = [choose(change) for change in (-3.0, -1.0, 1.0, 3.0)]
    assert all((actions[:, OTHERS] == usual[:, OTHERS]).all() for actions in others)
    assert any((actions[:, 2] != usual[:, 2]).any() for actions in others), "the change did nothing"
