"""Coins, Harvest and Clean Up: rules that the recorded steps do not show, and what differs between the variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core.game import Game, make_game
from remuda.games import cleanup, coins, harvest
from remuda.games.registry import find_game
from remuda.games.socialjax import EXTRA_CHANNELS

ZAP, CLEAN, STAY = 7, 8, 6


def world(name: str, places: list[tuple[int, int, int]] | None = None, **options: Any) -> Any:
    """One world in its first turn, with the agents at these places."""
    if places is not None and name != "coins":
        options["agents"] = len(places)
    game = make_game(find_game(name), options, [0])
    game.reset(np.arange(1), np.array([5], np.uint64))
    if places is not None:
        put(game, places)
    return game


def put(game: Any, places: list[tuple[int, int, int]]) -> None:
    state = game.state
    state.places[0] = state.starts[0] = places
    state.who[0] = 0
    for i, (row, col, _) in enumerate(places):
        state.who[0, row, col] = 1 + i


def play(game: Game, *actions: int) -> None:
    game.step([np.array([actions])])


@pytest.mark.parametrize("name", ["coins", "harvest", "cleanup"])
@pytest.mark.parametrize("rules", ["repaired", "socialjax", "meltingpot"])
def test_every_variant_passes_the_conformance_suite(name: str, rules: str) -> None:
    assert [f for f in remuda.check(name, rules=rules, turns=60) if not f.good] == []


def test_a_shooter_at_the_high_edge_hits_itself_only_in_socialjax() -> None:
    for rules, hits in (("repaired", 0), ("socialjax", 1)):
        game = world("harvest", [(15, 5, 0), (0, 0, 0)], rules=rules)
        play(game, ZAP, STAY)
        assert game.signals[0].metrics[0, 0, harvest.METRICS.index("zapped")] == hits


def test_a_beam_at_the_low_edge_reaches_the_far_side_only_in_socialjax() -> None:
    for rules, hits in (("repaired", 0), ("socialjax", 1)):
        game = world("harvest", [(0, 5, 2), (15, 5, 0)], rules=rules)
        play(game, ZAP, STAY)
        assert game.signals[0].metrics[0, 1, harvest.METRICS.index("zapped")] == hits


def test_the_neighbour_that_socialjax_forgets() -> None:
    ground = np.zeros((16, 22), np.uint8)
    ground[1, 20] = harvest.APPLE
    assert harvest.count_near(ground, 0, 21, True) == 0
    assert harvest.count_near(ground, 0, 21, False) == 1
    assert harvest.count_near(ground, 0, 20, True) == harvest.count_near(ground, 0, 20, False) == 1


def test_near_are_the_twelve_cells_within_distance_two() -> None:
    ground = np.full((16, 22), harvest.APPLE, np.uint8)
    assert harvest.count_near(ground, 8, 8, False) == 12
    assert harvest.count_near(ground, 0, 0, False) == 5


def test_idle_agents_restore_dirt_only_in_socialjax() -> None:
    for rules, dirty in (("repaired", False), ("socialjax", True)):
        game = world("cleanup", [(5, 1, 2), (4, 0, 1)], rules=rules, dirt=0.0)  # both have (4, 1) one cell ahead
        assert game.state.ground[0, 4, 1] == cleanup.DIRT
        play(game, CLEAN, STAY)
        assert (game.state.ground[0, 4, 1] == cleanup.DIRT) == dirty


def test_dirt_under_an_agent_stays() -> None:
    game = world("cleanup", [(5, 1, 2), (4, 1, 1)], dirt=0.0)
    play(game, CLEAN, STAY)
    assert game.state.ground[0, 4, 1] == cleanup.DIRT


def test_apples_grow_only_below_the_threshold() -> None:
    for dirty, grows in ((67, False), (66, True)):
        game = world("cleanup", [(7, 0, 0)], growth=1.0, dirt=0.0)
        river = game.rules.river
        for k, (row, col) in enumerate(river):
            game.state.ground[0, row, col] = cleanup.DIRT if k < dirty else cleanup.CLEAN
        assert (cleanup.growth_chance(game.state.ground[0], game.rules) > 0) == grows


def test_a_stolen_coin_pays_the_thief_and_costs_the_owner() -> None:
    game = world("coins", [(4, 4, 0), (8, 8, 0)], coins=0.0)
    game.state.ground[0, 4, 5] = coins.GREEN
    play(game, 2, STAY)
    assert game.signals[0].rewards[0].tolist() == [1.0, -2.0]
    names = game.spec.groups[0].metrics
    found = dict(zip(names, game.signals[0].metrics[0, 0].tolist(), strict=True))
    assert (found["coins"], found["stolen_coins"], found["stolen_share"]) == (1, 1, 1)


def test_of_two_coins_for_one_cell_the_green_one_appears() -> None:
    game = world("coins", [(4, 4, 0), (8, 8, 0)])
    grow = np.ones((2, len(game.rules.cells)), np.float32)
    grow[:, 0] = 0
    coins.grow_coins(game.state.ground[0], game.state.who[0], game.rules, grow)
    assert game.state.ground[0, 0, 0] == coins.GREEN
    assert (game.state.ground[0] != 0).sum() == 1


def test_socialjax_scales_rewards_and_the_others_do_not() -> None:
    for rules, reward in (("repaired", 1), ("socialjax", 3), ("meltingpot", 1)):
        game = world("harvest", [(0, 3, 3), (9, 9, 0), (9, 11, 0)], rules=rules)
        play(game, 4 if rules == "meltingpot" else 3, STAY, STAY)
        assert game.signals[0].rewards[0, 0] == reward
        assert game.state.tally[0, 0, 0] == 1


def test_who_is_hit_comes_back_at_once_or_after_the_time_out() -> None:
    game = world("harvest", [(9, 9, 0), (10, 9, 0)])
    play(game, ZAP, STAY)
    assert game.signals[0].alive[0].all()
    play(game, STAY, STAY)
    assert game.state.places[0, 1, 0] >= 13
    game = world("harvest", [(9, 9, 0), (10, 9, 0)], rules="meltingpot")
    play(game, ZAP, STAY)
    away = 0
    while not game.signals[0].alive[0, 1]:
        view = np.ones((1, 1, *game.spec.groups[0].obs_shape), np.uint8)
        game.observe(0, 1, 2, view)
        assert not view.any()
        play(game, STAY, STAY)
        away += 1
    assert away == 4
    assert game.state.places[0, 1, 0] >= 13


def test_a_beam_of_meltingpot_rests_between_shots() -> None:
    game = world("cleanup", [(9, 9, 2), (7, 0, 2)], rules="meltingpot")
    for _ in range(12):
        play(game, CLEAN, ZAP)
    names = game.spec.groups[0].metrics
    assert game.signals[0].metrics[0, 0, names.index("clean_actions")] == 4
    assert game.signals[0].metrics[0, 1, names.index("zaps")] == 2


def test_a_map_of_ones_own_is_played() -> None:
    game = world("harvest", map="WWWW\nWPAW\nWWWW", agents=1, rules="repaired")
    assert game.state.ground.shape == (1, 3, 4)
    play(game, 2)
    assert game.signals[0].rewards[0, 0] == 1
    with pytest.raises(remuda.RemudaError, match="1 cells P to start on for agents=2"):
        world("harvest", map=["PA"], agents=2)


def test_pictures_show_the_agents_beams_and_facings() -> None:
    game = world("cleanup", [(9, 9, 2), (7, 0, 2)])
    play(game, ZAP, STAY)
    scene = game.scene(0)
    assert {(beam.row, beam.col) for beam in scene.beams} == {(8, 9), (7, 9), (8, 8), (8, 10)}
    assert [(agent.number, agent.row, agent.col) for agent in scene.agents] == [(0, 9, 9), (1, 7, 0)]
    assert game.render(0).shape == (19 * 4, 28 * 4, 3)
    assert "0" in game.text(0)


def test_the_inventory_in_a_view_of_socialjax_is_the_own_one_and_that_of_the_last_but_one_for_the_last() -> None:
    """No recorded step shows it: the agent marked "self" is the next one, with the inventory of the one before it."""
    game = world("cleanup", [(10, 10, 1), (10, 11, 1), (10, 12, 1)], rules="socialjax")
    game.state.inventory[0, :, 0] = [3, 5, 7]
    play(game, STAY, STAY, STAY)
    group = game.spec.groups[0]
    views = np.zeros((1, 3, *group.obs_shape), group.obs_dtype)
    game.observe(0, 0, 3, views)
    first_extra = group.obs_shape[-1] - EXTRA_CHANNELS
    shown = [view[..., first_extra + 7].max() for view in views[0]]
    assert shown == [3, 5, 5]
