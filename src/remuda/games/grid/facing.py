"""Agents that face a direction: turns, steps, and moves of all agents at once.

A facing is a number: 0 south (row + 1), 1 east, 2 north, 3 west. A turn to the left adds one. A place is (row, column,
facing).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remuda.core.kernels import kernel
from remuda.core.rng import below

SOUTH, EAST, NORTH, WEST = 0, 1, 2, 3
AHEAD = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.int64)  # (facing, row/col)
TURN_LEFT, TURN_RIGHT, STEP_LEFT, STEP_RIGHT, STEP_AHEAD, STEP_BACK, STAY = 0, 1, 2, 3, 4, 5, 6
"""The first seven actions of every game with facings. Where moves are absolute, 2 to 5 are east, west, south, north."""
ABSOLUTE_STEPS = np.array([[0, 0], [0, 0], [0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]], np.int64)  # (action, row/col)
RELATIVE_STEPS = np.array([[0, 0], [0, 0], [0, -1], [0, 1], [1, 0], [-1, 0], [0, 0]], np.int64)  # (action, ahead/right)


@kernel(allocates=False)
def displace(facing: int, ahead: int, right: int) -> Any:
    """So many cells ahead and to the right of an agent, as (rows, columns)."""
    side = AHEAD[(facing + 3) % 4]
    return ahead * AHEAD[facing, 0] + right * side[0], ahead * AHEAD[facing, 1] + right * side[1]


@kernel(allocates=False)
def want_moves(places: Any, actions: Any, relative: bool, ground: Any, solid: Any, wanted: Any) -> None:
    """Turn the agents, and write the cell that each wants to step to into `wanted` (agents, row/col).

    A step off the map, or onto a kind of ground that is `solid` (kinds,), is a stay. Actions above 6 are stays, too.
    """
    height, width = ground.shape
    for i in range(len(places)):
        row, col, facing = places[i]
        action = actions[i]
        if action == TURN_LEFT:
            places[i, 2] = (facing + 1) % 4
        elif action == TURN_RIGHT:
            places[i, 2] = (facing + 3) % 4
        elif action < STAY:
            rows, cols = ABSOLUTE_STEPS[action]
            if relative:
                rows, cols = displace(facing, RELATIVE_STEPS[action, 0], RELATIVE_STEPS[action, 1])
            to_row, to_col = row + rows, col + cols
            if 0 <= to_row < height and 0 <= to_col < width and not solid[ground[to_row, to_col]]:
                row, col = to_row, to_col
        wanted[i, 0] = row
        wanted[i, 1] = col


@kernel(allocates=False)
def move_at_once(places: Any, wanted: Any, absent: Any, priority: Any, moving: Any) -> None:
    """Move all agents simultaneously; afterwards no two share a cell, if none did before.

    An agent that stays keeps its cell. Of several that want one cell the highest `priority` (agents,) wins. Two agents
    cannot swap cells, but an agent may follow another, and three or more may rotate. An agent that cannot move stays,
    which may stop others: this is repeated until nothing changes. `moving` (2, agents) is memory that it uses.
    """
    agents = len(places)
    now, before = moving[0], moving[1]
    for i in range(agents):
        now[i] = not absent[i] and (wanted[i, 0] != places[i, 0] or wanted[i, 1] != places[i, 1])
    changed = True
    while changed:
        changed = False
        for i in range(agents):
            before[i] = now[i]
        for i in range(agents):
            if before[i] and _is_stopped(i, places, wanted, absent, priority, before):
                now[i] = False
                changed = True
    for i in range(agents):
        if now[i]:
            places[i, 0] = wanted[i, 0]
            places[i, 1] = wanted[i, 1]


@kernel(allocates=False)
def _is_stopped(i: int, places: Any, wanted: Any, absent: Any, priority: Any, moving: Any) -> bool:
    for j in range(len(places)):
        if j == i or absent[j]:
            continue
        if moving[j]:
            if wanted[j, 0] == wanted[i, 0] and wanted[j, 1] == wanted[i, 1] and priority[j] > priority[i]:
                return True
            to_mine = wanted[j, 0] == places[i, 0] and wanted[j, 1] == places[i, 1]
            if to_mine and wanted[i, 0] == places[j, 0] and wanted[i, 1] == places[j, 1]:
                return True
        elif places[j, 0] == wanted[i, 0] and places[j, 1] == wanted[i, 1]:
            return True
    return False


@kernel(allocates=False)
def move_in_order(places: Any, wanted: Any, absent: Any, order: Any) -> None:
    """Move the agents one after another, as `order` (agents,) says; each needs a cell that is free in that moment."""
    for i in order:
        free = not absent[i]
        for j in range(len(places)):
            if j != i and not absent[j] and places[j, 0] == wanted[i, 0] and places[j, 1] == wanted[i, 1]:
                free = False
        if free:
            places[i, 0] = wanted[i, 0]
            places[i, 1] = wanted[i, 1]


@kernel(allocates=False)
def shuffle(key: Any, out: Any) -> None:
    """Write a random order of 0 … len(out)-1 into `out`."""
    for i in range(len(out)):
        j = below(key, i, i + 1)
        out[i] = out[j]
        out[j] = i
