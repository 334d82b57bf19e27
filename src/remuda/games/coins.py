"""Coins: two agents collect coins of two colours; a coin of the other's colour costs the other agent.

Sources: Lerer and Peysakhovich (2017), SocialJax, Melting Pot. docs/games/coins.md has the rules and the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.game import GameEntry
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, fold
from remuda.core.scene import SceneKind
from remuda.games.grid import (
    EMPTY,
    WALL,
    RecordedDraws,
    Timing,
    cells_with,
    check_start_cells,
    compose,
    draw_moves,
    fill_ground,
    finish_turn,
    keep_places,
    load_draws,
    log_miss,
    make_scratch,
    move_agents,
    next_success,
    open_turn,
    place_agents,
    put_agents,
    read_map,
    shuffle,
    start_world,
    want_moves,
    write_view,
)
from remuda.games.shipped import SHIPPED
from remuda.games.social import (
    MELTINGPOT,
    SOCIALJAX,
    SocialGame,
    SocialOptions,
    social_spec,
    social_timing,
    social_view,
)
from remuda.games.social_players import scripted

AGENTS = 2
RED, GREEN, FIRST_AGENT = 2, 3, 4  # red is agent 0's colour, green agent 1's
SOCIALJAX_CODES = {WALL: 1, RED: 3, GREEN: 4}
COINS, OWN, STOLEN, STOLEN_SHARE, LOST = 0, 1, 2, 3, 4
METRICS = ("coins", "own_coins", "stolen_coins", "stolen_share", "lost_coins")
SIGNS = "CPW "
MAP = "\n".join(["C" * 11, "CP" + "C" * 9, *["C" * 11] * 12, "C" * 9 + "PC", "C" * 11])
KINDS = (
    SceneKind("floor", "#ece2c6"), SceneKind("wall", "#5c544c"), SceneKind("coin of agent 0", "#a9c6f2", "disc"),
    SceneKind("coin of agent 1", "#f0bd80", "disc"),
)  # fmt: skip
DRAWN = ".#rg"
SOLID = np.array([False, True, False, False])


class CoinsOptions(SocialOptions):
    """The options of Coins."""

    map: str | list[str] = Field("default", description="your own as text: C coins appear, P agents start, W walls")
    coins: float | None = Field(
        None, ge=0, le=1, description="chance of a coin per colour, empty cell and turn; default: by the rules"
    )
    penalty: float = Field(2.0, ge=0, le=1e6, description="what a stolen coin costs its owner")

    def check(self) -> None:
        """Refuse maps that cannot be played."""
        super().check()
        check_start_cells(len(cells_with(self.chart, "P")), AGENTS, "cells P to start on")

    @property
    def chart(self) -> NDArray[np.str_]:
        """The map as signs."""
        return read_map(MAP if self.map == "default" else self.map, SIGNS)


class CoinsRules(NamedTuple):
    """The options as numbers and arrays."""

    variant: int
    facings: int
    ground: NDArray[np.uint8]  # (height, width)
    starts: NDArray[np.int64]  # (cells, row/col)
    cells: NDArray[np.int64]  # (cells, row/col): where coins appear
    chance: np.float32
    log_miss: float
    penalty: float
    margin: int
    timing: Timing


class Coins(SocialGame):
    """Worlds of Coins. Our views show coins as "mine" and "the other's"; SocialJax's show their colours."""

    kinds = KINDS
    signs = DRAWN

    def __init__(self, options: CoinsOptions, worlds: Sequence[int]) -> None:
        chart = options.chart
        view = social_view(options, (WALL, RED, GREEN), SOCIALJAX_CODES, FIRST_AGENT, AGENTS)
        spec = social_spec("coins", options, view, AGENTS, actions=7, metrics=METRICS)
        super().__init__(spec, len(worlds), chart.shape, view, options.variant)
        chance = 0.00025 if options.variant == MELTINGPOT else 0.0005
        chance = chance if options.coins is None else options.coins
        self.rules = CoinsRules(
            variant=options.variant,
            facings=self.facings,
            ground=fill_ground(chart, {"W": WALL}),
            starts=cells_with(chart, "P"),
            cells=cells_with(chart, "C"),
            chance=np.float32(chance),
            log_miss=float(log_miss(np.array(chance))),
            penalty=options.penalty,
            margin=view.margin,
            timing=social_timing(options, AGENTS),
        )
        exchanged = view.channel.copy()
        exchanged[[RED, GREEN]] = view.channel[[GREEN, RED]]
        self._exchanged = view._replace(channel=exchanged)
        self.scratch = make_scratch(AGENTS, len(self.rules.starts), 1, len(self.rules.cells))

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write what each agent sees."""
        if self.variant == SOCIALJAX:
            super().observe(group, first, last, out)
        else:
            _observe(self.state.codes, self.state.places, self.view, self._exchanged, first, last, out)

    def _reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        _reset(self.state, self.rules, self.scratch, worlds, keys)

    def end(self) -> None:
        """Play the turn in all worlds."""
        _end(self.state, self.rules, self.scratch)

    def replay(self, draws: RecordedDraws) -> None:
        """Play the turn with recorded draws."""
        _replay(self.state, self.rules, self.scratch, draws)


@kernel(allocates=False)
def _reset(state: Any, rules: Any, scratch: Any, worlds: Any, keys: Any) -> None:
    for n in range(len(worlds)):
        w, key = worlds[n], fold(keys[n], 0)
        start_world(state, w, keys[n], rules.ground)
        shuffle(fold(key, 0), scratch.order)
        place_agents(state, w, rules.starts, 0, scratch.order, fold(key, 1), rules.facings)
        put_agents(state, w)
        compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _observe(codes: Any, places: Any, view: Any, exchanged: Any, first: int, last: int, out: Any) -> None:
    """Agent 1 sees the two colours exchanged."""
    for w in range(out.shape[0]):
        for i in range(last - first):
            seen = view if first + i == 0 else exchanged
            write_view(codes[w], places[w], first + i, seen, out[w, i])


@kernel(allocates=False)
def _end(state: Any, rules: Any, scratch: Any) -> None:
    for w in range(len(state.turn)):
        if not state.over[w]:
            key = fold(state.keys[w], state.turn[w] + 1)
            draw_moves(key, scratch)
            _draw_coins(fold(key, 0), rules, state.ground[w], state.who[w])
            _play(state, w, rules, scratch)


@kernel(allocates=False)
def _replay(state: Any, rules: Any, scratch: Any, draws: Any) -> None:
    for w in range(len(state.turn)):
        load_draws(draws, w, scratch)
        grow_coins(state.ground[w], state.who[w], rules, scratch.grow)
        _play(state, w, rules, scratch)


@kernel(inline=True, allocates=False)
def _draw_coins(key: Any, rules: Any, ground: Any, who: Any) -> None:
    """Draw where coins appear, and put them there; one draw per success, not per cell."""
    cells = len(rules.cells)
    draw, cell = 1, next_success(key, 0, rules.log_miss)
    while cell < 2 * cells:
        _put_coin(ground, who, rules.cells[cell % cells], GREEN if cell < cells else RED)
        cell += 1 + next_success(key, draw, rules.log_miss)
        draw += 1


@kernel(allocates=False)
def grow_coins(ground: Any, who: Any, rules: Any, grow: Any) -> None:
    """Put coins where the recorded draws say: green ones first."""
    for colour in range(2):
        for k in range(len(rules.cells)):
            if grow[colour, k] < rules.chance:
                _put_coin(ground, who, rules.cells[k], GREEN if colour == 0 else RED)


@kernel(allocates=False)
def _put_coin(ground: Any, who: Any, cell: Any, coin: int) -> None:
    """A coin appears on a cell, if the cell is empty."""
    if ground[cell[0], cell[1]] == EMPTY and who[cell[0], cell[1]] == 0:
        ground[cell[0], cell[1]] = coin


@kernel(inline=True, allocates=False)
def _play(state: Any, w: int, rules: Any, scratch: Any) -> None:
    open_turn(state, w, scratch)
    relative = rules.variant == MELTINGPOT
    want_moves(state.places[w], state.actions[w], relative, state.ground[w], SOLID, scratch.wanted)
    move_agents(state, w, relative, scratch)
    _collect(state, w, rules.penalty)
    keep_places(state, w)
    finish_turn(state, w, rules.timing)
    compose(state, w, FIRST_AGENT, rules.margin)


@kernel(inline=True, allocates=False)
def _collect(state: Any, w: int, penalty: float) -> None:
    for i in range(AGENTS):
        row, col = state.places[w, i, 0], state.places[w, i, 1]
        coin = state.ground[w, row, col]
        if coin != RED and coin != GREEN:
            continue
        state.ground[w, row, col] = EMPTY
        own, metrics = coin == RED + i, state.metrics[w]
        state.gain[w, i] += 1
        metrics[i, COINS] += 1
        metrics[i, OWN if own else STOLEN] += 1
        metrics[i, STOLEN_SHARE] = metrics[i, STOLEN] / metrics[i, COINS]
        if not own:
            state.gain[w, 1 - i] -= penalty
            metrics[1 - i, LOST] += 1


MINE, THEIRS = 1, 2
"""Channels of a view."""
PLAYERS = {
    "cooperator": scripted("Collects coins of its own colour.", goal=MINE),
    "defector": scripted("Collects coins of the other's colour.", goal=THEIRS),
    "greedy": scripted("Collects any coin.", goal=MINE, other_goal=THEIRS),
}
ENTRY = GameEntry(name="coins", summary=SHIPPED["coins"].summary, options=CoinsOptions, make=Coins, players=PLAYERS)
