"""Clean Up: apples grow in the orchard only while the river is clean, and cleaning pays nothing.

Sources: Hughes et al. (2018), SocialJax, Melting Pot. docs/games/cleanup.md has the rules and the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.game import GameEntry
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below, fold, uniform
from remuda.core.scene import SceneKind
from remuda.games.grid import (
    EMPTY,
    WALL,
    Beam,
    RecordedDraws,
    Timing,
    aim,
    arrow_beam,
    cells_with,
    check_start_cells,
    compose,
    count_down,
    draw_moves,
    fill_ground,
    finish_turn,
    go_to_starts,
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
    wide_beam,
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
from remuda.games.socialjax import aim_socialjax, mark_socialjax
from remuda.games.zapping import ZAP, ZAP_METRICS, ZapRules, fire_zaps, make_zap, place_the_hit

ZAPPED, APPLE, RIVER, CLEAN, DIRT, WASHED, FIRST_AGENT = 2, 3, 4, 5, 6, 7, 8
SOCIALJAX_CODES = {WALL: 1, ZAPPED: 2, APPLE: 3, RIVER: 6, CLEAN: 7, DIRT: 8, WASHED: 9}
WASHING = FIRST_AGENT
"""Kind of a dirty cell that a beam cleans in this turn; it is clean at the end of the turn."""
CLEAN_ACTION = 8
EATEN, CLEANED, CLEANS, DIRT_SHARE = 0, 1, 2, 3
METRICS = ("apples", "cleaned", "clean_actions", "dirt_share", *ZAP_METRICS)
SIGNS = "HFRBPW "
MAP = """\
HFFFHFFHFHFHFHFHFHFHHFHFFFHF
HFHFHFFHFHFHFHFHFHFHHFHFFFHF
HFFHFFHHFHFHFHFHFHFHHFHFFFHF
HFHFHFFHFHFHFHFHFHFHHFHFFFHF
HFFFFFFHFHFHFHFHFHFHHFHFFFHF
               RFHHHHHH
   P    P          RRR
     P     P   P   RR   P
             P   P RR
   P    P          RR    P
               P   RR P
     P           P RR
           P       RR  P
  P             P  RR
 B B B B B B B B B RR  B B B
