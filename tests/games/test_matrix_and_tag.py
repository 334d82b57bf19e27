"""The matrix arena, Stag Hunt and Tag: payoffs, meetings, and who is it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core.game import make_game
from remuda.games import matrix
from remuda.games.registry import find_game

STAY, INTERACT = 6, 7


def world(name: str, places: list[tuple[int, int, int]], **options: Any) -> Any:
    game: Any = make_game(find_game(name), {"agents": len(places), **options}, [0])
    game.reset(np.arange(1), np.array([3], np.uint64))
    game.state.places[0] = game.state.starts[0] = places
    game.state.who[0] = 0
    for i, (row, col, _) in enumerate(places):
        game.state.who[0, row, col] = 1 + i
    return game


@pytest.mark.promise
@pytest.mark.parametrize("name", ["matrix", "stag_hunt", "tag"])
def test_the_conformance_suite_passes(name: str) -> None:
    assert [f for f in remuda.check(name, turns=120) if not f.good] == []


@pytest.mark.parametrize(
    ("payoff", "held", "paid"),
    [
        ("prisoners_dilemma", ((2, 1), (2, 1)), (2.5556, 2.5556)),  # measured in Melting Pot
        ("prisoners_dilemma", ((2, 0), (0, 2)), (0, 5)),
        ("chicken", ((2, 0), (0, 2)), (2, 5)),
        ("stag_hunt", ((2, 0), (2, 0)), (4, 4)),
        ("stag_hunt", ((2, 0), (0, 2)), (0, 2)),
        ("bach_or_stravinsky", ((2, 0), (2, 0)), (3, 2)),
        ("bach_or_stravinsky", ((0, 2), (0, 2)), (2, 3)),
        ([[1, 2], [3, 4]], ((2, 0), (0, 2)), (2, 3)),
    ],
)
def test_two_that_meet_are_paid_by_what_they_hold(payoff: Any, held: Any, paid: Any) -> None:
    game = world("matrix", [(9, 9, 2), (8, 9, 0)], payoff=payoff, start_inventory=0)
    game.state.inventory[0] = held
    game.step([np.array([[INTERACT, STAY]])])
    assert game.signals[0].rewards[0].tolist() == pytest.approx(paid, abs=1e-3)
    assert game.signals[0].metrics[0, :, matrix.INTERACTIONS].tolist() == [1, 1]
    assert game.signals[0].metrics[0, 0, matrix.FIRST_SHARE] == pytest.approx(held[0][0] / sum(held[0]))


def test_only_agents_that_have_collected_something_meet() -> None:
    game = world("matrix", [(9, 9, 2), (8, 9, 0)])
    game.state.inventory[0, 0] = (2, 1)
    game.step([np.array([[INTERACT, STAY]])])
    assert not game.signals[0].rewards.any()
    assert game.signals[0].alive.all()


def test_after_a_meeting_both_stand_still_then_are_away_then_come_back() -> None:
    game = world("stag_hunt", [(9, 9, 2), (8, 9, 0)], freeze=3, timeout=5)
    game.state.inventory[0] = (2, 1)
    game.step([np.array([[INTERACT, STAY]])])
    seen = []
    for _ in range(9):
        seen.append((bool(game.signals[0].alive[0, 0]), int(game.state.away[0, 0]) > 0))
        game.step([np.array([[4, 4]])])
    assert seen == [(False, False)] * 3 + [(False, True)] * 5 + [(True, False)]
    assert (game.state.inventory[0] == 1).all()


def test_it_tags_who_stands_next_to_it_and_the_others_are_paid() -> None:
    game = world("tag", [(5, 5, 0), (5, 6, 0), (1, 1, 0)])
    game.state.inventory[0, :, 0] = (1, 0, 0)
    game.step([np.array([[STAY, STAY, STAY]])])
    assert game.state.inventory[0, :, 0].tolist() == [0, 1, 0]
    assert game.signals[0].rewards[0].tolist() == [10, 0, 10]
    view = np.zeros((1, 3, *game.spec.groups[0].obs_shape), np.uint8)
    game.observe(0, 0, 3, view)
    it = view[0, :, :, :, game.view.compass - 1]
    assert [int(count) for count in it.sum(axis=(1, 2))] == [1, 1, 0]
    assert it[1, 7, 4]  # its own cell


@pytest.mark.parametrize("name", ["cleanup", "harvest", "coins", "matrix", "stag_hunt", "tag"])
def test_scripted_players_do_what_their_names_say(name: str) -> None:
    """Each player of each game plays; in the dilemmas the one that takes earns what taking pays."""
    for player in find_game(name).players:
        scores = remuda.evaluate(name, 2, learner=player, turns=60)
        assert np.isfinite(scores.returns).all()


def test_coins_players_take_the_coins_that_they_say() -> None:
    own = remuda.evaluate("coins", 4, learner="cooperator", turns=300, coins=0.002)
    any_coin = remuda.evaluate("coins", 4, learner="greedy", turns=300, coins=0.002)
    assert own.metrics["stolen_share"].mean() < 0.3 < any_coin.metrics["stolen_share"].mean()
    assert own.returns.sum() > any_coin.returns.sum()


def test_four_cleaners_feed_the_eaters() -> None:
    """Players see their views alone: two of them do not keep the river clean, four do."""
    none = remuda.evaluate("cleanup", 2, learner="greedy", turns=400)
    some = remuda.evaluate("cleanup", 2, learners={"0-3": "cooperator", "4-6": "greedy"}, turns=400)
    assert none.returns.sum() == 0
    assert some.returns[:, 4:].sum(axis=1).min() > 100
    assert some.metrics["cleaned"][:, :4].min() > 0
