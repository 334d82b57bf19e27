"""The true state of a world as numbers: an input for study only, since no defender can see it.

It shows how well a defender could play at best, and what is lost by not knowing.
"""

from __future__ import annotations

from typing import Any

from remuda.core.kernels import kernel
from remuda.games.cage2.compact import N_PAIRS, PAIRS
from remuda.games.cage2.memory import LONGEST, NEAR
from remuda.games.cage2.network import N_HOSTS, SUBNETS
from remuda.games.cage2.red import AGENTS, B_LINE, ENTRIES, FIRST_ENTRY, PROGRAM
from remuda.games.cage2.state import RED_VERBS, SUCCEEDED

PORTS_KNOWN = 8
LINES = len(PROGRAM)
TRUTH_PER_HOST = 14 + PORTS_KNOWN
TRUTH_FEATURES = (
    N_HOSTS * TRUTH_PER_HOST + N_PAIRS + 2 * len(SUBNETS) + 3 + len(AGENTS) + LINES + ENTRIES + len(RED_VERBS) + 3 + 3
)


@kernel
def write_truth(s: Any, red: Any, agent: int, turn: int, out: Any) -> None:
    """The network, what red knows and intends, and the time, as TRUTH_FEATURES numbers from 0 to 1."""
    for h in range(N_HOSTS):
        _write_host(s, red, h, out[h * TRUTH_PER_HOST :])
    at = N_HOSTS * TRUTH_PER_HOST
    for p in range(N_PAIRS):
        out[at + p] = 1.0 if s.decoys[PAIRS[p, 0], PAIRS[p, 1]] else 0.0
    at += N_PAIRS
    for subnet in range(len(SUBNETS)):
        out[at + 2 * subnet] = s.subnets >> subnet & 1
        out[at + 2 * subnet + 1] = red.swept >> subnet & 1
    at += 2 * len(SUBNETS)
    out[at] = s.service_up
    out[at + 1] = s.service_stoppable
    out[at + 2] = s.service_known
    at = _one_of(out, at + 3, len(AGENTS), agent)
    at = _one_of(out, at, LINES, red.counter)
    at = _one_of(out, at, ENTRIES, red.entry - FIRST_ENTRY if agent == B_LINE else ENTRIES)
    at = _one_of(out, at, len(RED_VERBS), s.red)
    out[at] = 1.0 if s.red_success == SUCCEEDED else 0.0
    out[at + 1] = s.empty_scan
    out[at + 2] = red.struck
    left = LONGEST - turn
    out[at + 3] = min(turn / LONGEST, 1.0)
    out[at + 4] = min(max(NEAR - left, 0) / NEAR, 1.0)
    out[at + 5] = max(NEAR - turn, 0) / NEAR


@kernel
def _one_of(out: Any, at: int, size: int, chosen: int) -> int:
    for i in range(size):
        out[at + i] = 1.0 if i == chosen else 0.0
    return at + size


@kernel
def _write_host(s: Any, red: Any, h: int, out: Any) -> None:
    out[0] = 1.0 if s.root[h] else 0.0
    out[1] = 1.0 if s.removable[h] else 0.0
    out[2] = 1.0 if s.pinned[h] else 0.0
    out[3] = s.malware[h]
    out[4] = s.smtp_lost[h]
    out[5] = s.scanned[h]
    out[6] = s.addresses >> h & 1
    out[7] = s.hostnames >> h & 1
    out[8] = red.probed >> h & 1
    out[9] = red.exploited >> h & 1
    out[10] = red.escalated >> h & 1
    out[11] = red.entered >> h & 1
    out[12] = 1.0 if s.red_target == h else 0.0
    out[13] = s.compromised[h] / 3.0
    for port in range(PORTS_KNOWN):
        out[14 + port] = s.known_ports[h] >> port & 1
