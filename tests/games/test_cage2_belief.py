"""Blue's belief in CAGE 2: Bayes' rule from what blue saw and did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.cage2.game import Cage2
from remuda.games.cage2.network import N_HOSTS
from remuda.games.cage2.truth import TRUTH_FEATURES, TRUTH_PER_HOST
from remuda.games.registry import find_game

ROOT = np.arange(N_HOSTS) * TRUTH_PER_HOST  # features that say whether red is root on each host


def start(worlds: int, **options: Any) -> Cage2:
    game = make_game(find_game("cage2"), {"red": "mixed", **options}, list(range(worlds)))
    assert isinstance(game, Cage2)
    game.reset(np.arange(worlds), rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds)))
    return game


def observe(game: Cage2) -> NDArray[np.float32]:
    out = np.zeros((game.worlds, 1, TRUTH_FEATURES), np.float32)
    game.observe(0, 0, 1, out)
    return out[:, 0]


def random_actions(turn: int, worlds: int) -> NDArray[np.int64]:
    """Any of the 145, but repairs in half of all turns: they hide most."""
    draws = rng.uniforms(rng.keys(rng.key(5, Stream.CHECK), np.array([turn])), 2 * worlds)[0].reshape(2, worlds)
    return np.where(draws[0] < 0.5, draws[1] * 145, 132 + draws[1] * 13).astype(np.int64)[:, None]


@pytest.mark.parametrize("rules", ["leaderboard", "head"])
def test_the_truth_is_always_possible_and_as_likely_as_said(rules: str) -> None:
    worlds = 120
    believing, knowing = (start(worlds, observation=name, rules=rules) for name in ("belief", "truth"))
    said, true = [], []
    for turn in range(60):
        actions = random_actions(turn, worlds)
        for game in (believing, knowing):
            game.step([actions])
        belief, truth = observe(believing), observe(knowing)
        assert belief.max() <= 1
        assert not ((belief < 1e-7) & (truth > 0)).any()
        said.append(belief[:, ROOT])
        true.append(truth[:, ROOT])
    p, y = np.array(said), np.array(true)
    unsure = (p > 0.01) & (p < 0.99)
    assert unsure.sum() > 200
    # Summed over a world's turns, which depend on each other; worlds do not.
    errors = np.where(unsure, y - p, 0.0).sum(axis=(0, 2))
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(worlds)


def test_worlds_in_which_blue_saw_and_did_the_same_have_the_same_belief() -> None:
    worlds = 300
    game = start(worlds, observation="belief")
    histories: list[bytes] = [b""] * worlds
    twins = 0
    for turn in range(20):
        game.step([np.repeat(random_actions(turn, 1), worlds, axis=0)])
        belief, first = observe(game), dict[bytes, int]()
        for w in range(worlds):
            histories[w] += game.episode.bits[w].tobytes()
            twin = first.setdefault(histories[w], w)
            np.testing.assert_array_equal(belief[w], belief[twin])
            twins += bool((game.state[twin]["root"] != game.state[w]["root"]).any())
    assert twins > 10  # they differed in what blue cannot see


def test_against_an_unknown_red_blue_still_knows_its_own_decoys() -> None:
    worlds = 20
    game = start(worlds, observation="belief", players="both", red="learned")
    for turn in range(40):
        draws = rng.uniforms(rng.keys(rng.key(6, Stream.CHECK), np.array([turn])), worlds)[0]
        game.step([random_actions(turn, worlds), (draws * 44).astype(np.int64)[:, None]])
    believed = game.belief.hypotheses["network"]["decoys"][:, 0]
    np.testing.assert_array_equal(believed, game.state["decoys"])


def test_green_users_are_refused() -> None:
    with pytest.raises(ConfigError, match="observation=belief goes with green=false"):
        start(1, observation="belief", green=True)
