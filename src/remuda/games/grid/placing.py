"""Kernels that put agents on the map, send them away and bring them back."""

from __future__ import annotations

from typing import Any

from remuda.core.kernels import kernel
from remuda.core.rng import below


@kernel
def start_world(state: Any, w: int, key: Any, ground: Any) -> None:
    """Forget everything of a world, and begin with this ground."""
    state.ground[w] = ground
    state.padded_marks[w] = 0
    state.who[w] = 0
    state.inventory[w] = 0
    state.away[w] = 0
    state.frozen[w] = 0
    state.cooldown[w] = 0
    state.gain[w] = 0
    state.tally[w] = 0
    state.keys[w] = key
    state.turn[w] = 0
    state.over[w] = False


@kernel(allocates=False)
def place_agents(state: Any, w: int, spawns: Any, first: int, order: Any, key: Any, facings: int) -> None:
    """Put agents from number `first` on spawn cells, in `order` (cells,); each faces one of so many directions."""
    for i in range(first, state.places.shape[1]):
        cell = spawns[order[i - first]]
        state.places[w, i, 0] = cell[0]
        state.places[w, i, 1] = cell[1]
        state.places[w, i, 2] = below(key, i, facings)
    keep_places(state, w)


@kernel(inline=True, allocates=False)
def lift_agents(state: Any, w: int) -> None:
    """Take the agents off the layer that says who stands where."""
    for i in range(state.places.shape[1]):
        state.who[w, state.places[w, i, 0], state.places[w, i, 1]] = 0


@kernel(inline=True, allocates=False)
def put_agents(state: Any, w: int) -> None:
    """Write where the agents stand, all but those that are away."""
    for i in range(state.places.shape[1]):
        if state.away[w, i] == 0:
            state.who[w, state.places[w, i, 0], state.places[w, i, 1]] = 1 + i


@kernel(inline=True, allocates=False)
def keep_places(state: Any, w: int) -> None:
    """Let every agent begin the next turn where it stands."""
    for i in range(state.places.shape[1]):
        for k in range(3):
            state.starts[w, i, k] = state.places[w, i, k]


@kernel(inline=True, allocates=False)
def go_to_starts(state: Any, w: int) -> None:
    """Move agents that were hit in the last turn to their new places."""
    lift_agents(state, w)
    for i in range(state.places.shape[1]):
        for k in range(3):
            state.places[w, i, k] = state.starts[w, i, k]
    put_agents(state, w)


@kernel(allocates=False)
def respawn(state: Any, w: int, spawns: Any, scratch: Any) -> None:
    """Give each agent that was hit a spawn cell on which nobody stands who was not hit; it starts there next turn."""
    keep_places(state, w)
    rank = 0
    for i in range(len(scratch.hit)):
        if not scratch.hit[i]:
            continue
        while _is_taken(state, w, spawns[scratch.order[rank]], scratch.hit):
            rank += 1
        cell = spawns[scratch.order[rank]]
        state.starts[w, i, 0] = cell[0]
        state.starts[w, i, 1] = cell[1]
        state.starts[w, i, 2] = scratch.facing[i]
        rank += 1


@kernel(allocates=False)
def _is_taken(state: Any, w: int, cell: Any, hit: Any) -> bool:
    standing = state.who[w, cell[0], cell[1]]
    return standing > 0 and not hit[standing - 1]


@kernel(allocates=False)
def send_away(state: Any, w: int, i: int, turns: int) -> None:
    """Take an agent off the map for so many turns."""
    state.who[w, state.places[w, i, 0], state.places[w, i, 1]] = 0
    state.away[w, i] = turns
    state.alive[w, i] = False


@kernel(allocates=False)
def bring_back(state: Any, w: int, spawns: Any, scratch: Any) -> None:
    """Count the turns of agents that are away; the last one over, they stand on a free spawn cell and act again."""
    rank = 0
    for i in range(len(scratch.hit)):
        if state.away[w, i] == 0:
            continue
        state.away[w, i] -= 1
        if state.away[w, i] > 0:
            continue
        while state.who[w, spawns[scratch.order[rank], 0], spawns[scratch.order[rank], 1]] > 0:
            rank += 1
        cell = spawns[scratch.order[rank]]
        state.places[w, i, 0] = cell[0]
        state.places[w, i, 1] = cell[1]
        state.places[w, i, 2] = scratch.facing[i]
        state.who[w, cell[0], cell[1]] = 1 + i
        state.alive[w, i] = state.frozen[w, i] == 0
