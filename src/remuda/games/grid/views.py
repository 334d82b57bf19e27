"""Egocentric views: what an agent sees, turned so that ahead is up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.grid.facing import AHEAD

_ZERO = np.uint64(0)


class View(NamedTuple):
    """The shape of a view, and its channels. An agent stands in row `ahead` and in the middle column.

    A code stands for what is in a cell: a kind of ground, a mark, or `first_agent + i` for agent i.
    """

    side: int  # rows and columns
    ahead: int  # rows in front of the agent
    margin: int  # cells around the map in `codes`
    first_agent: int  # the code of agent 0
    channel: NDArray[np.int64]  # (codes below first_agent,): the channel of each kind of ground or mark
    me: int  # the first of six channels: myself, another agent, and four for where the other one faces, seen from me
    identity: int  # the first of the channels that say which agent it is; -1: there are none
    compass: int  # the first of four channels at the own cell that say where I face on the map; -1: there are none
    channels: int


def make_view(
    channel: dict[int, int], first_agent: int, side: int, identities: int = 0, compass: bool = False, extra: int = 0
) -> View:
    """A view with one row behind the agent. With `identities`, that many channels say which agent is seen.

    `extra` channels, for the game to fill, come after those; the compass is last.
    """
    table = np.zeros(first_agent, np.int64)
    for code, number in channel.items():
        table[code] = number
    me = 1 + max(channel.values(), default=-1)
    after = me + 6
    identity = after if identities else -1
    compass_channel = after + identities + extra if compass else -1
    channels = after + identities + 4 * compass + extra
    return View(side, side - 2, side - 1, first_agent, table, me, identity, compass_channel, channels)


@kernel(inline=True, allocates=False)
def write_view(codes: Any, places: Any, i: int, view: Any, out: Any) -> None:
    """Write what agent i sees into `out` (side, side, channels), which must be contiguous.

    `codes` is the map with a margin of walls, so that no cell has to be checked. An empty cell writes a 0 into channel
    0: where some cells are empty, processors guess a branch wrong so often that it takes longer than the store.
    """
    clear_view(out)
    row, col, facing = places[i, 0], places[i, 1], places[i, 2]
    right = (facing + 3) % 4
    half = view.side // 2
    cells, target = codes.reshape(-1), out.reshape(-1)
    width = codes.shape[1]
    down_step = -(AHEAD[facing, 0] * width + AHEAD[facing, 1])
    right_step = AHEAD[right, 0] * width + AHEAD[right, 1]
    start = (row + view.margin) * width + col + view.margin - view.ahead * down_step - half * right_step
    position, channels = _ZERO, np.uint64(view.channels)
    for _ in range(view.side):
        cell = start
        for _ in range(view.side):
            code = cells[np.uint64(cell)]  # unsigned: numba checks signed ones for being negative
            if code >= view.first_agent:
                _write_agent(np.int64(code) - view.first_agent, i, places, view, target[position:])
            else:
                target[position + np.uint64(view.channel[code])] = code != 0
            position += channels
            cell += right_step
        start += down_step


@kernel(inline=True, allocates=False)
def clear_view(out: Any) -> None:
    """Write zeros into a view. A flat loop is compiled to one memset; `out[:] = 0` over three axes is not."""
    target = out.reshape(-1)
    for k in range(target.size):
        target[k] = 0


@kernel(allocates=False)
def _write_agent(seen: int, i: int, places: Any, view: Any, out: Any) -> None:
    if seen == i:
        out[view.me] = 1
        if view.compass >= 0:
            out[view.compass + places[i, 2]] = 1
    else:
        out[view.me + 1] = 1
        out[view.me + 2 + (places[seen, 2] - places[i, 2]) % 4] = 1
    if view.identity >= 0:
        out[view.identity + seen] = 1


@kernel(allocates=False)
def flag_agent(places: Any, i: int, seen: int, view: Any, channel: int, out: Any) -> None:
    """Set a channel where agent i sees agent `seen`, if it does; `out` is (side, side, channels)."""
    rows, cols = places[seen, 0] - places[i, 0], places[seen, 1] - places[i, 1]
    up, right = AHEAD[places[i, 2]], AHEAD[(places[i, 2] + 3) % 4]
    y = view.ahead - (rows * up[0] + cols * up[1])
    x = view.side // 2 + rows * right[0] + cols * right[1]
    if 0 <= y < view.side and 0 <= x < view.side:
        out[y, x, channel] = 1
