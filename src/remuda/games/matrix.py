"""Matrix arena: agents collect resources of two kinds, then meet, and play a matrix game with what they hold.

Sources: "in the matrix" of Melting Pot (arena). docs/games/matrix.md has the rules and the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameEntry, GameSpec
from remuda.core.kernels import kernel
from remuda.core.options import Options
from remuda.core.rng import Keys, below, fold, uniform
from remuda.core.scene import SceneKind
from remuda.games.grid import (
    EMPTY,
    WALL,
    Arena,
    Beam,
    Timing,
    aim,
    arena_group,
    bring_back,
    cells_with,
    check_start_cells,
    clear_marks,
    clear_view,
    compose,
    count_down,
    draw_moves,
    draw_spawns,
    fill_ground,
    finish_turn,
    flag_agent,
    go_to_starts,
    keep_places,
    make_scratch,
    make_view,
    move_agents,
    open_turn,
    place_agents,
    put_agents,
    read_map,
    send_away,
    shuffle,
    start_world,
    want_moves,
    wide_beam,
    write_view,
)
from remuda.games.shipped import SHIPPED
from remuda.games.social_players import scripted

MARK, FIRST, SECOND, FIRST_AGENT = 2, 3, 4, 5
INTERACT = 7
CHANNELS = {WALL: 0, MARK: 1, FIRST: 2, SECOND: 3}
SEEN = 20
"""Resources of a kind that a view shows at most."""
PAYOFFS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "prisoners_dilemma": ((3, 0), (5, 1)),
    "chicken": ((3, 2), (5, 0)),
    "stag_hunt": ((4, 0), (2, 2)),
    "bach_or_stravinsky": ((3, 0), (0, 2)),
}
"""What an agent receives: by its own kind (row) and the other's (column). In bach_or_stravinsky this is what agents
with even numbers receive; for the others the two kinds are exchanged."""
KIND_NAMES = {
    "prisoners_dilemma": ("cooperate", "defect"),
    "chicken": ("dove", "hawk"),
    "stag_hunt": ("stag", "hare"),
    "bach_or_stravinsky": ("bach", "stravinsky"),
}
METRICS = ("first_kind", "second_kind", "interactions", "first_share")
COLLECTED, INTERACTIONS, FIRST_SHARE = 0, 2, 3
SIGNS = "12RPW "
MAP = """\
P        P       P       P

   11   22   RR   11   22
   11   22   RR   11   22

P            P           P

   22   RR   11   22   RR
   2    R    1    2    R

      P      P      P

   R    1    2    R    1

