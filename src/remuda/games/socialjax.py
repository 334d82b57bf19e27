"""What SocialJax does differently from what its rules say: its views and its beams, fault by fault, for parity.

Pinned to SocialJax 9df972d (August 2026). The games use this with `rules=socialjax` only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remuda.core.kernels import kernel
from remuda.games.grid.facing import AHEAD, displace

EXTRA_CHANNELS = 10
"""Channels after those of the items: self, other, four facings, has eaten, inventory twice, frozen."""
FACINGS = 3
"""Agents start and come back with facing 0, 1 or 2, never 3."""


@kernel(allocates=False)
def write_socialjax_view(codes: Any, places: Any, eaten: Any, i: int, view: Any, out: Any) -> None:
    """Write what agent i sees in SocialJax into `out` (side, side, channels), which must be zero.

    Two faults: agents that face south or north see the picture turned by 180 degrees, and the agent marked "self" is
    the next one. With it comes the inventory of the agent before the marked one.
    """
    row, col, facing = places[i]
    up, right = AHEAD[facing], AHEAD[(facing + 3) % 4]
    turned = facing % 2 == 0
    marked = min(i + 1, len(places) - 1)
    for y in range(view.side):
        for x in range(view.side):
            ahead, side = view.ahead - y, x - view.side // 2
            if turned:
                ahead, side = y - 1, view.side // 2 - x
            r = row + ahead * up[0] + side * right[0] + view.margin
            c = col + ahead * up[1] + side * right[1] + view.margin
            code = codes[r, c]
            if code == 0:
                continue
            if code < view.first_agent:
                out[y, x, view.channel[code]] = 1
            else:
                _write_shifted_agent(np.int64(code) - view.first_agent, i, marked, places, eaten, out[y, x, view.me :])


@kernel(allocates=False)
def _write_shifted_agent(seen: int, i: int, marked: int, places: Any, eaten: Any, out: Any) -> None:
    out[0] = seen == marked
    out[1] = seen != marked
    if seen != i:
        out[2 + (places[seen, 2] - places[i, 2]) % 4] = 1
    out[6] = as_int8(eaten[seen]) > 0
    if seen == marked:
        shown = as_int8(eaten[seen - 1])  # of agent 0 alone: its own
        out[7] = shown
        out[8] = shown


@kernel(allocates=False)
def as_int8(count: int) -> int:
    """A count as SocialJax keeps it: it wraps above 127."""
    return (count + 128) % 256 - 128


@kernel(allocates=False)
def aim_socialjax(place: Any, height: int, width: int, out: Any) -> None:
    """Write the four cells of SocialJax's beam into `out` (4, row/col/reached): 1 ahead, 2 ahead, and the diagonals.

    Cells are not clipped. A diagonal outside the map is replaced by the cell ahead. A negative row or column counts
    from the far side. One beyond the last is beyond the map for what is written (not reached), and is the last one for
    what is read: the caller finds out with `read_row`.
    """
    for k in range(4):
        ahead, right = 1, 0
        if k == 1:
            ahead = 2
        elif k > 1:
            right = -1 if k == 2 else 1
        rows, cols = displace(place[2], ahead, right)
        row, col = place[0] + rows, place[1] + cols
        if k > 1 and not (0 <= row < height and 0 <= col < width):
            rows, cols = displace(place[2], 1, 0)
            row, col = place[0] + rows, place[1] + cols
        row = row + height if row < 0 else row
        col = col + width if col < 0 else col
        out[k, 0], out[k, 1] = row, col
        out[k, 2] = row < height and col < width


@kernel(allocates=False)
def hit_socialjax(who: Any, place: Any, reach: Any, hit: Any) -> None:
    """Note whom a zap beam hits; beyond the high edge of the map it hits the shooter."""
    height, width = who.shape
    aim_socialjax(place, height, width, reach)
    for k in range(4):
        seen = who[min(reach[k, 0], height - 1), min(reach[k, 1], width - 1)]
        if seen > 0:
            hit[seen - 1] = True


@kernel
def mark_socialjax(state: Any, w: int, fires: int, mark: int, reach: Any) -> None:
    """Draw the marks of all beams on empty cells.

    Every agent, also one that does not fire, writes its four cells back: of several agents that have the same cell in
    the same role (1 ahead, 2 ahead, …) the last decides whether there is a mark.
    """
    height, width = state.ground.shape[1:]
    agents = state.places.shape[1]
    for role in range(4):
        last = np.full((agents, 3), -1, np.int64)  # row, col, mark
        for i in range(agents):
            aim_socialjax(state.places[w, i], height, width, reach)
            if not reach[role, 2]:
                continue
            r, c = reach[role, 0], reach[role, 1]
            value = state.marks[w, r, c]
            if state.actions[w, i] == fires and not (state.ground[w, r, c] or state.who[w, r, c] or value):
                value = mark
            last[i, 0], last[i, 1], last[i, 2] = r, c, value
        for i in range(agents):
            if last[i, 0] >= 0:
                state.marks[w, last[i, 0], last[i, 1]] = last[i, 2]
