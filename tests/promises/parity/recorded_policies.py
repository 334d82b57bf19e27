"""The policies whose returns were recorded from the originals. They see the whole state of a game.

An eater walks to the nearest apple or coin (Manhattan), the longer way first, and by column where both are as long;
in Clean Up it wanders while there is no apple. A cleaner faces north, cleans when dirt is in its beam, and else walks
below the nearest dirt, also that under an agent. One step in ten is random. How ties are broken, and which actions are
random, was read off the recorded traces of these policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.games import cleanup, coins, harvest
from remuda.games.grid.facing import NORTH

Actions = NDArray[np.int64]  # (worlds, agents)
Play = Callable[[Any, np.random.Generator], Actions]
Mask = Callable[[NDArray[np.uint8]], NDArray[np.bool_]]  # of ground (worlds, height, width): the cells to walk to
TURN_LEFT, EAST, WEST, SOUTH, NORTHWARD, STAY, CLEAN = 0, 2, 3, 4, 5, 6, 8
RANDOM_SHARE = 0.1
FRONT = ((-1, 0), (-2, 0), (-1, -1), (-1, 1))  # SocialJax's beam, for an agent that faces north


def play_random(game: Any, draws: np.random.Generator) -> Actions:
    """Any action."""
    return draws.integers(game.spec.groups[0].actions, size=game.state.actions.shape)


def play_idle(game: Any, draws: np.random.Generator) -> Actions:
    """Stay."""
    return np.full(game.state.actions.shape, STAY)


def eat(*wanted: Mask) -> Play:
    """Walk to the nearest cell that is wanted; with two masks the second is for the agent with number 1."""

    def play(game: Any, draws: np.random.Generator) -> Actions:
        places, kinds = game.state.places, len(wanted)
        actions = np.empty(places.shape[:2], np.int64)
        for k, mask in enumerate(wanted):
            cells = mask(game.state.ground)
            for w in range(game.worlds):
                actions[w, k::kinds] = walk(places[w, k::kinds], np.argwhere(cells[w]), draws)
        return actions

    return play


def walk(places: NDArray[np.int64], goals: NDArray[np.int64], draws: np.random.Generator) -> NDArray[np.int64]:
    """A step of each agent to the nearest of these cells, or a random one; stay if there are none."""
    if not len(goals):
        return np.full(len(places), STAY)
    return np.where(draws.random(len(places)) < RANDOM_SHARE, random_steps(places, draws), steps_to(places, goals))


def random_steps(places: NDArray[np.int64], draws: np.random.Generator) -> NDArray[np.int64]:
    return draws.integers(EAST, STAY, size=len(places))


def steps_to(places: NDArray[np.int64], goals: NDArray[np.int64]) -> NDArray[np.int64]:
    """The step of each agent to the nearest of these cells; stay on it."""
    ways = goals[None] - places[:, None, :2]  # (agents, goals, row/col)
    rows, cols = ways[np.arange(len(places)), np.abs(ways).sum(axis=2).argmin(axis=1)].T
    along = np.where(rows > 0, SOUTH, NORTHWARD)
    across = np.where(cols > 0, EAST, WEST)
    return np.where((rows == 0) & (cols == 0), STAY, np.where(np.abs(rows) > np.abs(cols), along, across))


def apples_with(neighbours: int) -> Mask:
    """Apples with so many others within distance 2."""

    def mask(ground: NDArray[np.uint8]) -> NDArray[np.bool_]:
        apples = ground == harvest.APPLE
        height, width = apples.shape[1:]
        padded = np.pad(apples, ((0, 0), (2, 2), (2, 2)))
        near = np.zeros(apples.shape, np.int64)
        for row in range(5):
            for col in range(5):
                if 0 < (row - 2) ** 2 + (col - 2) ** 2 <= 4:
                    near += padded[:, row : row + height, col : col + width]
        return apples & (near >= neighbours)

    return mask


def clean_and_eat(cleaners: int) -> Play:
    """The first agents clean, the others eat."""

    def play(game: Any, draws: np.random.Generator) -> Actions:
        places, ground = game.state.places, game.state.ground
        actions = np.empty(places.shape[:2], np.int64)
        for w in range(game.worlds):
            apples, dirt = np.argwhere(ground[w] == cleanup.APPLE), ground[w] == cleanup.DIRT
            eaters, free = places[w, cleaners:], dirt & (game.state.who[w] == 0)
            actions[w, cleaners:] = walk(eaters, apples, draws) if len(apples) else random_steps(eaters, draws)
            actions[w, :cleaners] = [clean(places[w, i], dirt, free, draws) for i in range(cleaners)]
        return actions

    return play


def clean(
    place: NDArray[np.int64], dirt: NDArray[np.bool_], free: NDArray[np.bool_], draws: np.random.Generator
) -> int:
    """Face north, clean what is in reach and not under an agent, else walk below the nearest dirt."""
    if place[2] != NORTH:
        return TURN_LEFT
    cells = [(place[0] + rows, place[1] + cols) for rows, cols in FRONT]
    if any(row >= 0 and 0 <= col < dirt.shape[1] and free[row, col] for row, col in cells):
        return CLEAN
    return int(walk(place[None], np.argwhere(dirt) + np.array([1, 0]), draws)[0])


POLICIES: dict[str, Play] = {
    "random": play_random,
    "idle": play_idle,
    "greedy apples": eat(lambda ground: ground == harvest.APPLE),
    "greedy coins": eat(lambda ground: (ground == coins.RED) | (ground == coins.GREEN)),
    "own colour": eat(lambda ground: ground == coins.RED, lambda ground: ground == coins.GREEN),
    **{f"{k} cleaners": clean_and_eat(k) for k in range(6)},
    **{f"{k} neighbours": eat(apples_with(k)) for k in (3, 4, 5)},
}
