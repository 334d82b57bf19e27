"""The rules of Treasurehunt, one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from remuda.core import rng
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.grid import DOWN, EMPTY, LEFT, RIGHT, UP, WALL
from remuda.games.registry import find_game
from remuda.games.treasurehunt import AGENT, BONE, BONES, BUMPS, FOOD, FOODS, GEM, GEMS, Treasurehunt


def start(worlds: int = 1, seed: int = 0, numbers: list[int] | None = None, **options: Any) -> Treasurehunt:
    numbers = list(range(worlds)) if numbers is None else numbers
    game = make_game(find_game("treasurehunt"), options, numbers)
    assert isinstance(game, Treasurehunt)
    count = len(numbers)
    game.reset(np.arange(count), rng.keys(rng.key(seed, Stream.CHECK), np.arange(count)))
    return game


def scene(*rows: str, **options: Any) -> Treasurehunt:
    """A world without spawning that looks like this; digits are agents."""
    plane = np.array([[".#*x+".find(sign) for sign in row] for row in rows], np.int64)
    agents = sorted(sign for row in rows for sign in row if sign.isdigit())
    game = start(agents=len(agents), height=len(rows), width=len(rows[0]), **{"spawn": 0.0, **options})
    game.state.planes[0] = np.where(plane < 0, AGENT, plane)
    for i, sign in enumerate(agents):
        game.state.cells[0, i] = next((r, row.index(sign)) for r, row in enumerate(rows) if sign in row)
    return game


def move(game: Treasurehunt, *actions: int) -> list[float]:
    """Play one turn; returns what each agent earned."""
    game.signals[0].rewards[:] = 0
    game.step([np.array([actions], np.int64)])
    earned: list[float] = game.signals[0].rewards[0].tolist()
    return earned


def where(game: Treasurehunt, agent: int = 0) -> tuple[int, int]:
    row, col = game.state.cells[0, agent].tolist()
    return row, col


def view(game: Treasurehunt, agent: int = 0) -> np.ndarray:
    """What an agent observes in world 0, (kinds, side, side)."""
    out = np.zeros((game.worlds, 1, *game.spec.groups[0].obs_shape), np.uint8)
    game.observe(0, agent, agent + 1, out)
    side = 2 * game.rules.radius + 1
    return out[0, 0].reshape(6, side, side)


def test_the_default_options() -> None:
    options = make_game(find_game("treasurehunt"), {}, [0]).spec.options
    expected = {"agents": 2, "height": 21, "width": 21, "turns": 100, "radius": 2, "spawn": 0.005}
    assert expected.items() <= options.items()
    assert [options[name] for name in ("gem", "food", "bone", "wall")] == [10, 5, -10, -1]


def test_an_episode_starts_with_walls_agents_and_nothing_else() -> None:
    plane = start().state.planes[0]
    assert (plane[1:-1, 1:-1] == EMPTY).sum() == 19 * 19 - 2
    assert (plane == WALL).sum() == 4 * 20
    assert (plane == AGENT).sum() == 2


def test_agents_start_on_distinct_cells_anywhere_inside() -> None:
    game = start(worlds=800, agents=8, height=5, width=5)
    flat = game.state.cells[..., 0] * 5 + game.state.cells[..., 1]
    assert all(len(set(cells)) == 8 for cells in flat.tolist())
    assert (game.state.planes == AGENT).sum(axis=(1, 2)).tolist() == [8] * 800
    first = np.bincount(flat[:, 0], minlength=25).reshape(5, 5)[1:-1, 1:-1]
    assert ((first - 800 / 9) ** 2 / (800 / 9)).sum() < 8 + 5 * np.sqrt(16)


@pytest.mark.parametrize(
    ("action", "cell"),
    [(UP, (1, 2)), (DOWN, (3, 2)), (LEFT, (2, 1)), (RIGHT, (2, 3))],
    ids=["up", "down", "left", "right"],
)
def test_four_moves(action: int, cell: tuple[int, int]) -> None:
    game = scene("#####", "#...#", "#.0.#", "#...#", "#####")
    assert game.spec.groups[0].actions == 4
    assert move(game, action) == [0.0]
    assert where(game) == cell
    assert game.state.planes[0, 2, 2] == EMPTY
    assert game.state.planes[0][cell] == AGENT


@pytest.mark.parametrize(("sign", "value", "metric"), [("*", 10, GEMS), ("+", 5, FOODS), ("x", -10, BONES)])
def test_items_pay_their_value_once_and_are_gone(sign: str, value: float, metric: int) -> None:
    game = scene("#####", f"#0{sign}.#", "#####")
    assert move(game, RIGHT) == [value]
    assert move(game, LEFT) == [0.0]
    assert move(game, RIGHT) == [0.0]
    expected = [0.0] * 4
    expected[metric] = 1.0
    assert game.signals[0].metrics[0, 0].tolist() == expected


def test_a_wall_costs_one_and_stops() -> None:
    game = scene("####", "#0.#", "####")
    assert move(game, UP) == [-1.0]
    assert move(game, LEFT) == [-1.0]
    assert where(game) == (1, 1)
    assert (game.state.planes[0] == WALL).sum() == 10
    assert game.signals[0].metrics[0, 0].tolist() == [0, 0, 0, 2]


def test_another_agent_blocks_and_is_worth_nothing() -> None:
    game = scene("####", "#01#", "####")
    assert move(game, RIGHT, LEFT) == [0.0, 0.0]
    assert (where(game, 0), where(game, 1)) == ((1, 1), (1, 2))
    assert game.signals[0].metrics[0, :, BUMPS].tolist() == [1, 1]


def test_a_blocked_move_still_pays_what_it_aims_at() -> None:
    """The value is read before the move: a wall with a value pays although it cannot be entered."""
    game = scene("###", "#0#", "###", wall=3.5)
    assert move(game, UP) == [3.5]
    assert where(game) == (1, 1)


def test_agents_act_in_order_on_the_same_world() -> None:
    game = scene("######", "#01*.#", "######")
    assert move(game, RIGHT, RIGHT) == [0.0, 10.0]
    assert where(game, 0) == (1, 1)  # agent 1 had not left yet
    game = scene("######", "#.10.#", "######")
    assert move(game, RIGHT, RIGHT) == [0.0, 0.0]
    assert (where(game, 0), where(game, 1)) == ((1, 4), (1, 3))  # agent 0 had already left
    game = scene("#####", "#0*1#", "#####")
    assert move(game, RIGHT, LEFT) == [10.0, 0.0]  # the first gets it, the second bumps into the first


def test_later_agents_see_what_earlier_ones_did_this_turn() -> None:
    game = scene("#####", "#0*1#", "#####", radius=2)
    game.begin()
    assert view(game, 1)[GEM, 2, 1] == 1
    game.act(0, 0, 1, np.array([[RIGHT]]))
    assert view(game, 1)[GEM].sum() == 0
    assert view(game, 1)[AGENT, 2].tolist() == [0, 1, 1, 0, 0]


def test_a_view_is_one_hot_and_centred_with_walls_outside() -> None:
    game = scene("#####", "#0*x#", "#1.+#", "#####", radius=2)
    seen = view(game)
    kinds = np.array(
        [[WALL] * 5, [WALL] * 5, [WALL, WALL, AGENT, GEM, BONE], [WALL, WALL, AGENT, EMPTY, FOOD], [WALL] * 5]
    )
    expected = (kinds == np.arange(6)[:, None, None]) & (kinds != EMPTY)
    assert np.array_equal(seen, expected)


def test_items_stay_until_entered() -> None:
    game = start(agents=1, height=8, width=8, turns=200, spawn=0.02)
    draw = np.random.default_rng(0)
    for _ in range(200):
        before, cell = game.state.planes[0].copy(), where(game)
        game.step([draw.integers(0, 4, (1, 1))])
        after = game.state.planes[0]
        changed = {tuple(c) for c in np.argwhere((before != after) & (before != EMPTY)).tolist()}
        assert changed <= {cell, where(game)}


def spawned(probability: float, worlds: int) -> np.ndarray:
    """Planes after the first `begin` of worlds with one agent each."""
    game = start(worlds=worlds, agents=1, spawn=probability)
    game.begin()
    return game.state.planes


def plain_spawned(probability: float, worlds: int) -> np.ndarray:
    """How many items appear in each world, with one draw per cell."""
    draw = np.random.default_rng(1)
    return (draw.random((worlds, 360)) < probability).sum(axis=1)


@pytest.mark.parametrize("probability", [0.005, 0.2])
def test_spawning_is_distributed_as_one_draw_per_empty_cell(probability: float) -> None:
    worlds = 4000
    planes = spawned(probability, worlds)
    items = (planes > WALL) & (planes < AGENT)
    counts, plain = items.sum(axis=(1, 2)), plain_spawned(probability, worlds)
    variance = 360 * probability * (1 - probability)
    mean_error = np.sqrt(variance / worlds)
    for sample in (counts, plain):
        assert abs(sample.mean() - 360 * probability) < 5 * mean_error
        assert abs(sample.var() - variance) < 0.15 * variance
    assert abs(counts.mean() - plain.mean()) < 7 * mean_error
    per_cell = items.mean(axis=0)[1:-1, 1:-1] * 361 / 360  # one cell in 361 is the agent's
    assert np.abs(per_cell - probability).max() < 5 * np.sqrt(probability / worlds)
    left, right = items[:, 1:-1, 1:-2].ravel(), items[:, 1:-1, 2:-1].ravel()
    assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(left.size)


def test_the_three_items_are_equally_likely_wherever_they_appear() -> None:
    """Also next to another item: the kind does not depend on the distance to the last one."""
    inside = spawned(0.2, 500)[:, 1:-1, 1:-1]
    after_another = inside[:, :, 1:][inside[:, :, :-1] > WALL]
    for planes in (inside, after_another):
        counts = np.array([(planes == kind).sum() for kind in (GEM, BONE, FOOD)])
        third = counts.sum() / 3
        assert third > 2000
        assert ((counts - third) ** 2 / third).sum() < 2 + 5 * np.sqrt(4)


def test_only_empty_cells_spawn() -> None:
    game = scene("#####", "#0*x#", "#1+.#", "#####", spawn=1.0)
    before = game.state.planes[0].copy()
    game.begin()
    changed = game.state.planes[0] != before
    assert np.argwhere(changed).tolist() == [[2, 3]]
    assert game.state.planes[0, 2, 3] in (GEM, BONE, FOOD)


def test_each_turn_spawns_differently_and_zero_never() -> None:
    game = start(spawn=0.02, turns=5)
    game.begin()
    first = game.state.planes[0].copy()
    game.end()
    game.begin()
    assert not np.array_equal(game.state.planes[0], first)
    barren = start(spawn=0.0)
    barren.begin()
    assert (barren.state.planes <= WALL).sum() == 21 * 21 - 2


def test_the_last_turn_truncates_and_nothing_happens_afterwards() -> None:
    game = start(turns=3, spawn=0.1)
    stay = [np.full((1, 2), UP)]
    for turn in range(3):
        assert not game.over[0], turn
        assert not game.signals[0].truncated.any(), turn
        game.step(stay)
    assert game.over[0]
    assert game.signals[0].truncated.all()
    assert not game.signals[0].terminated.any()
    planes, rewards = game.state.planes.copy(), game.signals[0].rewards.copy()
    game.step([np.full((1, 2), DOWN)])
    assert np.array_equal(game.state.planes, planes)
    assert np.array_equal(game.signals[0].rewards, rewards)


def test_reset_concerns_only_the_worlds_it_names() -> None:
    game = start(worlds=3, spawn=0.05, turns=2)
    for _ in range(2):
        game.step([np.full((3, 2), LEFT)])
    planes = game.state.planes.copy()
    metrics = game.signals[0].metrics.copy()
    game.reset(np.array([1]), rng.keys(rng.key(9, Stream.CHECK), np.arange(1)))
    assert game.over.tolist() == [True, False, True]
    assert np.array_equal(game.state.planes[[0, 2]], planes[[0, 2]])
    assert np.array_equal(game.signals[0].metrics[[0, 2]], metrics[[0, 2]])
    assert not game.signals[0].metrics[1].any()
    assert not game.signals[0].rewards[1].any()
    assert (game.state.planes[1] > WALL).sum() == 2


def test_world_w_takes_entry_w_of_an_option_that_is_a_list() -> None:
    game = start(numbers=[5, 0, 3], spawn=[0.0, 1.0], gem=[1.0, 2.0, 3.0], height=4, width=4, agents=1)
    assert game.rules.values[:, GEM].tolist() == [3.0, 1.0, 1.0]
    game.begin()
    items = ((game.state.planes > WALL) & (game.state.planes < AGENT)).sum(axis=(1, 2))
    assert items.tolist() == [3, 0, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agents": 10, "height": 5, "width": 5}, "do not fit on 9 free cells"),
        ({"spawn": 1.5}, "not a probability"),
        ({"spawn": [0.1, -0.1]}, "not a probability"),
        ({"spawn": []}, "spawn"),
        ({"gem": []}, "gem"),
        ({"height": 2}, "height=2"),
        ({"turns": 0}, "turns=0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start(**options)


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'radius'"):
        start(radios=3)


def test_pictures_distinguish_all_kinds() -> None:
    game = scene("#####", "#0*x#", "#..+#", "#####")
    assert game.text(0).replace(" ", "").split("\n") == ["#####", "#@*x#", "#..+#", "#####"]
    picture = game.render(0)
    assert picture.shape == (4, 5, 3)
    assert len({tuple(colour) for colour in picture.reshape(-1, 3).tolist()}) == 6


EPISODE = """
import hashlib
from remuda.core.game import make_game
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
options = dict(agents=3, height=7, width=6, turns=12, spawn=[0.05, 0.3], radius=1)
for parallel in (True, False):
    game = make_game(find_game("treasurehunt"), options, [0, 1])
    rollout = Rollout(game, random_bindings(game), RolloutConfig(4, 2, parallel))
    rollout.start(Task((0, 1)))
    (fragment,) = rollout.play(rollout.empty_fragments())
    for array in (fragment.obs, fragment.actions, fragment.rewards, fragment.truncated, fragment.metrics):
        print(hashlib.sha256(array.tobytes()).hexdigest(), array.sum())
    print(game.text(0))
"""


def test_a_whole_episode_is_the_same_compiled_and_not(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EPISODE, {})
    compiled = capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", EPISODE],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == compiled


def test_the_scene_has_every_agent_on_its_cell_and_items_by_name() -> None:
    game = scene("######", "#0*..#", "#x+.1#", "######")
    seen = game.scene(0)
    assert seen.cells is not None
    assert [(agent.number, agent.row, agent.col) for agent in seen.agents] == [(0, 1, 1), (1, 2, 4)]
    names = [[seen.kinds[kind].name for kind in row] for row in seen.cells[1:3, 1:5]]
    assert names == [["floor", "gem", "floor", "floor"], ["bone", "food", "floor", "floor"]]
