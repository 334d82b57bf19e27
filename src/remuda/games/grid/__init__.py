"""The kit for gridworlds: maps, views, facing, beams, and arenas that combine them.

- `planes`: kernels over a map; `maps`: maps as text.
- `facing`: turns and moves; `beams`: cells that an action reaches; `views`: what an agent sees.
- `arena`: a game with all of this.
"""

from remuda.games.grid.arena import (
    Arena,
    ArenaState,
    Draws,
    Scratch,
    Timing,
    arena_group,
    bring_back,
    compose,
    count_down,
    draw_moves,
    draw_spawns,
    finish_turn,
    go_to_starts,
    lift_agents,
    load_draws,
    make_scratch,
    move_agents,
    open_turn,
    place_agents,
    put_agents,
    respawn,
    send_away,
    start_world,
)
from remuda.games.grid.beams import Beam, aim, arrow_beam, wide_beam
from remuda.games.grid.facing import (
    AHEAD,
    EAST,
    NORTH,
    SOUTH,
    WEST,
    displace,
    move_at_once,
    move_in_order,
    shuffle,
    want_moves,
)
from remuda.games.grid.maps import cells_with, check_chances, check_room, fill_ground, read_map
from remuda.games.grid.planes import (
    DOWN,
    EMPTY,
    LEFT,
    MOVES,
    RIGHT,
    UP,
    WALL,
    add_view,
    count_kind,
    draw_text,
    log_miss,
    next_success,
    paint,
    place_apart,
    wall_border,
)
from remuda.games.grid.views import View, make_view, write_view

__all__ = [
    "AHEAD", "DOWN", "EAST", "EMPTY", "LEFT", "MOVES", "NORTH", "RIGHT", "SOUTH", "UP", "WALL", "WEST",
    "Arena", "ArenaState", "Beam", "Draws", "Scratch", "Timing", "View",
    "add_view", "aim", "arena_group", "arrow_beam", "bring_back", "cells_with", "check_chances", "check_room", "compose",
    "count_down", "count_kind", "displace", "draw_moves", "draw_spawns", "draw_text", "fill_ground", "finish_turn", "go_to_starts",
    "lift_agents", "load_draws", "log_miss", "make_scratch", "make_view", "move_agents", "move_at_once", "move_in_order", "next_success", "open_turn", "paint", "place_agents",
    "place_apart", "put_agents", "read_map", "respawn", "send_away", "shuffle", "start_world", "want_moves",
    "wall_border", "wide_beam", "write_view",
]  # fmt: skip