BBBBBBBBBBBBBBBBBBB  BBBBBBB
BBBBBBBBBBBBBBBBBBBBBBBBBBBB
BBBBBBBBBBBBBBBBBBBBBBBBBBBB
BBBBBBBBBBBBBBBBBBBBBBBBBBBB"""
KINDS = (
    SceneKind("sand", "#ded2aa"), SceneKind("wall", "#5c544c"), SceneKind("zap beam", "#fae65a"),
    SceneKind("apple", "#c8322f", "disc"), SceneKind("river", "#8cc4f0"), SceneKind("clean water", "#a6d4f8"),
    SceneKind("dirty water", "#7b7a32"), SceneKind("clean beam", "#12b3c4"),
)  # fmt: skip
DRAWN = ".#*o~-%+"
SOLID = np.array([False, True, False, False, False, False, False, False])


class CleanupOptions(SocialOptions):
    """The options of Clean Up."""

    agents: int = Field(7, ge=1, le=MAX_AGENTS, description="how many agents share a world")
    map: str | list[str] = Field(
        "default",
        description="your own as text: H clean and F dirty river, R other river, B orchard, P starts, W walls",
    )
    growth: float = Field(0.05, ge=0, le=1, description="chance of an apple per orchard cell and turn, river clean")
    threshold: float = Field(0.4, gt=0, le=1, description="share of dirt from which no apple grows")
    dirt: float = Field(0.5, ge=0, le=1, description="chance per turn that a clean cell becomes dirty")
    delay: int | None = Field(None, ge=0, description="turns without new dirt; default: 51, meltingpot 50")

    def check(self) -> None:
        """Refuse maps that cannot be played."""
        super().check()
        chart = self.chart
        check_start_cells(len(cells_with(chart, "P")), self.agents, "cells P to start on")
        if not len(cells_with(chart, "HF")):
            raise ConfigError("the map has no river that can become dirty: add cells H or F")

    @property
    def chart(self) -> NDArray[np.str_]:
        """The map as signs."""
        return read_map(MAP if self.map == "default" else self.map, SIGNS)


class CleanupRules(NamedTuple):
    """The options as numbers and arrays."""

    variant: int
    facings: int
    ground: NDArray[np.uint8]  # (height, width)
    orchard: NDArray[np.int64]  # (cells, row/col)
    river: NDArray[np.int64]  # (cells, row/col): those that can become dirty
    water: int  # cells that the share of dirt is of
    spawns: NDArray[np.int64]  # (cells, row/col)
    growth: np.float32
    threshold: np.float32
    dirt: float
    delay: int
    beam: Beam  # for cleaning
    stops: NDArray[np.uint8]  # (kinds + 1,): what stops it
    period: int  # turns from one use of it to the next
    margin: int
    zap: ZapRules
    timing: Timing


class Cleanup(SocialGame):
    """Worlds of Clean Up."""

    kinds = KINDS
    signs = DRAWN

    def __init__(self, options: CleanupOptions, worlds: Sequence[int]) -> None:
        chart, agents = options.chart, options.agents
        codes = (WALL, ZAPPED, APPLE, RIVER, CLEAN, DIRT, WASHED)
        view = social_view(options, codes, SOCIALJAX_CODES, FIRST_AGENT, agents)
        spec = social_spec("cleanup", options, view, agents, actions=9, metrics=METRICS)
        super().__init__(spec, len(worlds), chart.shape, view, options.variant, beams=2)
        self.rules = _make_rules(options, chart, view.margin)
        beam_cells = max(4, len(self.rules.zap.beam.cells), len(self.rules.beam.cells))
        self.scratch = make_scratch(agents, len(self.rules.spawns), beam_cells, len(self.rules.orchard))

    def _reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        _reset(self.state, self.rules, self.scratch, worlds, keys)

    def captions(self, world: int) -> tuple[str, ...]:
        """How dirty the river is, how many apples hang in the orchard, and who waits."""
        ground = self.state.ground[world]
        dirt = np.count_nonzero(ground == DIRT) / self.rules.water
        return (f"dirt {dirt:.2f}, apples {np.count_nonzero(ground == APPLE)}", *super().captions(world))

    def end(self) -> None:
        """Play the turn in all worlds."""
        _end(self.state, self.rules, self.scratch)

    def replay(self, draws: RecordedDraws) -> None:
        """Play the turn with recorded draws."""
        _replay(self.state, self.rules, self.scratch, draws)


def _make_rules(options: CleanupOptions, chart: NDArray[np.str_], margin: int) -> CleanupRules:
    variant, pot = options.variant, options.variant == MELTINGPOT
    river = cells_with(chart, "HF")
    stops = np.zeros(WASHING + 2, np.uint8)
    if pot:
        stops[WALL], stops[DIRT], stops[WASHING] = 2, 1, 1
    delay = 50 if pot else 51
    return CleanupRules(
        variant=variant,
        facings=3 if variant == SOCIALJAX else 4,
        ground=fill_ground(chart, {"W": WALL, "R": RIVER, "H": CLEAN, "F": DIRT}),
        orchard=cells_with(chart, "B"),
        river=river,
        water=len(river) + (0 if pot else len(cells_with(chart, "R"))),
        spawns=cells_with(chart, "P"),
        growth=np.float32(options.growth),
        threshold=np.float32(options.threshold),
        dirt=options.dirt,
        delay=delay if options.delay is None else options.delay,
        beam=wide_beam(3, 1) if pot else arrow_beam(),
        stops=stops,
        period=3 if pot else 1,
        margin=margin,
        zap=make_zap(variant, FIRST_AGENT, (WALL,), ZAPPED, (3, 11, 50)),
        timing=social_timing(options, options.agents),
    )


@kernel(allocates=False)
def _reset(state: Any, rules: Any, scratch: Any, worlds: Any, keys: Any) -> None:
    for n in range(len(worlds)):
        w, key = worlds[n], fold(keys[n], 0)
        start_world(state, w, keys[n], rules.ground)
        shuffle(fold(key, 0), scratch.order)
        place_agents(state, w, rules.spawns, 0, scratch.order, fold(key, 1), rules.facings)
        put_agents(state, w)
        compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _end(state: Any, rules: Any, scratch: Any) -> None:
    for w in range(len(state.turn)):
        if not state.over[w]:
            key = fold(state.keys[w], state.turn[w] + 1)
            draw_moves(key, scratch)
            _draw_growth(state, w, rules, key, scratch)
            _play(state, w, rules, scratch, key)


@kernel(allocates=False)
def _replay(state: Any, rules: Any, scratch: Any, draws: Any) -> None:
    for w in range(len(state.turn)):
        load_draws(draws, w, scratch)
        _play(state, w, rules, scratch, np.uint64(0))


@kernel(inline=True, allocates=False)
def _draw_growth(state: Any, w: int, rules: Any, key: Any, scratch: Any) -> None:
    """Draw for every orchard cell if an apple can grow, and draw a clean cell of the river that may become dirty."""
    apples, dirt = fold(key, 0), fold(key, 4)
    if growth_chance(state.ground[w], rules) > 0:
        for k in range(len(rules.orchard)):
            scratch.grow[0, k] = uniform(apples, k)
    scratch.luck[0] = uniform(dirt, 0)
    scratch.picked[0], scratch.picked[1] = rules.river[0]
    clean = len(rules.river) - _count_dirt(state.ground[w], rules)
    if scratch.luck[0] >= rules.dirt or clean == 0:
        return
    left = below(dirt, 1, clean)
    for k in range(len(rules.river)):
        if state.ground[w, rules.river[k, 0], rules.river[k, 1]] == CLEAN:
            if left == 0:
                scratch.picked[0], scratch.picked[1] = rules.river[k]
                return
            left -= 1


@kernel(allocates=False)
def _count_dirt(ground: Any, rules: Any) -> int:
    """How many cells of the river are dirty."""
    count = 0
    for k in range(len(rules.river)):
        # unsigned: numba checks signed ones for being negative
        count += ground[np.uint64(rules.river[k, 0]), np.uint64(rules.river[k, 1])] == DIRT
    return count


@kernel(inline=True, allocates=False)
def _play(state: Any, w: int, rules: Any, scratch: Any, key: Any) -> None:
    pot = rules.variant == MELTINGPOT
    open_turn(state, w, scratch)
    _grow(state, w, rules, scratch.grow)
    _soil(state, w, rules, scratch)
    go_to_starts(state, w)
    want_moves(state.places[w], state.actions[w], pot, state.ground[w], SOLID, scratch.wanted)
    move_agents(state, w, pot, scratch)
    for i in range(len(scratch.hit)):
        if state.away[w, i] == 0:
            _eat(state, w, i)
    fire_zaps(state, w, rules.zap, scratch)
    if rules.variant == SOCIALJAX:
        _clean_socialjax(state, w, rules, scratch.reach)
    else:
        _clean(state, w, rules, scratch.reach)
    place_the_hit(state, w, rules.zap, rules.spawns, key, scratch)
    count_down(state, w)
    share = _count_dirt(state.ground[w], rules) / len(rules.river)
    for i in range(len(scratch.hit)):
        state.metrics[w, i, DIRT_SHARE] += (share - state.metrics[w, i, DIRT_SHARE]) / (state.turn[w] + 1)
    finish_turn(state, w, rules.timing)
    compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def growth_chance(ground: Any, rules: Any) -> Any:
    """The chance of an apple per orchard cell and turn, in single precision as SocialJax has it."""
    share = np.float32(_count_dirt(ground, rules)) / np.float32(rules.water)
    healthy = (share - rules.threshold) / (np.float32(0.0) - rules.threshold)
    return rules.growth * min(healthy, np.float32(1.0))


@kernel(inline=True, allocates=False)
def _grow(state: Any, w: int, rules: Any, grow: Any) -> None:
    """Apples grow on empty orchard cells; in Melting Pot's rules also under an agent, who eats it."""
    ground, who, marks = state.ground[w], state.who[w], state.marks[w]
    chance = growth_chance(ground, rules)
    if chance <= 0:
        return
    for k in range(len(rules.orchard)):
        row, col = rules.orchard[k]
        marked = rules.variant == SOCIALJAX and marks[row, col] > 0
        if grow[0, k] < chance and ground[row, col] == EMPTY and not marked:
            if who[row, col] == 0:
                ground[row, col] = APPLE
            elif rules.variant == MELTINGPOT:
                ground[row, col] = APPLE
                _eat(state, w, who[row, col] - 1)


