"""Harvest (commons harvest): apples grow next to apples, so agents that eat the last of a patch end it for all.

Sources: Perolat et al. (2017), SocialJax, Melting Pot. docs/games/harvest.md has the rules and the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.game import GameEntry
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below, fold, uniform
from remuda.core.scene import SceneKind
from remuda.games.grid import (
    EMPTY,
    WALL,
    RecordedDraws,
    Timing,
    cells_with,
    check_chances,
    check_start_cells,
    compose,
    count_down,
    draw_moves,
    fill_ground,
    finish_turn,
    go_to_starts,
    keep_places,
    load_draws,
    make_scratch,
    move_agents,
    open_turn,
    place_agents,
    put_agents,
    read_map,
    shuffle,
    start_world,
    want_moves,
)
from remuda.games.shipped import SHIPPED
from remuda.games.social import (
    MAX_AGENTS,
    MELTINGPOT,
    SOCIALJAX,
    SocialGame,
    SocialOptions,
    social_spec,
    social_timing,
    social_view,
)
from remuda.games.social_players import scripted
from remuda.games.zapping import ZAP, ZAP_METRICS, ZapRules, fire_zaps, make_zap, place_the_hit

ZAPPED, APPLE, FIRST_AGENT = 2, 3, 4
SOCIALJAX_CODES = {WALL: 1, ZAPPED: 2, APPLE: 3, 0: 5}  # 4 and 5 are its codes for spawn cells, which are never seen
EATEN, LEFT = 0, 1
METRICS = ("apples", "apples_left", *ZAP_METRICS)
SIGNS = "APQW "
OPEN = """\
AAA    A      A    AAA
AA    AAA    AAA    AA
A    AAAAA  AAAAA    A
      AAA    AAA
       A      A
  A                A
 AAA  Q        Q  AAA
AAAAA            AAAAA
 AAA              AAA
  A                A



  PPPPPPPPPPPPPPPPPP
 PPPPPPPPPPPPPPPPPPPP
PPPPPPPPPPPPPPPPPPPPPP"""
CLOSED = """\
AAA    A  WW  A    AAA
AA    AAA WW AAA    AA
A    AAAAAWWAAAAA    A
      AAA WW AAA
       A  WW  A
  A       WW       A
 AAA  Q   WW   Q  AAA
AAAAA     WW     AAAAA
 AAA  WWWWWWWWWW  AAA
  A       WW       A
WWWWWWWWW WW WWWWWWWWW
          WW
  WWWWWWWWWWWWWWWWWW
"""
MAPS = {
    "open": dict.fromkeys((0, 1, 2), OPEN),
    "closed": {
        0: CLOSED + "  P P P P P P P P P   \n P P P P P P P P P P",
        1: CLOSED + "  P P P P P P P P P   \n P P P P P P P P P P  \n ",
        2: CLOSED + "\n".join(OPEN.split("\n")[13:]),
    },
}
GROWTH = {"open": (0.0, 0.0025, 0.005, 0.025), "closed": (0.0, 0.001, 0.005, 0.025)}
"""Melting Pot's chances that an apple grows next to 0, 1, 2, and more apples."""
POT_ZAP = {"open": (3, 3, 4), "closed": (4, 2, 100)}
"""Melting Pot's beam: length, turns between shots, time-out."""
KINDS = (
    SceneKind("floor", "#d6ceac"), SceneKind("wall", "#5c544c"), SceneKind("zap beam", "#fae65a"),
    SceneKind("apple", "#3f9b3a", "disc"),
)  # fmt: skip
DRAWN = ".#*o"
SOLID = np.array([False, True, False, False])


class HarvestOptions(SocialOptions):
    """The options of Harvest."""

    agents: int = Field(7, ge=1, le=MAX_AGENTS, description="how many agents share a world")
    map: str | list[str] = Field(
        "open", description="open, closed, or your own as text: A apples, P and Q (first) starts, W walls"
    )
    growth: list[float] | None = Field(
        None,
        min_length=4,
        max_length=4,
        description="chance of an apple per turn with 0, 1, 2, more apples near; default: by the rules",
    )

    def check(self) -> None:
        """Refuse maps and chances that cannot be played."""
        super().check()
        check_start_cells(len(cells_with(self.chart, "P")), self.agents, "cells P to start on")
        check_chances("growth", self.growth or [])

    @property
    def chart(self) -> NDArray[np.str_]:
        """The map as signs."""
        own = self.map if isinstance(self.map, list) else MAPS.get(self.map, {}).get(self.variant, self.map)
        return read_map(own, SIGNS)

    @property
    def map_name(self) -> str:
        """Whose numbers of Melting Pot are used; those of the open map for a map of one's own."""
        return "closed" if self.map == "closed" else "open"


