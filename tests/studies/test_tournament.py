"""Tournaments: everybody meets everybody in every place, and the order of the words does not matter."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec, Group
from remuda.studies.tournament.entrants import Entrant
from remuda.studies.tournament.matches import arrangements, choose_pairs
from remuda.studies.tournament.rating import SCALE, connected, pair_counts, rate

Train = Callable[..., remuda.Run]


def spec(*sizes: int) -> GameSpec:
    groups = tuple(Group(f"g{i}", size, (3,), "float32", 2, ("m",)) for i, size in enumerate(sizes))
    return GameSpec("any", groups, 5)


def test_every_place_is_focal_equally_often() -> None:
    assert arrangements(spec(2), None) == [[0], [1]]
    assert arrangements(spec(1), None) == [[0]]
    assert sorted(place for own in arrangements(spec(5), None) for place in own) == sorted([*range(5)] * 2)
    assert sorted(place for own in arrangements(spec(4), 1) for place in own) == [0, 1, 2, 3]
    assert arrangements(spec(2, 3), None) == [[0, 1], [2, 3, 4]]
    with pytest.raises(ConfigError, match="--focal 4"):
        arrangements(spec(4), 4)


def test_a_part_of_the_pairs_is_drawn_by_the_seed() -> None:
    entrants = [Entrant(name) for name in "abcdefgh"]
    some = choose_pairs(entrants, 7, seed=1, self_play=False)
    assert len(some) == 7
    assert some == choose_pairs(entrants, 7, seed=1, self_play=False)
    assert some != choose_pairs(entrants, 7, seed=2, self_play=False)
    assert len(choose_pairs(entrants, None, seed=1, self_play=True)) == 28 + 8


def test_ratings_find_the_strengths_that_made_the_games() -> None:
    """From 2,000 games of each pair the true strengths are found, and the intervals are as wide as they should be."""
    draw = np.random.default_rng(1)
    truth = np.array([0.8, 0.2, -0.1, -0.9])
    covered = []
    for _ in range(100):
        results = []
        for i in range(4):
            for j in range(i):
                chance = 1 / (1 + np.exp(truth[j] - truth[i]))
                results.append((i, j, float(draw.binomial(200, chance)), 200))
        found = rate(*pair_counts(4, results))
        assert sum(own.value for own in found) == pytest.approx(0, abs=1e-6)
        covered += [own.low <= strength * SCALE <= own.high for own, strength in zip(found, truth, strict=True)]
    assert 0.9 < np.mean(covered) < 0.99


def test_an_entrant_without_a_loss_has_a_finite_rating() -> None:
    wins, games = pair_counts(2, [(0, 1, 10.0, 10)])
    first, second = rate(wins, games)
    assert 0 < first.value < 1000
    assert first.value == pytest.approx(-second.value)
    assert connected(games)
    assert not connected(pair_counts(3, [(0, 1, 1.0, 2)])[1])


@pytest.mark.promise
def test_the_order_of_the_words_changes_nothing(trained: Train, cli: Any, tmp_path: Path) -> None:
    runs = [trained(), trained(seed=1)]
    words = [str(runs[0].path), f"{runs[1].path}/0@best", "random"]
    results = []
    for order in list(permutations(words))[:3]:
        done = cli("tournament", *order, "--episodes", 6, "--json", "--out", tmp_path / "out")
        assert done.code == 0, done.err
        results.append(json.loads(done.out))
    assert results[0] == results[1] == results[2]
    found = results[0]
    assert len(found["entrants"]) == 3
    assert len(found["matches"]) == 9
    assert sum(own["rating"] for own in found["entrants"]) == pytest.approx(0, abs=1e-6)
    shares = {(own["entrant"], own["opponent"]): own["win_share"] for own in found["matches"]}
    assert all(shares[a, b] == pytest.approx(1 - shares[b, a]) for a, b in shares if a != b)
    page = (tmp_path / "out" / "tournament.html").read_text()
    assert page.count("<svg") == 2
    assert {path.name for path in (tmp_path / "out").rglob("*.*")} >= {"matrix.pdf", "matches.csv", "entrants.csv"}


def test_returns_are_those_of_an_evaluation(trained: Train) -> None:
    """A herd among its own plays as `evaluate` lets it play."""
    run = trained()
    found = remuda.tournament(str(run.path), "random", episodes=8, seed=5)
    scores = run.evaluate(4, seed=5)
    own = found.names.index(next(name for name in found.names if name != "random"))
    assert found.returns[own, own].value == pytest.approx(scores.returns.mean())


def test_a_herd_with_a_frozen_agent_is_answered_with_the_word_to_give(trained: Train, cli: Any) -> None:
    herd = trained(learners={"0": f"frozen:{trained().path}/0"})
    for words, given in (([f"{herd.path}"], f"{herd.path}/1"), ([f"{herd.path}@best"], f"{herd.path}/1@best")):
        done = cli("tournament", *words, "random", "--episodes", 2)
        assert done.code == 2
        assert f"agent 0 of {herd.path} did not learn there (frozen:" in done.err
        assert f": give {given}, an agent that did, and it plays each place" in done.err
        assert cli("tournament", given, "random", "--episodes", 2).code == 0
    assert "did not learn there" in cli("tournament", f"{herd.path}/0", "random").err


def test_a_game_for_one_is_played_alone_on_the_same_episodes() -> None:
    found = remuda.tournament("sleep", "random", episodes=4, game="cage2", steps=5)
    assert found.places == 1
    assert "alone" in found.headline()
    assert len(found.returns) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["random"], "at least two"),
        (["random", "random"], "named twice"),
        (["random", "some/where"], "neither a run"),
        (["random", "rendom", "game=treasurehunt"], "did you mean 'random'"),
        (["random", "random2"], "no game given"),
    ],
)
def test_entrants_that_do_not_exist_are_refused(cli: Any, words: list[str], sentence: str) -> None:
    done = cli("tournament", *words)
    assert done.code == 2
    assert sentence in done.err
