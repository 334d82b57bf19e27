"""Red as a player in CAGE 2: bound by the original's rules, equal to the scripts when it makes their choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core import rng
from remuda.core.errors import ConfigError, UsageError
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.cage2.attacker import N_RED_ACTIONS, RED_FEATURES, decode_red, encode_red
from remuda.games.cage2.game import Cage2
from remuda.games.cage2.state import ESCALATE, EXPLOIT, REST, SCAN
from remuda.games.registry import find_game

BOTH = {"players": "both", "red": "learned"}


def start(worlds: int, seed: int = 0, **options: Any) -> Cage2:
    game = make_game(find_game("cage2"), options, list(range(worlds)))
    assert isinstance(game, Cage2)
    game.reset(np.arange(worlds), rng.keys(rng.key(seed, Stream.CHECK), np.arange(worlds)))
    return game


def blue_actions(turn: int, worlds: int) -> np.ndarray:
    draws = rng.uniforms(rng.keys(rng.key(9, Stream.CHECK), np.array([turn])), worlds)[0]
    return (draws * 145).astype(np.int64)[:, None]


@pytest.mark.parametrize("reds", [1, 3])
def test_it_keeps_every_promise_of_a_game(reds: int) -> None:
    options = {"players": "both", "red": ["learned", "b_line", "learned"], "reds": reds, "observation": "memory"}
    assert [f"{f.promise}: {f.problem}" for f in remuda.check("cage2", **options) if not f.good] == []


@pytest.mark.parametrize("red", ["b_line", "meander", "sleep"])
@pytest.mark.parametrize("rules", ["head", "leaderboard"])
def test_with_the_choices_of_a_script_it_plays_the_same_game(red: str, rules: str) -> None:
    worlds = 60
    scripted, driven = start(worlds, red=red, rules=rules), start(worlds, **BOTH, rules=rules)
    mask = np.zeros((worlds, 1, N_RED_ACTIONS), np.bool_)
    for turn in range(100):
        blue = blue_actions(turn, worlds)
        scripted.step([blue])
        choices = zip(scripted.state["red"].tolist(), scripted.state["red_target"].tolist(), strict=True)
        own = np.array([encode_red(verb, target) for verb, target in choices])
        driven.mask(1, 0, 1, mask)
        assert mask[np.arange(worlds), 0, own].all()
        driven.step([blue, own[:, None]])
        np.testing.assert_array_equal(driven.state, scripted.state)
    np.testing.assert_array_equal(driven.signals[0].rewards, scripted.signals[0].rewards)
    assert driven.over.all()


def test_red_gains_what_blue_loses() -> None:
    game = start(20, **BOTH, horizon="terminal")
    for turn in range(100):
        game.step([blue_actions(turn, 20), np.full((20, 1), turn % N_RED_ACTIONS)])
    blue, red = game.signals
    np.testing.assert_allclose(red.rewards, -blue.rewards, atol=1e-3)
    assert red.terminated.all()


def test_it_cannot_name_what_it_has_not_learned_of() -> None:
    """An attempt is a rest; at first it knows User0 and its subnet."""
    game = start(1, **BOTH)
    mask = np.zeros((1, 1, N_RED_ACTIONS), np.bool_)
    game.mask(1, 0, 1, mask)
    allowed = [decode_red(int(action)) for action in np.flatnonzero(mask[0, 0])]
    assert allowed == [(REST, 255), (1, 2), (SCAN, 8), (EXPLOIT, 8), (ESCALATE, 8)]
    game.step([np.zeros((1, 1), np.int64), np.full((1, 1), encode_red(SCAN, 7))])
    assert game.state["red"][0] == REST
    assert [decode_red(encode_red(*decode_red(action))) for action in range(N_RED_ACTIONS)] == [
        decode_red(action) for action in range(N_RED_ACTIONS)
    ]


def test_red_does_not_see_what_blue_does_unless_an_action_tells_it() -> None:
    quiet, busy = start(1, **BOTH), start(1, **BOTH)
    seen = [np.zeros((1, 1, RED_FEATURES), np.float32) for _ in range(2)]
    choices = [encode_red(1, 2), encode_red(SCAN, 9), encode_red(EXPLOIT, 9), 0, 0]
    for game, blue, out in ((quiet, 0, seen[0]), (busy, 132 + 9, seen[1])):
        for turn, choice in enumerate(choices):
            game.step([np.full((1, 1), blue if turn == 4 else 0), np.full((1, 1), choice)])
        game.observe(1, 0, 1, out)
    np.testing.assert_array_equal(seen[0], seen[1])
    for game, out in zip((quiet, busy), seen, strict=True):
        game.step([np.zeros((1, 1), np.int64), np.full((1, 1), encode_red(ESCALATE, 9))])
        game.observe(1, 0, 1, out)
    assert not (seen[0] == seen[1]).all()


def test_each_episode_draws_the_red_agent_that_plays() -> None:
    game = start(200, **BOTH, reds=3)
    alive = game.signals[1].alive
    assert (alive.sum(axis=1) == 1).all()
    assert alive.sum(axis=0).min() > 40
    again = start(200, **BOTH, reds=3)
    np.testing.assert_array_equal(alive, again.signals[1].alive)
    scripted = start(5, players="both", red="meander", reds=2)
    assert not scripted.signals[1].alive.any()


def test_blue_and_red_train_together_and_against_frozen_ones(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "players": "both", "observation": "memory", "actions": "compact", "learner": "ppo", "worlds": 8,
        "total_episodes": 16, "layers": [8], "steps": 10, "pictures": False, "quiet": True,
    }  # fmt: skip
    first = remuda.train("cage2", red=["b_line", "learned"], out=tmp_path / "first", **small)
    weights = {name: first.agent(agent) for agent, name in enumerate(("blue", "red"))}
    assert (weights["blue"].actions, weights["red"].actions) == (40, N_RED_ACTIONS)
    league = remuda.train(
        "cage2", red=["learned", "learned", "meander"], reds=2, out=tmp_path / "league",
        learners={2: f"frozen:{first.path}/1"}, **small,
    )  # fmt: skip
    assert league.finished
    cells = remuda.cage2_leaderboard(league, episodes=3).summary()["cells"]
    assert cells["sleep/100"]["mean"] <= 0
    scores = remuda.evaluate(league, 4, red="learned")
    assert scores.returns.sum() == pytest.approx(0.0, abs=1e-3)


def test_a_greedy_defender_plays_a_red_that_draws_its_actions(tmp_path: Path) -> None:
    """Only blue acts on what it sees first, which is the same in every episode; so a greedy one begins alike."""
    run = remuda.train(
        "cage2", learner="ppo", players="both", red="learned", observation="memory", actions="compact", steps=1,
        worlds=8, total_episodes=8, layers=[8], out=tmp_path / "run", pictures=False, quiet=True,
    )  # fmt: skip

    def decoys(exploration: float | None, *sampled: str) -> set[float]:
        """How many decoys blue places in the first step, in any of 40 episodes."""
        scores = remuda.evaluate(run, 40, exploration, sampled=sampled)
        return {*scores.metrics["decoys"][:, 0].tolist()}

    assert len(decoys(0.0)) == 1
    assert len(decoys(0.0, "red")) == 1
    assert len(decoys(0.0, "blue")) == 2
    both = remuda.evaluate(run, 40, sampled=["blue", "red"], steps=20)
    np.testing.assert_array_equal(both.returns, remuda.evaluate(run, 40, None, steps=20).returns)
    assert (both.metrics["decoys"][:, 0] != remuda.evaluate(run, 40, steps=20).metrics["decoys"][:, 0]).any()
    with pytest.raises(UsageError, match="reds"):
        remuda.evaluate(run, 1, sampled=["reds"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"red": "learned"}, "say players=both"), ({"players": "both", "simulator": "cyborg"}, "for simulator=own")],
)
def test_contradictions_are_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_game(find_game("cage2"), options, [0])
