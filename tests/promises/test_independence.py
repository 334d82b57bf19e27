"""Invariant 1: whatever changes for one agent, the others keep every bit. Every learner has to hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.fragment import Fragment, copy_fragment
from remuda.core.game import GameEntry, make_game
from remuda.core.learner import Learner, LearnerContext
from remuda.core.policy import PolicyBinding, PolicyInput
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.learners.registry import SHIPPED_LEARNERS, find_learner
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing import ERRANDS, RESPAWN
from remuda.testing.odd_games import BRIGHT_ROW, LEVERS, STEERING
from remuda.testing.recall import RECALL

AGENTS, WORLDS, TURNS, UPDATES, ROUNDS = 5, 3, 12, 3, 3
OTHERS = [0, 1, 3, 4]  # all but agent 2
GAME = {"agents": AGENTS, "height": 7, "width": 7, "turns": TURNS, "spawn": 0.2}
SMALL: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 12, "frames": 2, "quantiles": 3, "acting_quantiles": 3, "batch_size": 8, "replay_size": 100},
    "ppo": {"layers": [12, 10], "frames": 2, "passes": 2, "minibatches": 2, "normalise_observations": True},
    "dqn:DQN": {"hidden": 12, "frames": 2, "batch_size": 8, "replay_size": 100},
    "a2c:A2C": {"hidden": 12, "frames": 2, "passes": 2, "minibatches": 2},
}
DEFAULT: dict[str, dict[str, Any]] = {
    "iqn": {"replay_size": 200},
    "ppo": {},
    "dqn:DQN": {"replay_size": 200},
    "a2c:A2C": {},
}
Arrays = dict[str, NDArray[Any]]

each_learner = pytest.mark.parametrize("name", SMALL)


def test_every_shipped_learner_is_tested() -> None:
    assert set(SMALL) == set(DEFAULT) >= set(SHIPPED_LEARNERS)


def make(name: str, first: int = 0, last: int = AGENTS, **options: Any) -> Learner:
    """A learner of agents first … last-1."""
    group = make_game(find_game("treasurehunt"), GAME, [0]).spec.groups[0]
    context = LearnerContext(group, 0, first, last, first, 0, TURNS, WORLDS, ROUNDS * UPDATES)
    own = find_learner(name)
    return own(context, own.options_type().read(options or SMALL[name], f"learner {name}"))


@cache
def _played(name: str, frames: int) -> list[Fragment]:
    """Three rounds played with initial weights."""
    own = make(name, **{**SMALL[name], "frames": frames})
    policy = own.make_policy(own.context.group, AGENTS, own.options, "fp32", "cpu")
    policy.load(own.rows(), 0)
    game = make_game(find_game("treasurehunt"), GAME, range(WORLDS))
    rollout = Rollout(game, [PolicyBinding(0, 0, AGENTS, policy)], RolloutConfig(0, WORLDS))
    result = []
    for first in range(0, ROUNDS * WORLDS, WORLDS):
        rollout.start(Task(tuple(range(first, first + WORLDS))))
        result.append(rollout.play(rollout.empty_fragments())[0])
    return result


def fragments(name: str, change: Callable[[Fragment], None] = lambda fragment: None, frames: int = 2) -> list[Fragment]:
    """One fragment per round, each with a change."""
    rounds = [copy_fragment(fragment) for fragment in _played(name, frames)]
    for fragment in rounds:
        change(fragment)
    return rounds


def train(own: Learner, rounds: Sequence[Fragment]) -> Arrays:
    """State, report and rows of all agents after some rounds of updates."""
    with one_thread_each():
        for fragment in rounds:
            own.take(own.context.select([fragment]))
            own.update(UPDATES)
            report = own.report()
    return {name: array.copy() for name, array in {**own.state(), **report, "rows": own.rows()}.items()}


@cache
def baseline(name: str) -> Arrays:
    """What is learned from unchanged data."""
    return train(make(name), fragments(name))


def assert_others_unchanged(result: Arrays, expected: Arrays) -> None:
    for name, array in expected.items():
        assert array[OTHERS].tobytes() == result[name][OTHERS].tobytes(), name


def assert_changed(result: Arrays, expected: Arrays, name: str = "weights") -> None:
    assert result[name][2].tobytes() != expected[name][2].tobytes(), "the change did nothing"


KINDS: dict[str, tuple[GameEntry, str, dict[str, Any]]] = {
    "iqn with gru": (RESPAWN, "iqn", {"body": "gru", "layer": 8, "batch_size": 8, "sequence": 3, "burn_in": 2}),
    "ppo with gru": (RECALL, "ppo", {"body": "gru", "features": 8, "layers": [8], "sequence": 4}),
    "ppo with lstm": (RESPAWN, "ppo", {"body": "lstm", "features": 8, "layers": [8], "sequence": 3}),
    "ppo, absences": (ERRANDS, "ppo", {"layers": [8], "frames": 2}),
    "ppo on box": (STEERING, "ppo", {"layers": [8]}),
    "ppo on box, a predicted spread": (STEERING, "ppo", {"layers": [8], "spread": "predicted"}),
    "ppo on multidiscrete": (LEVERS, "ppo", {"layers": [8]}),
    "ppo on box with gru": (STEERING, "ppo", {"body": "gru", "features": 8, "layers": [8], "sequence": 4}),
    "iqn with lstm, absences": (ERRANDS, "iqn", {"body": "lstm", "layer": 8, "batch_size": 4, "sequence": 3}),
    "ppo with cnn": (BRIGHT_ROW, "ppo", {"body": "cnn", "features": 8, "layers": [8]}),
    "iqn with cnn": (BRIGHT_ROW, "iqn", {"body": "cnn", "layer": 8, "batch_size": 8}),
    "ppo with a privileged critic": (RECALL, "ppo", {"layers": [8], "critic": "both"}),
    "ppo with gru and a privileged critic": (
        RECALL,
        "ppo",
        {"body": "gru", "features": 8, "layers": [8], "critic": "state"},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_policy_is_independent(kind: str) -> None:
    """Other rewards of the second agent change its own bits alone, and slices learn what the herd learns."""
    entry, name, options = KINDS[kind]
    small = {"agents": 3, "turns": 9}
    spec, own = make_game(entry, small, [0]).spec, find_learner(name)
    given = own.options_type().read({"minibatches": 2, **options} if name == "ppo" else options, name)

    def made(first: int, last: int) -> Learner:
        context = LearnerContext(spec.groups[0], 0, first, last, first, 0, spec.turns, WORLDS, 9)
        return own(context, given)

    policy = own.make_policy(spec.groups[0], 3, given, "fp32", "cpu")
    policy.load(made(0, 3).rows(), 0)
    rollout = Rollout(
        make_game(entry, small, range(WORLDS)), [PolicyBinding(0, 0, 3, policy)], RolloutConfig(0, WORLDS)
    )
    rollout.start(Task(tuple(range(WORLDS))))
    (played,) = rollout.play(rollout.empty_fragments())
    changed = copy_fragment(played)
    changed.rewards[:, :, 1] += 3
    whole, other = train(made(0, 3), [played]), train(made(0, 3), [changed])
    parts = [train(made(0, 1), [played]), train(made(1, 3), [played])]
    assert whole["weights"][1].tobytes() != other["weights"][1].tobytes()
    for key, array in whole.items():
        assert array[[0, 2]].tobytes() == other[key][[0, 2]].tobytes(), key
        assert np.concatenate([part[key] for part in parts]).tobytes() == array.tobytes(), key


def flip_observations(fragment: Fragment) -> None:
    fragment.obs[:, :, 2] = 1 - fragment.obs[:, :, 2]


def raise_rewards(fragment: Fragment) -> None:
    fragment.rewards[:, :, 2] += 1000 * (1 + np.arange(TURNS)[:, None])


def nan_rewards(fragment: Fragment) -> None:
    fragment.rewards[:, :, 2] = np.nan


def change_actions(fragment: Fragment) -> None:
    fragment.actions[:, :, 2] = 3 - fragment.actions[:, :, 2]


def die_early(fragment: Fragment) -> None:
    fragment.terminated[4, :, 2] = True
    fragment.alive[5:, :, 2] = False


def never_alive(fragment: Fragment) -> None:
    fragment.alive[:, :, 2] = False


CHANGES = [flip_observations, raise_rewards, nan_rewards, change_actions, die_early, never_alive]


@pytest.mark.parametrize("change", CHANGES)
@each_learner
def test_another_agents_data(name: str, change: Callable[[Fragment], None]) -> None:
    result = train(make(name), fragments(name, change))
    assert_others_unchanged(result, baseline(name))
    assert_changed(result, baseline(name))


@pytest.mark.parametrize(
    ("name", "option", "plain", "column"),
    [
        ("iqn", "lr", 2.5e-4, "weights"), ("iqn", "gamma", 0.99, "weights"), ("iqn", "epsilon", 0.5, "rows"),
        ("ppo", "lr", 2.5e-4, "weights"), ("ppo", "gamma", 0.99, "weights"), ("ppo", "entropy", 0.5, "weights"),
        ("ppo", "passes", 2, "weights"), ("a2c:A2C", "passes", 2, "weights"),
        ("dqn:DQN", "lr", 2.5e-4, "weights"), ("dqn:DQN", "epsilon", 0.5, "rows"),
        ("a2c:A2C", "entropy", 0.5, "weights"), ("a2c:A2C", "gamma", 0.99, "weights"),
    ],
)  # fmt: skip
def test_another_agents_options(name: str, option: str, plain: float, column: str) -> None:
    expected = train(make(name, **{**SMALL[name], option: plain}), fragments(name))
    half = type(plain)(plain / 2)
    values = [plain, plain, half, plain, plain]
    result = train(make(name, **{**SMALL[name], option: values}), fragments(name))
    assert_others_unchanged(result, expected)
    assert_changed(result, expected, column)


@each_learner
def test_another_agents_first_weights(name: str) -> None:
    own = make(name)
    state = {key: array.copy() for key, array in own.state().items()}
    state["weights"][2] *= 3
    if "target" in state:
        state["target"][2] *= -1
    own.restore(state)
    result = train(own, fragments(name))
    assert_others_unchanged(result, baseline(name))
    assert_changed(result, baseline(name))


@each_learner
def test_another_agents_nan_weights(name: str) -> None:
    own = make(name)
    own.weights[2] = np.nan
    assert_others_unchanged(train(own, fragments(name)), baseline(name))


@pytest.mark.parametrize("edges", [(0, 2, 5), (0, 1, 2, 3, 4, 5), (0, 4, 5)])
@each_learner
def test_slices_of_the_herd_learn_the_same_bits_as_the_herd(name: str, edges: tuple[int, ...]) -> None:
    parts = [train(make(name, a, b), fragments(name)) for a, b in pairwise(edges)]
    for key, array in baseline(name).items():
        assert np.concatenate([part[key] for part in parts]).tobytes() == array.tobytes(), key


@pytest.mark.promise
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@each_learner
def test_default_networks_learn_the_same_bits_stacked_and_alone(name: str, precision: str) -> None:
    options = find_learner(name).options_type().read(DEFAULT[name], f"learner {name}")
    rounds = fragments(name, frames=options.frames)[:2]

    def own(first: int, last: int) -> Learner:
        small = make(name, first, last)
        return find_learner(name)(dataclasses.replace(small.context, precision=precision), options)

    whole = train(own(0, 3), rounds)
    for agent in range(3):
        alone = train(own(agent, agent + 1), rounds)
        assert alone["rows"][0].tobytes() == whole["rows"][agent].tobytes()


@each_learner
def test_agents_choose_actions_from_their_own_rows(name: str) -> None:
    own = make(name)
    policy = own.make_policy(own.context.group, AGENTS, own.options, "fp32", "cpu")
    fragment = fragments(name)[0]
    keys = rng.keys(rng.keys(rng.key(0, Stream.CHECK), np.arange(WORLDS))[:, None], np.arange(AGENTS))
    inputs = PolicyInput(fragment.obs[4:6], np.full((WORLDS, AGENTS), 5), None, keys, 0.0)

    def choose(change: float) -> NDArray[np.int64]:
        rows = own.rows()
        rows[2] += change * rng.uniforms(rng.keys(rng.key(0, Stream.CHECK), np.arange(1)), rows.shape[1])[0]
        policy.load(rows, 0)
        return policy.act(inputs, 0, AGENTS).actions

    expected = choose(0.0)
    changed = [choose(change) for change in (-3.0, -1.0, 1.0, 3.0)]
    assert all((actions[:, OTHERS] == expected[:, OTHERS]).all() for actions in changed)
    assert any((actions[:, 2] != expected[:, 2]).any() for actions in changed), "the change did nothing"