P                        P

   1    2         1    2

     P        P        P"""
KINDS = (
    SceneKind("floor", "#e4dcc4"), SceneKind("wall", "#5c544c"), SceneKind("interaction beam", "#fae65a"),
    SceneKind("first kind", "#2f9e64", "diamond"), SceneKind("second kind", "#b0392e", "disc"),
)  # fmt: skip
SOLID = np.array([False, True, False, False, False])


class MatrixOptions(Options):
    """The options of the matrix arena."""

    payoff: str | list[list[float]] = Field(
        "prisoners_dilemma",
        description="prisoners_dilemma, chicken, stag_hunt, bach_or_stravinsky, or [[a, b], [c, d]] of your own",
    )
    agents: int = Field(8, ge=2, le=100, description="how many agents share a world")
    turns: int = Field(1000, ge=1, description="turns in an episode")
    map: str | list[str] = Field("default", description="your own: 1, 2 resources, R either, P starts, W walls")
    view: int = Field(11, ge=3, le=31, description="rows and columns that an agent sees; odd")
    start_inventory: int = Field(1, ge=0, le=100, description="resources of each kind that an agent starts with")
    freeze: int = Field(16, ge=0, description="turns that two agents stand still after they met")
    timeout: int = Field(50, ge=1, description="turns that they are away after that")
    regrow: float = Field(0.04, ge=0, le=1, description="chance per turn that a taken resource comes back")
    wait: int = Field(10, ge=0, description="turns before it may come back")

    def check(self) -> None:
        """Refuse maps and payoffs that cannot be played."""
        if self.view % 2 == 0:
            raise ConfigError(f"view={self.view} should be odd: the agent is in the middle column")
        check_start_cells(len(cells_with(self.chart, "P")), self.agents, "cells P to start on")
        if isinstance(self.payoff, str):
            if self.payoff not in PAYOFFS:
                raise UnknownName("payoff", self.payoff, PAYOFFS)
        elif [len(row) for row in self.payoff] != [2, 2]:
            raise ConfigError(f"payoff={self.payoff} should be two rows of two numbers")

    @property
    def chart(self) -> NDArray[np.str_]:
        """The map as signs."""
        return read_map(MAP if self.map == "default" else self.map, SIGNS)

    def payoffs(self) -> NDArray[np.float64]:
        """What each agent receives, (agents, own kind, other's kind)."""
        own = np.array(PAYOFFS[self.payoff] if isinstance(self.payoff, str) else self.payoff, np.float64)
        table = np.repeat(own[None], self.agents, axis=0)
        if self.payoff == "bach_or_stravinsky":
            table[1::2] = own[::-1, ::-1]
        return table


class MatrixRules(NamedTuple):
    """The options as numbers and arrays."""

    ground: NDArray[np.uint8]  # (height, width)
    cells: NDArray[np.int64]  # (cells, row/col): of resources
    kinds: NDArray[np.int64]  # (cells,): FIRST, SECOND, or EMPTY for either
    spawns: NDArray[np.int64]  # (cells, row/col)
    payoffs: NDArray[np.float64]  # (agents, 2, 2)
    beam: Beam
    stops: NDArray[np.uint8]  # (kinds + 1,)
    start_inventory: int
    freeze: int
    timeout: int
    regrow: float
    wait: int
    margin: int
    timing: Timing


class Matrix(Arena):
    """Worlds of the matrix arena."""

    kinds: tuple[SceneKind, ...] = KINDS
    signs = ".#*12"

    def __init__(self, options: MatrixOptions, worlds: Sequence[int], name: str = "matrix") -> None:
        chart, agents = options.chart, options.agents
        view = make_view(CHANNELS, FIRST_AGENT, options.view, extra=3)
        group = arena_group("agents", agents, view, 8, METRICS)
        group = type(group)(**{**group.__dict__, "high": SEEN})
        super().__init__(
            GameSpec(name, (group,), options.turns, options.model_dump()), len(worlds), chart.shape, view, 2
        )
        self.kinds = name_kinds(options.payoff)
        cells = cells_with(chart, "12R")
        signs = {"1": FIRST, "2": SECOND, "R": EMPTY}
        self.rules = MatrixRules(
            ground=fill_ground(chart, {"W": WALL}),
            cells=cells,
            kinds=np.array([signs[str(chart[row, col])] for row, col in cells], np.int64),
            spawns=cells_with(chart, "P"),
            payoffs=options.payoffs(),
            beam=wide_beam(3, 1),
            stops=np.array([0, 2, 0, 1, 1, 1], np.uint8),
            start_inventory=options.start_inventory,
            freeze=options.freeze,
            timeout=options.timeout,
            regrow=options.regrow,
            wait=options.wait,
            margin=view.margin,
            timing=Timing(options.turns, 1.0, True),
        )
        self.empty_since = np.zeros((len(worlds), len(cells)), np.int64)  # turns that each cell has been empty
        self.scratch = make_scratch(agents, len(self.rules.spawns), len(self.rules.beam.cells), 1)

    def _reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        _reset(self.state, self.rules, self.scratch, self.empty_since, worlds, keys)

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write what each agent sees; its own cell shows what it holds, and who is ready to interact is marked."""
        _observe(self.state, self.view, self.rules.start_inventory, first, last, out)

    def captions(self, world: int) -> tuple[str, ...]:
        """How much of each kind the agents hold, and who waits."""
        names = "/".join(kind.name for kind in self.kinds[FIRST : SECOND + 1])
        holds = ", ".join(f"{i}: {first}/{second}" for i, (first, second) in enumerate(self.state.inventory[world]))
        return (f"hold {names}: {holds}", *super().captions(world))

    def end(self) -> None:
        """Play the turn in all worlds."""
        _end(self.state, self.rules, self.scratch, self.empty_since)


def name_kinds(payoff: str | list[list[float]]) -> tuple[SceneKind, ...]:
    """The legend of a payoff matrix; the kinds of one's own matrix are the first and the second."""
    first, second = KIND_NAMES[payoff] if isinstance(payoff, str) else ("first kind", "second kind")
    return (*KINDS[:FIRST], KINDS[FIRST]._replace(name=first), KINDS[SECOND]._replace(name=second))


@kernel(allocates=False)
def _reset(state: Any, rules: Any, scratch: Any, empty_since: Any, worlds: Any, keys: Any) -> None:
    for n in range(len(worlds)):
        w, key = worlds[n], fold(keys[n], 0)
        start_world(state, w, keys[n], rules.ground)
        for k in range(len(rules.cells)):
            _fill(state.ground[w], rules, k, fold(key, 2))
        empty_since[w] = 0
        state.inventory[w] = rules.start_inventory
        shuffle(fold(key, 0), scratch.order)
        place_agents(state, w, rules.spawns, 0, scratch.order, fold(key, 1), 4)
        put_agents(state, w)
        compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _fill(ground: Any, rules: Any, k: int, key: Any) -> None:
    kind = rules.kinds[k]
    if kind == EMPTY:
        kind = FIRST + below(key, k, 2)
    ground[rules.cells[k, 0], rules.cells[k, 1]] = kind


@kernel(allocates=False)
def _observe(state: Any, view: Any, start: int, first: int, last: int, out: Any) -> None:
    extra, middle = view.channels - 3, view.side // 2
    for w in range(out.shape[0]):
        for n in range(last - first):
            i = first + n
            if state.away[w, i] > 0:
                clear_view(out[w, n])
                continue
            write_view(state.codes[w], state.places[w], i, view, out[w, n])
            out[w, n, view.ahead, middle, extra] = min(state.inventory[w, i, 0], SEEN)
            out[w, n, view.ahead, middle, extra + 1] = min(state.inventory[w, i, 1], SEEN)
        for j in range(state.places.shape[1]):
            if not is_ready(state, w, j, start):
                continue
            for n in range(last - first):
                if state.away[w, first + n] == 0:
                    flag_agent(state.places[w], first + n, j, view, extra + 2, out[w, n])


@kernel(allocates=False)
def is_ready(state: Any, w: int, i: int, start: int) -> bool:
    """Whether an agent can interact: it has collected something, and stands on the map, not frozen."""
    held = state.inventory[w, i, 0] + state.inventory[w, i, 1]
    return bool(held > 2 * start and state.frozen[w, i] == 0 and state.away[w, i] == 0)


@kernel(allocates=False)
def _end(state: Any, rules: Any, scratch: Any, empty_since: Any) -> None:
    for w in range(len(state.turn)):
        if not state.over[w]:
            key = fold(state.keys[w], state.turn[w] + 1)
            draw_moves(key, scratch)
            _play(state, w, rules, scratch, empty_since[w], key)


@kernel(allocates=False)
def _play(state: Any, w: int, rules: Any, scratch: Any, empty_since: Any, key: Any) -> None:
    open_turn(state, w, scratch)
    _regrow(state, w, rules, empty_since, key)
    go_to_starts(state, w)
    want_moves(state.places[w], state.actions[w], True, state.ground[w], SOLID, scratch.wanted)
    for i in range(len(scratch.hit)):
        if state.frozen[w, i] > 0:
            scratch.wanted[i, 0], scratch.wanted[i, 1] = state.places[w, i, 0], state.places[w, i, 1]
    move_agents(state, w, True, scratch)
    _collect(state, w)
    clear_marks(state, w)
    _interact(state, w, rules, scratch)
    if state.away[w].any():
        draw_spawns(key, 4, scratch)
        bring_back(state, w, rules.spawns, scratch)
    _leave(state, w, rules, scratch)
    count_down(state, w)
    keep_places(state, w)
    finish_turn(state, w, rules.timing)
    compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _regrow(state: Any, w: int, rules: Any, empty_since: Any, key: Any) -> None:
    """A resource that was taken comes back after a wait, with a chance in every turn, unless an agent stands there."""
    luck = fold(key, 0)
    for k in range(len(rules.cells)):
        row, col = rules.cells[k]
        if state.ground[w, row, col] != EMPTY:
            empty_since[k] = 0
            continue
        empty_since[k] += 1
        if empty_since[k] > rules.wait and state.who[w, row, col] == 0 and uniform(luck, k) < rules.regrow:
            _fill(state.ground[w], rules, k, fold(key, 4))


@kernel(allocates=False)
def _collect(state: Any, w: int) -> None:
    for i in range(state.places.shape[1]):
        row, col = state.places[w, i, 0], state.places[w, i, 1]
        kind = state.ground[w, row, col]
        if state.away[w, i] == 0 and kind in (FIRST, SECOND):
            state.ground[w, row, col] = EMPTY
            state.inventory[w, i, kind - FIRST] += 1
            state.metrics[w, i, COLLECTED + kind - FIRST] += 1


@kernel(allocates=False)
def _interact(state: Any, w: int, rules: Any, scratch: Any) -> None:
    """Beams fire in a random order; the first agent in reach that is ready plays with the shooter, once per turn."""
    for n in range(len(scratch.priority)):
        i = scratch.priority[n]
        if state.actions[w, i] != INTERACT or state.away[w, i] > 0 or state.cooldown[w, i, 0] > 0:
            continue
        state.cooldown[w, i, 0] = 3
        aim(rules.beam, state.places[w, i], state.ground[w], state.who[w], rules.stops, scratch.reach)
        for k in range(len(scratch.reach)):
            if not scratch.reach[k, 2]:
                continue
            row, col = scratch.reach[k, 0], scratch.reach[k, 1]
            state.marks[w, row, col] = MARK
            j = int(state.who[w, row, col]) - 1
            if j >= 0 and not scratch.hit[i] and not scratch.hit[j] and _can_meet(state, w, i, j, rules):
                _pay(state, w, i, j, rules.payoffs)
                scratch.hit[i] = True
                scratch.hit[j] = True


@kernel(allocates=False)
def _can_meet(state: Any, w: int, i: int, j: int, rules: Any) -> bool:
    start = rules.start_inventory
    return i != j and is_ready(state, w, i, start) and is_ready(state, w, j, start)


@kernel(allocates=False)
def _pay(state: Any, w: int, i: int, j: int, payoffs: Any) -> None:
    """Both receive what their payoffs say for the shares of the kinds that they hold."""
    mine = state.inventory[w, i, 0] / (state.inventory[w, i, 0] + state.inventory[w, i, 1])
    yours = state.inventory[w, j, 0] / (state.inventory[w, j, 0] + state.inventory[w, j, 1])
    state.gain[w, i] += _expected(payoffs[i], mine, yours)
    state.gain[w, j] += _expected(payoffs[j], yours, mine)
    _count(state.metrics[w, i], mine)
    _count(state.metrics[w, j], yours)


@kernel(allocates=False)
def _expected(payoff: Any, own: float, other: float) -> float:
    first = payoff[0, 0] * other + payoff[0, 1] * (1 - other)
    second = payoff[1, 0] * other + payoff[1, 1] * (1 - other)
    return float(own * first + (1 - own) * second)


@kernel(allocates=False)
def _count(metrics: Any, share: float) -> None:
    metrics[INTERACTIONS] += 1
    metrics[FIRST_SHARE] += (share - metrics[FIRST_SHARE]) / metrics[INTERACTIONS]


@kernel(allocates=False)
def _leave(state: Any, w: int, rules: Any, scratch: Any) -> None:
    """Agents that have met stand still, then leave; their inventories are as at the start."""
    for i in range(len(scratch.hit)):
        if state.frozen[w, i] == 1 or (scratch.hit[i] and rules.freeze == 0):
            state.frozen[w, i] = 0
            send_away(state, w, i, rules.timeout)
        if scratch.hit[i]:
            state.inventory[w, i] = rules.start_inventory
            if rules.freeze > 0:
                state.frozen[w, i] = rules.freeze + 1
                state.alive[w, i] = False


OTHER = 5
"""The channel of another agent in a view."""
PLAYERS = {
    "cooperator": scripted(
        "Collects the first kind, then meets.", CHANNELS[FIRST], fire_at=OTHER, fire=INTERACT, relative=True
    ),
    "defector": scripted(
        "Collects the second kind, then meets.", CHANNELS[SECOND], fire_at=OTHER, fire=INTERACT, relative=True
    ),
    "greedy": scripted(
        "Collects whatever is near, then meets.",
        CHANNELS[FIRST],
        CHANNELS[SECOND],
        fire_at=OTHER,
        fire=INTERACT,
        relative=True,
    ),
}
ENTRY = GameEntry(name="matrix", summary=SHIPPED["matrix"].summary, options=MatrixOptions, make=Matrix, players=PLAYERS)