class HarvestRules(NamedTuple):
    """The options as numbers and arrays."""

    variant: int
    facings: int
    ground: NDArray[np.uint8]  # (height, width): full of apples
    apples: NDArray[np.int64]  # (cells, row/col)
    inner: NDArray[np.int64]  # (cells, row/col): where the first agents start
    spawns: NDArray[np.int64]  # (cells, row/col)
    growth: NDArray[np.float32]  # (4,)
    max_growth: np.float32  # the largest of them
    margin: int
    zap: ZapRules
    timing: Timing


class Harvest(SocialGame):
    """Worlds of Harvest."""

    kinds = KINDS
    signs = DRAWN

    def __init__(self, options: HarvestOptions, worlds: Sequence[int]) -> None:
        chart, agents = options.chart, options.agents
        view = social_view(options, (WALL, ZAPPED, APPLE), SOCIALJAX_CODES, FIRST_AGENT, agents)
        spec = social_spec("harvest", options, view, agents, actions=8, metrics=METRICS)
        super().__init__(spec, len(worlds), chart.shape, view, options.variant)
        pot = options.variant == MELTINGPOT
        growth = options.growth or (GROWTH[options.map_name] if pot else (0.0, 0.001, 0.005, 0.025))
        zap = make_zap(options.variant, 4, (WALL,), ZAPPED, POT_ZAP[options.map_name])
        self.rules = HarvestRules(
            variant=options.variant,
            facings=self.facings,
            ground=fill_ground(chart, {"W": WALL, "A": APPLE}),
            apples=cells_with(chart, "A"),
            inner=cells_with(chart, "Q"),
            spawns=cells_with(chart, "P"),
            growth=np.array(growth, np.float32),
            max_growth=np.float32(max(growth)),
            margin=view.margin,
            zap=zap,
            timing=social_timing(options, agents),
        )
        beam_cells = max(4, len(zap.beam.cells))
        self.scratch = make_scratch(agents, len(self.rules.spawns), beam_cells, len(self.rules.apples))

    def _reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        _reset(self.state, self.rules, self.scratch, worlds, keys)

    def captions(self, world: int) -> tuple[str, ...]:
        """How many apples are left, and who waits."""
        left = np.count_nonzero(self.state.ground[world] == APPLE)
        return (f"apples {left} of {len(self.rules.apples)}", *super().captions(world))

    def end(self) -> None:
        """Play the turn in all worlds."""
        _end(self.state, self.rules, self.scratch)

    def replay(self, draws: RecordedDraws) -> None:
        """Play the turn with recorded draws."""
        _replay(self.state, self.rules, self.scratch, draws)


@kernel
def _reset(state: Any, rules: Any, scratch: Any, worlds: Any, keys: Any) -> None:
    inner = np.zeros(len(rules.inner), np.int64)
    agents = state.places.shape[1]
    for n in range(len(worlds)):
        w, key = worlds[n], fold(keys[n], 0)
        start_world(state, w, keys[n], rules.ground)
        shuffle(fold(key, 0), scratch.order)
        shuffle(fold(key, 2), inner)
        first = min(len(inner), agents)
        place_agents(state, w, rules.spawns, first, scratch.order, fold(key, 1), rules.facings)
        for i in range(first):
            state.places[w, i, 0] = rules.inner[inner[i], 0]
            state.places[w, i, 1] = rules.inner[inner[i], 1]
            state.places[w, i, 2] = below(fold(key, 1), i, rules.facings)
        keep_places(state, w)
        put_agents(state, w)
        compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _end(state: Any, rules: Any, scratch: Any) -> None:
    pot = rules.variant == MELTINGPOT
    for w in range(len(state.turn)):
        if not state.over[w]:
            key = fold(state.keys[w], state.turn[w] + 1)
            draw_moves(key, scratch)
            apples = fold(key, 0)
            for k in range(len(rules.apples)):
                # Only empty cells need a draw; in Melting Pot's rules those that are emptied in this turn as well.
                if pot or state.ground[w, rules.apples[k, 0], rules.apples[k, 1]] == EMPTY:
                    scratch.grow[0, k] = uniform(apples, k)
            _play(state, w, rules, scratch, key)


@kernel(allocates=False)
def _replay(state: Any, rules: Any, scratch: Any, draws: Any) -> None:
    for w in range(len(state.turn)):
        load_draws(draws, w, scratch)
        _play(state, w, rules, scratch, np.uint64(0))


