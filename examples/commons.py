"""Commons: berries grow next to berries, so a herd that eats the last ones finds no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import remuda
from remuda import Game, GameEntry, GameSpec, Group, Options, grid, kernel, rng

BERRY, AGENT, KINDS = 2, 3, 4  # remuda.grid has EMPTY = 0 and WALL = 1
SIGNS = ".#o@"
COLOURS = np.array([[222, 214, 180], [92, 84, 76], [176, 32, 92], [60, 90, 220]], np.uint8)
LEGEND = (
    remuda.scene.SceneKind("field", "#ded6b4"),
    remuda.scene.SceneKind("wall", "#5c544c"),
    remuda.scene.SceneKind("berry", "#b0205c", remuda.scene.DISC),
)
STEPS = np.vstack([grid.MOVES, [[0, 0]]])  # up, down, left, right, and stay
EATEN, LEFT = 0, 1


class CommonsOptions(Options):
    """The options of the game."""

    agents: int = Field(4, ge=1, le=10, description="how many agents share a field")
    size: int = Field(13, ge=6, le=99, description="rows and columns, walls included")
    turns: int = Field(100, ge=1, description="turns in an episode")
    radius: int = Field(2, ge=1, le=9, description="how many cells an agent sees to each side")
    berries: float = Field(0.3, ge=0, le=1, description="chance that a cell starts with a berry")
    growth: float = Field(0.04, ge=0, le=1, description="chance of a berry per turn, for each berry next to the cell")


@kernel
def _reset(planes: Any, cells: Any, worlds: Any, keys: Any, berries: float) -> None:
    for i in range(len(worlds)):
        plane, key = planes[worlds[i]], rng.fold(keys[i], 1)
        grid.wall_border(plane)
        grid.place_apart(plane, AGENT, rng.fold(keys[i], 0), cells[worlds[i]])
        for row, col in np.ndindex(plane.shape):
            if plane[row, col] == grid.EMPTY and rng.uniform(key, row * plane.shape[1] + col) < berries:
                plane[row, col] = BERRY


@kernel
def _grow(planes: Any, keys: Any, turn: Any, over: Any, growth: float) -> None:
    for w in range(len(planes)):
        if over[w]:
            continue
        old, key = planes[w].copy(), rng.fold(keys[w], 2 + turn[w])
        for row, col in np.ndindex(old.shape):
            if old[row, col] == grid.EMPTY:
                near = grid.count_kind(old[row - 1 : row + 2, col - 1 : col + 2], BERRY)
                if rng.uniform(key, row * old.shape[1] + col) < growth * near:
                    planes[w, row, col] = BERRY


@kernel
def _observe(planes: Any, cells: Any, radius: int, first: int, out: Any) -> None:
    out[:] = 0
    for w, i in np.ndindex(out.shape[:2]):
        cell = cells[w, first + i]
        grid.add_view(planes[w], cell[0], cell[1], radius, out[w, i])


@kernel
def _act(planes: Any, cells: Any, over: Any, first: int, actions: Any, eaten: Any) -> None:
    for w, i in np.ndindex(actions.shape):
        plane, cell, step = planes[w], cells[w, first + i], STEPS[actions[w, i]]
        row, col = cell[0] + step[0], cell[1] + step[1]
        if not over[w] and (plane[row, col] == grid.EMPTY or plane[row, col] == BERRY):
            eaten[w, i] = plane[row, col] == BERRY
            plane[cell[0], cell[1]] = grid.EMPTY
            plane[row, col] = AGENT
            cell[0], cell[1] = row, col


class Commons(Game):
    """Worlds of Commons."""

    def __init__(self, options: CommonsOptions, worlds: Sequence[int]) -> None:
        self.options = options
        count, agents, size = len(worlds), options.agents, options.size
        seen = KINDS * (2 * options.radius + 1) ** 2
        group = Group("pickers", agents, (seen,), np.uint8, len(STEPS), metrics=("eaten", "left"), low=0, high=1)
        super().__init__(GameSpec("commons", (group,), options.turns, options.model_dump()), count)
        self.planes = np.zeros((count, size, size), np.uint8)
        self.cells = np.zeros((count, agents, 2), np.int64)  # (worlds, agents, row/col)
        self.keys: rng.Keys = np.zeros(count, np.uint64)
        self.turn = np.zeros(count, np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: rng.Keys) -> None:
        """Agents on random cells, berries on some of the others."""
        self.signals[0].clear(worlds)
        self.keys[worlds] = keys
        self.turn[worlds] = 0
        self.over[worlds] = False
        _reset(self.planes, self.cells, worlds, keys, self.options.berries)

    def begin(self) -> None:
        """Let berries grow next to berries."""
        _grow(self.planes, self.keys, self.turn, self.over, self.options.growth)

    def observe(self, group: int, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Write the square around each agent, one-hot by kind."""
        _observe(self.planes, self.cells, self.options.radius, first, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Move the agents; each eats the berry it steps on."""
        eaten = np.zeros(actions.shape, np.float32)
        _act(self.planes, self.cells, self.over, first, actions, eaten)
        self.signals[0].rewards[:, first:last] += eaten
        self.signals[0].metrics[:, first:last, EATEN] += eaten

    def end(self) -> None:
        """Count the turn and the berries; truncate every agent after the last turn."""
        running = ~self.over
        self.turn[running] += 1
        self.signals[0].metrics[running, :, LEFT] = (self.planes[running] == BERRY).sum(axis=(1, 2))[:, None]
        done = running & (self.turn == self.spec.turns)
        self.signals[0].truncated[done] = True
        self.over |= done

    def scene(self, world: int) -> remuda.scene.Scene:
        """The field, and each agent in its own colour."""
        field = np.where(self.planes[world] == AGENT, grid.EMPTY, self.planes[world])
        agents = (remuda.scene.SceneAgent(i, int(row), int(col)) for i, (row, col) in enumerate(self.cells[world]))
        return remuda.scene.Scene(LEGEND, field.astype(np.uint8), tuple(agents))

    def render(self, world: int) -> NDArray[np.uint8]:
        """One pixel per cell."""
        return grid.paint(self.planes[world], COLOURS)

    def text(self, world: int) -> str:
        """`@` agents, `o` berries."""
        return grid.draw_text(self.planes[world], SIGNS)


ENTRY = GameEntry("commons", "berries grow next to berries; each one eaten is worth 1", CommonsOptions, Commons)
