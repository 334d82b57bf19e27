"""The zap beam of the social dilemmas: who is hit is sent to a spawn cell, at once or after a time-out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.grid import (
    Beam,
    aim,
    arrow_beam,
    bring_back,
    clear_marks,
    draw_spawns,
    keep_places,
    respawn,
    send_away,
    wide_beam,
)
from remuda.games.social import MELTINGPOT, SOCIALJAX
from remuda.games.socialjax import hit_socialjax, mark_socialjax

ZAP = 7
"""The action that fires it."""
ZAP_METRICS = ("zaps", "hits", "zapped", "meetings", "zaps_per_meeting")
"""zaps: beams fired. hits: agents hit. zapped: times hit by others. meetings: turns with another agent in the beam's
reach. zaps_per_meeting: zaps / meetings, 0 without a meeting. They stand before the metrics of every arena game."""
ZAPS, HITS, ZAPPED, MEETINGS, PER_MEETING = -9, -8, -7, -6, -5


class ZapRules(NamedTuple):
    """How the beam works."""

    variant: int
    beam: Beam
    stops: NDArray[np.uint8]  # (kinds + 1,): what stops the beam, see `aim`
    mark: int  # the code of its mark
    period: int  # turns from one shot to the next; 1: no rest
    timeout: int  # turns until an agent that was hit comes back; 0: at once
    facings: int  # directions in which an agent may face that comes back


def make_zap(variant: int, kinds: int, walls: tuple[int, ...], mark: int, pot: tuple[int, int, int]) -> ZapRules:
    """The rules of a variant; `pot` are Melting Pot's length, period and time-out."""
    stops = np.zeros(kinds + 1, np.uint8)
    if variant != MELTINGPOT:
        return ZapRules(variant, arrow_beam(), stops, mark, 1, 0, 3 if variant == SOCIALJAX else 4)
    stops[list(walls)] = 2
    stops[-1] = 1
    return ZapRules(variant, wide_beam(pot[0], 1), stops, mark, pot[1], pot[2], 4)


@kernel(allocates=False)
def fire_zaps(state: Any, w: int, zap: Any, scratch: Any) -> None:
    """Remove the marks of the last turn, and fire all beams at once."""
    clear_marks(state, w)
    for i in range(len(scratch.hit)):
        if state.away[w, i] > 0:
            continue
        metrics = state.metrics[w, i]
        aim(zap.beam, state.places[w, i], state.ground[w], state.who[w], zap.stops, scratch.reach)
        seen = _count_agents(state.who[w], scratch.reach, len(zap.beam.cells))
        metrics[MEETINGS] += seen > 0
        if state.actions[w, i] == ZAP and state.cooldown[w, i, 0] == 0:
            metrics[ZAPS] += 1
            metrics[HITS] += seen
            state.cooldown[w, i, 0] = zap.period
            _fire(state, w, i, zap, scratch)
        metrics[PER_MEETING] = metrics[ZAPS] / max(metrics[MEETINGS], 1.0)
    for i in range(len(scratch.hit)):
        state.metrics[w, i, ZAPPED] += scratch.hit[i]
    if zap.variant == SOCIALJAX:
        mark_socialjax(state, w, ZAP, zap.mark, scratch.reach)


@kernel(allocates=False)
def _count_agents(who: Any, reach: Any, cells: int) -> int:
    count = 0
    for k in range(cells):
        if reach[k, 2] and who[reach[k, 0], reach[k, 1]] > 0:
            count += 1
    return count


@kernel(allocates=False)
def _fire(state: Any, w: int, i: int, zap: Any, scratch: Any) -> None:
    if zap.variant == SOCIALJAX:
        hit_socialjax(state.who[w], state.places[w, i], scratch.reach, scratch.hit)
        return
    for k in range(len(zap.beam.cells)):
        if scratch.reach[k, 2]:
            row, col = scratch.reach[k, 0], scratch.reach[k, 1]
            state.marks[w, row, col] = zap.mark
            if state.who[w, row, col] > 0:
                scratch.hit[state.who[w, row, col] - 1] = True


@kernel(allocates=False)
def place_the_hit(state: Any, w: int, zap: Any, spawns: Any, key: Any, scratch: Any) -> None:
    """Send agents that were hit to spawn cells: at the start of the next turn, or after their time-out."""
    anybody = scratch.hit.any()
    if zap.timeout == 0:
        if anybody:
            draw_spawns(key, zap.facings, scratch)
            respawn(state, w, spawns, scratch)
        else:
            keep_places(state, w)
        return
    if state.away[w].any():
        draw_spawns(key, zap.facings, scratch)
        bring_back(state, w, spawns, scratch)
    for i in range(len(scratch.hit)):
        if scratch.hit[i]:
            send_away(state, w, i, zap.timeout)
    keep_places(state, w)