@kernel(allocates=False)
def _play(state: Any, w: int, rules: Any, scratch: Any, key: Any) -> None:
    pot = rules.variant == MELTINGPOT
    open_turn(state, w, scratch)
    if not pot:
        _grow(state, w, rules, scratch.grow)
    go_to_starts(state, w)
    want_moves(state.places[w], state.actions[w], pot, state.ground[w], SOLID, scratch.wanted)
    if rules.variant == SOCIALJAX:
        _stop_at_marks(state, w, scratch.wanted)
    move_agents(state, w, pot, scratch)
    for i in range(len(scratch.hit)):
        if state.away[w, i] == 0:
            _eat(state, w, i)
    fire_zaps(state, w, rules.zap, scratch)
    if pot:
        _grow(state, w, rules, scratch.grow)
    place_the_hit(state, w, rules.zap, rules.spawns, key, scratch)
    count_down(state, w)
    finish_turn(state, w, rules.timing)
    left = 0
    for k in range(len(rules.apples)):
        left += state.ground[w, rules.apples[k, 0], rules.apples[k, 1]] == APPLE
    state.metrics[w, :, LEFT] = left
    compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _eat(state: Any, w: int, i: int) -> None:
    row, col = state.places[w, i, 0], state.places[w, i, 1]
    if state.ground[w, row, col] == APPLE:
        state.ground[w, row, col] = EMPTY
        state.gain[w, i] += 1
        state.inventory[w, i, 0] += 1
        state.metrics[w, i, EATEN] += 1


@kernel(allocates=False)
def _grow(state: Any, w: int, rules: Any, grow: Any) -> None:
    """Apples grow, all at once, by how many are near. In Melting Pot's rules also under an agent, who eats it."""
    ground, who, marks = state.ground[w], state.who[w], state.marks[w]
    fresh = 0
    for k in range(len(rules.apples)):
        row, col = rules.apples[k]
        marked = rules.variant == SOCIALJAX and marks[row, col] > 0
        if rules.variant == SOCIALJAX:
            marks[row, col] = 0
        if ground[row, col] != EMPTY or marked or (who[row, col] > 0 and rules.variant != MELTINGPOT):
            continue
        if grow[0, k] < rules.max_growth:
            near = count_near(ground, row, col, rules.variant == SOCIALJAX)
            if grow[0, k] < rules.growth[min(near, 3)]:
                grow[1, fresh] = k
                fresh += 1
    for n in range(fresh):
        row, col = rules.apples[int(grow[1, n])]
        ground[row, col] = APPLE
        if who[row, col] > 0:
            _eat(state, w, who[row, col] - 1)


@kernel(allocates=False)
def count_near(ground: Any, row: int, col: int, faulty: bool) -> int:
    """How many apples are within distance 2 of a cell: up to 12."""
    height, width = ground.shape
    near = 0
    for rows in range(-2, 3):
        for cols in range(-2, 3):
            if rows * rows + cols * cols > 4 or (rows == 0 and cols == 0):
                continue
            r, c = row + rows, col + cols
            if faulty and rows == 1 and cols == -1:
                # SocialJax checks the wrong edge for this neighbour: the column on the other side, and not the row.
                near += c >= 0 and col + 1 < width and ground[min(r, height - 1), c] == APPLE
            elif 0 <= r < height and 0 <= c < width and ground[r, c] == APPLE:
                near += 1
    return near


@kernel(allocates=False)
def _stop_at_marks(state: Any, w: int, wanted: Any) -> None:
    """A mark of the last turn blocks its cell in SocialJax, unless an agent stands on it."""
    for i in range(len(wanted)):
        row, col = wanted[i]
        if state.marks[w, row, col] > 0 and state.who[w, row, col] == 0:
            wanted[i, 0] = state.places[w, i, 0]
            wanted[i, 1] = state.places[w, i, 1]


SEEN_APPLE, OTHER = 2, 4
"""Channels of a view."""
PLAYERS = {
    "cooperator": scripted("Eats only apples with four others near, which grow again.", goal=SEEN_APPLE, crowd=4),
    "defector": scripted("Eats every apple and zaps who is ahead.", goal=SEEN_APPLE, fire_at=OTHER, fire=ZAP),
    "greedy": scripted("Eats every apple.", goal=SEEN_APPLE),
}
ENTRY = GameEntry(
    name="harvest", summary=SHIPPED["harvest"].summary, options=HarvestOptions, make=Harvest, players=PLAYERS
)