@kernel(inline=True, allocates=False)
def _soil(state: Any, w: int, rules: Any, scratch: Any) -> None:
    """One clean cell becomes dirty, unless an agent stands on it."""
    row, col = scratch.picked[0], scratch.picked[1]
    due = scratch.luck[0] < rules.dirt and state.turn[w] >= rules.delay
    if due and state.ground[w, row, col] == CLEAN and state.who[w, row, col] == 0:
        state.ground[w, row, col] = DIRT


@kernel(inline=True, allocates=False)
def _eat(state: Any, w: int, i: int) -> None:
    row, col = state.places[w, i, 0], state.places[w, i, 1]
    if state.ground[w, row, col] == APPLE:
        state.ground[w, row, col] = EMPTY
        state.gain[w, i] += 1
        state.inventory[w, i, 0] += 1
        state.metrics[w, i, EATEN] += 1


@kernel(allocates=False)
def _clean(state: Any, w: int, rules: Any, reach: Any) -> None:
    """All clean beams at once; each counts the dirt that it reached, also where another beam reached it too."""
    ground, who, marks = state.ground[w], state.who[w], state.marks[w]
    washed = False
    for i in range(state.places.shape[1]):
        if state.actions[w, i] != CLEAN_ACTION or state.away[w, i] > 0 or state.cooldown[w, i, 1] > 0:
            continue
        state.cooldown[w, i, 1] = rules.period
        state.metrics[w, i, CLEANS] += 1
        aim(rules.beam, state.places[w, i], ground, who, rules.stops, reach)
        for k in range(len(rules.beam.cells)):
            row, col = reach[k, 0], reach[k, 1]
            if not reach[k, 2]:
                continue
            if marks[row, col] == 0:
                marks[row, col] = WASHED
            if who[row, col] == 0 and (ground[row, col] == DIRT or ground[row, col] == WASHING):
                state.metrics[w, i, CLEANED] += 1
                ground[row, col] = WASHING
                washed = True
    if washed:
        _rinse(ground, rules)


