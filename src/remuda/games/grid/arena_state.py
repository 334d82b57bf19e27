"""The state of worlds on a map, and the scratch memory and random draws of a turn, as arrays for kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.rng import Keys

RETURN, REWARD_TIMES, REWARD_TURNS, TURNS_AWAY = 0, 1, 2, 3
"""Columns of `ArenaState.tally`."""


class ArenaState(NamedTuple):
    """The state of all worlds."""

    ground: NDArray[np.uint8]  # (worlds, height, width): the inner part of `padded_ground`
    marks: NDArray[np.uint8]  # (worlds, height, width): left by beams in the last turn; 0: none; of `padded_marks`
    who: NDArray[np.uint8]  # (worlds, height, width): 1 + the agent that stands there; 0: nobody
    codes: NDArray[np.uint8]  # (worlds, height + 2 margins, width + 2 margins): what views show
    padded_ground: NDArray[np.uint8]  # as `codes`; walls around the ground
    padded_marks: NDArray[np.uint8]  # as `codes`
    places: NDArray[np.int64]  # (worlds, agents, row/col/facing)
    starts: NDArray[np.int64]  # (worlds, agents, row/col/facing): where each stands when the next turn begins
    inventory: NDArray[np.int64]  # (worlds, agents, kinds)
    away: NDArray[np.int64]  # (worlds, agents): turns until it is back on the map
    frozen: NDArray[np.int64]  # (worlds, agents): turns until it may act again
    cooldown: NDArray[np.int64]  # (worlds, agents, beams): turns until it may fire again
    actions: NDArray[np.int64]  # (worlds, agents): of this turn
    gain: NDArray[np.float64]  # (worlds, agents): the game's own reward of this turn
    tally: NDArray[np.float64]  # (worlds, agents, 4): RETURN, REWARD_TIMES, REWARD_TURNS, TURNS_AWAY
    keys: Keys  # (worlds,)
    turn: NDArray[np.int64]  # (worlds,)
    over: NDArray[np.bool_]  # (worlds,)
    rewards: NDArray[np.float32]  # (worlds, agents)
    truncated: NDArray[np.bool_]  # (worlds, agents)
    alive: NDArray[np.bool_]  # (worlds, agents)
    metrics: NDArray[np.float32]  # (worlds, agents, metrics)


class Scratch(NamedTuple):
    """Memory that a kernel uses while it plays a turn of one world, and the random draws of that turn."""

    wanted: NDArray[np.int64]  # (agents, row/col)
    moving: NDArray[np.bool_]  # (2, agents)
    reach: NDArray[np.int64]  # (cells of a beam, row/col/reached)
    hit: NDArray[np.bool_]  # (agents,): by a beam in this turn
    absent: NDArray[np.bool_]  # (agents,): not on the map
    priority: NDArray[np.int64]  # (agents,): a random order; the highest of several that want one cell gets it
    order: NDArray[np.int64]  # (spawn cells,): a random order
    facing: NDArray[np.int64]  # (agents,): of agents that come back
    grow: NDArray[np.float32]  # (2, cells): uniform, for whatever grows there
    picked: NDArray[np.int64]  # (row/col,): a cell
    luck: NDArray[np.float64]  # (1,): uniform


class RecordedDraws(NamedTuple):
    """Recorded random draws of one turn in each world, in place of those that a world makes itself."""

    priority: NDArray[np.int64]  # (worlds, agents)
    order: NDArray[np.int64]  # (worlds, spawn cells)
    facing: NDArray[np.int64]  # (worlds, agents)
    grow: NDArray[np.float32]  # (worlds, 2, cells)
    picked: NDArray[np.int64]  # (worlds, row/col)
    luck: NDArray[np.float64]  # (worlds,)


class Timing(NamedTuple):
    """How a turn ends."""

    turns: int
    scale: float  # rewards are multiplied by it
    pays_last: bool  # whether the last turn is rewarded


def make_scratch(agents: int, spawns: int, beam_cells: int, cells: int) -> Scratch:
    """Scratch memory for one world."""
    return Scratch(
        wanted=np.zeros((agents, 2), np.int64),
        moving=np.zeros((2, agents), np.bool_),
        reach=np.zeros((beam_cells, 3), np.int64),
        hit=np.zeros(agents, np.bool_),
        absent=np.zeros(agents, np.bool_),
        priority=np.zeros(agents, np.int64),
        order=np.zeros(spawns, np.int64),
        facing=np.zeros(agents, np.int64),
        grow=np.zeros((2, cells), np.float32),
        picked=np.zeros(2, np.int64),
        luck=np.zeros(1, np.float64),
    )
