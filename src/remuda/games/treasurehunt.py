"""Treasurehunt: agents forage for gems and food, and learn to avoid bones.

Items appear on empty cells and stay until an agent steps on them. A move pays the value of the cell that it aims at,
even if a wall or another agent blocks it. An agent has the value 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.game import Game, GameEntry, GameSpec, Group, option_per_world
from remuda.core.kernels import kernel
from remuda.core.options import Options
from remuda.core.rng import Keys, below, fold
from remuda.core.scene import CROSS, DIAMOND, DISC, Scene, SceneAgent, SceneKind
from remuda.games.grid import (
    EMPTY,
    MOVES,
    WALL,
    add_view,
    draw_text,
    log_miss,
    next_success,
    paint,
    place_apart,
    wall_border,
)
from remuda.games.shipped import SHIPPED

GEM, BONE, FOOD, AGENT = 2, 3, 4, 5
KINDS = 6
GEMS, FOODS, BONES, BUMPS = 0, 1, 2, 3
METRICS = ("gems", "food", "bones", "bumps")
COLOURS = np.array(
    [[236, 226, 198], [92, 84, 76], [46, 184, 114], [196, 58, 72], [240, 150, 40], [70, 90, 220]], np.uint8
)
SCENE_KINDS = (
    SceneKind("floor", "#ece2c6"),
    SceneKind("wall", "#5c544c"),
    SceneKind("gem", "#1f9d5c", DIAMOND),
    SceneKind("bone", "#c43a48", CROSS),
    SceneKind("food", "#f5cd3d", DISC),
)
SIGNS = ".#*x+@"


class TreasurehuntOptions(Options):
    """The numbers of the game. An option marked "per world" may be a list: world w takes entry w, modulo its length."""

    agents: int = Field(2, ge=1, description="how many agents share a world")
    height: int = Field(21, ge=3, le=4096, description="rows, walls included")
    width: int = Field(21, ge=3, le=4096, description="columns, walls included")
    turns: int = Field(100, ge=1, description="turns in an episode")
    radius: int = Field(2, ge=0, le=64, description="how many cells an agent sees to each side")
    spawn: float | list[float] = Field(0.005, description="chance of an item per empty cell and turn; per world")
    gem: float | list[float] = Field(10.0, description="value of a gem; per world")
    food: float | list[float] = Field(5.0, description="value of food; per world")
    bone: float | list[float] = Field(-10.0, description="value of a bone; per world")
    wall: float | list[float] = Field(-1.0, description="value of walking into a wall; per world")

    def check(self) -> None:
        """Refuse options that contradict each other."""
        cells = (self.height - 2) * (self.width - 2)
        if self.agents > cells:
            raise ConfigError(
                f"agents={self.agents} do not fit on {cells} free cells: "
                f"lower agents or raise height and width (now {self.height}×{self.width})"
            )
        for name in ("spawn", "gem", "food", "bone", "wall"):
            if getattr(self, name) == []:
                raise ConfigError(f"{name} is an empty list: give one value, or one per world")
            if np.abs(getattr(self, name)).max() > np.finfo(np.float32).max:
                raise ConfigError(f"{name}={getattr(self, name)} is too large: rewards have single precision")
        chances = self.spawn if isinstance(self.spawn, list) else [self.spawn]
        if not all(0.0 <= p <= 1.0 for p in chances):
            raise ConfigError(f"spawn={self.spawn} is not a probability: give a number from 0 to 1")


class TreasurehuntState(NamedTuple):
    """The state of all worlds."""

    planes: NDArray[np.uint8]  # (worlds, height, width)
    cells: NDArray[np.int64]  # (worlds, agents, row/col)
    keys: Keys  # (worlds,)
    turn: NDArray[np.int64]  # (worlds,)
    over: NDArray[np.bool_]  # (worlds,)
    rewards: NDArray[np.float32]  # (worlds, agents)
    truncated: NDArray[np.bool_]  # (worlds, agents)
    metrics: NDArray[np.float32]  # (worlds, agents, metrics)


class TreasurehuntRules(NamedTuple):
    """The options as arrays, per world where they may differ."""

    log_miss: NDArray[np.float64]  # (worlds,): log(1 - spawn)
    values: NDArray[np.float32]  # (worlds, kinds)
    radius: int
    turns: int


class Treasurehunt(Game):
    """Worlds of Treasurehunt."""

    def __init__(self, options: TreasurehuntOptions, worlds: Sequence[int]) -> None:
        side = 2 * options.radius + 1
        group = Group(
            name="foragers",
            size=options.agents,
            obs_shape=(KINDS * side * side,),
            obs_dtype=np.uint8,
            actions=len(MOVES),
            metrics=METRICS,
            low=0,
            high=1,
        )
        super().__init__(GameSpec("treasurehunt", (group,), options.turns, options.model_dump()), len(worlds))
        count = len(worlds)
        values = np.zeros((count, KINDS), np.float32)
        for kind, value in (
            (WALL, options.wall),
            (GEM, options.gem),
            (FOOD, options.food),
            (BONE, options.bone),
        ):
            values[:, kind] = per_world(value, worlds)
        self.rules = TreasurehuntRules(
            log_miss(per_world(options.spawn, worlds)), values, options.radius, options.turns
        )
        signals = self.signals[0]
        self.state = TreasurehuntState(
            planes=np.zeros((count, options.height, options.width), np.uint8),
            cells=np.zeros((count, options.agents, 2), np.int64),
            keys=np.zeros(count, np.uint64),
            turn=np.zeros(count, np.int64),
            over=self.over,
            rewards=signals.rewards,
            truncated=signals.truncated,
            metrics=signals.metrics,
        )

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Empty the map and put the agents on random cells."""
        self.signals[0].clear(worlds)
        _reset(self.state, worlds, keys)

    def begin(self) -> None:
        """Let new items appear."""
        _spawn(self.state, self.rules)

    def observe(self, group: int, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Write the window around each agent, one-hot by kind."""
        _observe(self.state, self.rules, first, last, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Move the agents, and pay for the cells they aim at."""
        _act(self.state, self.rules, first, last, actions)

    def end(self) -> None:
        """Count the turn; truncate every agent after the last."""
        _end(self.state, self.rules)

    def scene(self, world: int) -> Scene:
        """The map, and the agents on it."""
        plane = self.state.planes[world]
        agents = (SceneAgent(i, int(row), int(col)) for i, (row, col) in enumerate(self.state.cells[world]))
        return Scene(SCENE_KINDS, np.where(plane == AGENT, EMPTY, plane).astype(np.uint8), tuple(agents))

    def render(self, world: int) -> NDArray[np.uint8]:
        """The map, one pixel per cell."""
        return paint(self.state.planes[world], COLOURS)

    def text(self, world: int) -> str:
        """The map as text: `@` agents, `*` gems, `+` food, `x` bones."""
        return draw_text(self.state.planes[world], SIGNS)


def per_world(value: float | list[float], worlds: Sequence[int]) -> NDArray[np.float64]:
    """An option's value in each world, (worlds,)."""
    return np.array(option_per_world(value, worlds), np.float64)


@kernel
def _reset(state: Any, worlds: Any, keys: Any) -> None:
    for i in range(len(worlds)):
        w = worlds[i]
        wall_border(state.planes[w])
        place_apart(state.planes[w], AGENT, fold(keys[i], 0), state.cells[w])
        state.keys[w] = keys[i]
        state.turn[w] = 0
        state.over[w] = False


@kernel
def _spawn(state: Any, rules: Any) -> None:
    worlds, height, width = state.planes.shape
    inner = width - 2
    cells = (height - 2) * inner
    for w in range(worlds):
        if state.over[w]:
            continue
        key = fold(state.keys[w], state.turn[w] + 1)
        draw = 0
        cell = next_success(key, draw, rules.log_miss[w])
        while cell < cells:
            row = 1 + cell // inner
            col = 1 + cell % inner
            if state.planes[w, row, col] == EMPTY:
                state.planes[w, row, col] = GEM + below(key, draw + 1, 3)
            draw += 2
            cell += 1 + next_success(key, draw, rules.log_miss[w])


@kernel
def _observe(state: Any, rules: Any, first: int, last: int, out: Any) -> None:
    out[:] = 0
    for w in range(out.shape[0]):
        for i in range(last - first):
            cell = state.cells[w, first + i]
            add_view(state.planes[w], cell[0], cell[1], rules.radius, out[w, i])


@kernel
def _act(state: Any, rules: Any, first: int, last: int, actions: Any) -> None:
    for w in range(actions.shape[0]):
        if state.over[w]:
            continue
        plane = state.planes[w]
        for i in range(last - first):
            agent = first + i
            row = state.cells[w, agent, 0]
            col = state.cells[w, agent, 1]
            to_row = row + MOVES[actions[w, i], 0]
            to_col = col + MOVES[actions[w, i], 1]
            kind = plane[to_row, to_col]
            state.rewards[w, agent] += rules.values[w, kind]
            _count(state.metrics[w, agent], kind)
            if kind != WALL and kind != AGENT:
                plane[row, col] = EMPTY
                plane[to_row, to_col] = AGENT
                state.cells[w, agent, 0] = to_row
                state.cells[w, agent, 1] = to_col


@kernel
def _count(metrics: Any, kind: int) -> None:
    if kind == GEM:
        metrics[GEMS] += 1
    elif kind == FOOD:
        metrics[FOODS] += 1
    elif kind == BONE:
        metrics[BONES] += 1
    elif kind != EMPTY:
        metrics[BUMPS] += 1


@kernel
def _end(state: Any, rules: Any) -> None:
    for w in range(state.turn.shape[0]):
        if state.over[w]:
            continue
        state.turn[w] += 1
        if state.turn[w] == rules.turns:
            state.over[w] = True
            state.truncated[w, :] = True


ENTRY = GameEntry(
    name="treasurehunt",
    summary=SHIPPED["treasurehunt"].summary,
    options=TreasurehuntOptions,
    make=Treasurehunt,
)