@kernel(allocates=False)
def _rinse(ground: Any, rules: Any) -> None:
    """Cells that beams have reached in this turn are clean."""
    for k in range(len(rules.river)):
        row, col = rules.river[k]
        if ground[row, col] == WASHING:
            ground[row, col] = CLEAN


@kernel(allocates=False)
def _clean_socialjax(state: Any, w: int, rules: Any, reach: Any) -> None:
    """Every agent writes its four cells, as they were or cleaned; for each cell the last one decides.

    The order is: all cells 1 ahead by agent, then 2 ahead, then the diagonals.
    """
    ground, who = state.ground[w], state.who[w]
    height, width = ground.shape
    for role in range(4):
        for i in range(state.places.shape[1]):
            aim_socialjax(state.places[w, i], height, width, reach)
            row, col = reach[role, 0], reach[role, 1]
            if not reach[role, 2] or who[row, col] > 0:
                continue
            if ground[row, col] == DIRT or ground[row, col] == WASHING:
                ground[row, col] = WASHING if state.actions[w, i] == CLEAN_ACTION else DIRT
    for i in range(state.places.shape[1]):
        if state.actions[w, i] == CLEAN_ACTION:
            aim_socialjax(state.places[w, i], height, width, reach)
            state.metrics[w, i, CLEANS] += 1
            for role in range(4):
                if reach[role, 2] and ground[reach[role, 0], reach[role, 1]] == WASHING:
                    state.metrics[w, i, CLEANED] += 1
    _rinse(ground, rules)
    mark_socialjax(state, w, CLEAN_ACTION, WASHED, reach)


SEEN_APPLE, SEEN_DIRT, OTHER = 2, 5, 8
"""Channels of a view."""
PLAYERS = {
    "cooperator": scripted("Cleans the river and eats nothing.", goal=SEEN_DIRT, fire_at=SEEN_DIRT, fire=CLEAN_ACTION),
    "defector": scripted("Eats apples and zaps who is ahead.", goal=SEEN_APPLE, fire_at=OTHER, fire=ZAP),
    "greedy": scripted("Eats apples and never cleans.", goal=SEEN_APPLE),
}
ENTRY = GameEntry(
    name="cleanup", summary=SHIPPED["cleanup"].summary, options=CleanupOptions, make=Cleanup, players=PLAYERS
)
