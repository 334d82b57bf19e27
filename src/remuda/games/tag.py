"""Tag: one agent is "it"; who is not it is paid in every turn, and it hands the role on by standing next to another.

Source: the game of Sorrel. docs/games/tag.md has the rules and the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.game import GameEntry, GameSpec
from remuda.core.kernels import kernel
from remuda.core.options import Options
from remuda.core.rng import Keys, below, fold
from remuda.core.scene import FRAME, Scene, SceneKind
from remuda.games.grid import (
    WALL,
    Arena,
    Timing,
    arena_group,
    compose,
    draw_moves,
    finish_turn,
    flag_agent,
    go_to_starts,
    keep_places,
    make_scratch,
    make_view,
    move_agents,
    open_turn,
    place_apart,
    put_agents,
    start_world,
    want_moves,
    write_view,
)
from remuda.games.grid.facing import AHEAD
from remuda.games.grid.planes import wall_border
from remuda.games.shipped import SHIPPED
from remuda.games.social_players import scripted

MARK, FIRST_AGENT = 2, 3
METRICS = ("turns_as_it", "tags", "tagged")
AS_IT, TAGS, TAGGED = 0, 1, 2
IT = "#ffd21f"
KINDS = (
    SceneKind("floor", "#e4dcc4"), SceneKind("wall", "#5c544c"), SceneKind("next to it", "#f2c14e"),
    SceneKind("it", IT, FRAME),
)  # fmt: skip
SOLID = np.array([False, True, False])
TAG_ORDER = (2, 1, 0, 3)  # north, east, south, west


class TagOptions(Options):
    """The options of Tag."""

    agents: int = Field(5, ge=2, le=100, description="how many agents share a world")
    height: int = Field(11, ge=4, le=200, description="rows, walls included")
    width: int = Field(11, ge=4, le=200, description="columns, walls included")
    turns: int = Field(100, ge=1, description="turns in an episode")
    view: int = Field(9, ge=3, le=31, description="rows and columns that an agent sees; odd")
    value: float = Field(10.0, ge=0, le=1e6, description="what an agent that is not it is paid per turn")

    def check(self) -> None:
        """Refuse agents that do not fit."""
        if self.view % 2 == 0:
            raise ConfigError(f"view={self.view} should be odd: the agent is in the middle column")
        cells = (self.height - 2) * (self.width - 2)
        if self.agents > cells:
            raise ConfigError(f"agents={self.agents} do not fit on {cells} free cells: lower agents or raise height")


class TagRules(NamedTuple):
    """The options as numbers."""

    value: float
    margin: int
    timing: Timing


class Tag(Arena):
    """Worlds of Tag. Whether an agent is it, is its inventory."""

    kinds = KINDS
    signs = ".#*"

    def __init__(self, options: TagOptions, worlds: Sequence[int]) -> None:
        view = make_view({WALL: 0}, FIRST_AGENT, options.view, compass=True, extra=1)
        view.channel[MARK] = 0
        group = arena_group("agents", options.agents, view, 7, METRICS)
        spec = GameSpec("tag", (group,), options.turns, options.model_dump())
        super().__init__(spec, len(worlds), (options.height, options.width), view)
        self.rules = TagRules(options.value, view.margin, Timing(options.turns, 1.0, True))
        self.scratch = make_scratch(options.agents, 1, 1, 1)

    def _reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        _reset(self.state, self.rules, worlds, keys)

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write what each agent sees, and which agent is it."""
        _observe(self.state, self.view, first, last, out)

    def scene(self, world: int) -> Scene:
        """The map, with a ring around the agent that is it."""
        scene = super().scene(world)
        it = int(np.argmax(self.state.inventory[world, :, 0]))
        return replace(scene, agents=tuple(own._replace(ring=IT) if own.number == it else own for own in scene.agents))

    def captions(self, world: int) -> tuple[str, ...]:
        """Who is it."""
        return (f"agent {int(np.argmax(self.state.inventory[world, :, 0]))} is it",)

    def end(self) -> None:
        """Play the turn in all worlds."""
        _end(self.state, self.rules, self.scratch)


@kernel
def _reset(state: Any, rules: Any, worlds: Any, keys: Any) -> None:
    agents = state.places.shape[1]
    ground = np.zeros(state.ground.shape[1:], np.uint8)
    cells = np.zeros((agents, 2), np.int64)
    for n in range(len(worlds)):
        w, key = worlds[n], fold(keys[n], 0)
        wall_border(ground)
        start_world(state, w, keys[n], ground)
        place_apart(ground, MARK, fold(key, 0), cells)
        for i in range(agents):
            state.places[w, i, 0] = cells[i, 0]
            state.places[w, i, 1] = cells[i, 1]
            state.places[w, i, 2] = below(fold(key, 1), i, 4)
        keep_places(state, w)
        state.inventory[w, below(fold(key, 2), 0, agents), 0] = 1
        put_agents(state, w)
        compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _observe(state: Any, view: Any, first: int, last: int, out: Any) -> None:
    for w in range(out.shape[0]):
        for n in range(last - first):
            write_view(state.codes[w], state.places[w], first + n, view, out[w, n])
            for j in range(state.places.shape[1]):
                if state.inventory[w, j, 0]:
                    flag_agent(state.places[w], first + n, j, view, view.compass - 1, out[w, n])


@kernel(allocates=False)
def _end(state: Any, rules: Any, scratch: Any) -> None:
    for w in range(len(state.turn)):
        if not state.over[w]:
            draw_moves(fold(state.keys[w], state.turn[w] + 1), scratch)
            _play(state, w, rules, scratch)


@kernel(allocates=False)
def _play(state: Any, w: int, rules: Any, scratch: Any) -> None:
    open_turn(state, w, scratch)
    go_to_starts(state, w)
    want_moves(state.places[w], state.actions[w], False, state.ground[w], SOLID, scratch.wanted)
    move_agents(state, w, False, scratch)
    _pass_on(state, w)
    for i in range(len(scratch.hit)):
        if state.inventory[w, i, 0]:
            state.metrics[w, i, AS_IT] += 1
        else:
            state.gain[w, i] += rules.value
    keep_places(state, w)
    finish_turn(state, w, rules.timing)
    compose(state, w, FIRST_AGENT, rules.margin)


@kernel(allocates=False)
def _pass_on(state: Any, w: int) -> None:
    """The agent that is it tags the first one next to it: north, east, south, then west."""
    for i in range(state.places.shape[1]):
        if not state.inventory[w, i, 0]:
            continue
        for way in TAG_ORDER:
            row, col = state.places[w, i, 0] + AHEAD[way, 0], state.places[w, i, 1] + AHEAD[way, 1]
            j = np.int64(state.who[w, row, col]) - 1
            if j >= 0:
                state.inventory[w, i, 0] = 0
                state.inventory[w, j, 0] = 1
                state.metrics[w, i, TAGS] += 1
                state.metrics[w, j, TAGGED] += 1
                break
        return


OTHER = 2
"""The channel of another agent in a view."""
ENTRY = GameEntry(
    name="tag",
    summary=SHIPPED["tag"].summary,
    options=TagOptions,
    make=Tag,
    players={"chaser": scripted("Walks to the nearest agent.", goal=OTHER)},
)
