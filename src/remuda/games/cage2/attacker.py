"""Red as a player: what it may do, what it knows, and what it remembers.

It may do what the original's red may: its actions name subnets, addresses and hosts that it has learned of. The exploit
is chosen as in the original, by the ports it remembers. It knows its own actions and their results, and nothing of
blue: that blue ended a session it learns when an action fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remuda.core.kernels import kernel
from remuda.games.cage2.memory import DECAY, FADED, LONGEST, NEAR, NEVER
from remuda.games.cage2.network import N_HOSTS, OP_SERVER, SUBNETS
from remuda.games.cage2.state import (
    ESCALATE,
    EXPLOIT,
    IMPACT,
    NONE,
    RED_VERBS,
    REST,
    SCAN,
    SUCCEEDED,
    SWEEP,
)

FIRST_SWEEP = 1
FIRST_SCAN = FIRST_SWEEP + len(SUBNETS)
FIRST_EXPLOIT = FIRST_SCAN + N_HOSTS
FIRST_ESCALATE = FIRST_EXPLOIT + N_HOSTS
IMPACT_ACTION = FIRST_ESCALATE + N_HOSTS
N_RED_ACTIONS = IMPACT_ACTION + 1
PORTS_KNOWN = 8
RED_PER_HOST = 12 + PORTS_KNOWN
RED_FEATURES = N_HOSTS * RED_PER_HOST + len(SUBNETS) + 2 + len(RED_VERBS) + 3 + 3
SLOW = 1  # the column of DECAY
RED_MEMORY = np.dtype(
    (
        np.record,
        [
            ("turn", np.int64),
            ("last_scan", np.int64, N_HOSTS),  # the step of the last one, or NEVER; so for the next ones
            ("last_entry", np.int64, N_HOSTS),  # an exploit that succeeded
            ("last_root", np.int64, N_HOSTS),  # an escalation that succeeded
            ("last_failure", np.int64, N_HOSTS),  # any action there that failed
        ],
    )
)
"""What a red player remembers of its own actions, one record per world."""


@kernel
def forget_red(m: Any) -> None:
    """Begin an episode."""
    m.turn = 0
    for h in range(N_HOSTS):
        m.last_scan[h] = NEVER
        m.last_entry[h] = NEVER
        m.last_root[h] = NEVER
        m.last_failure[h] = NEVER


@kernel
def remember_red(m: Any, s: Any) -> None:
    """Take in red's action of this step and its result."""
    m.turn += 1
    verb, host = s.red, s.red_target
    if verb < SCAN:
        return
    if s.red_success != SUCCEEDED or s.empty_scan:
        m.last_failure[host] = m.turn
    elif verb == SCAN:
        m.last_scan[host] = m.turn
    elif verb == EXPLOIT:
        m.last_entry[host] = m.turn
    else:
        m.last_root[host] = m.turn


@kernel
def decode_red(action: Any) -> Any:
    """A red action as (verb, target)."""
    if action < FIRST_SWEEP:
        return REST, NONE
    if action < FIRST_SCAN:
        return SWEEP, action - FIRST_SWEEP
    if action < FIRST_EXPLOIT:
        return SCAN, action - FIRST_SCAN
    if action < FIRST_ESCALATE:
        return EXPLOIT, action - FIRST_EXPLOIT
    if action < IMPACT_ACTION:
        return ESCALATE, action - FIRST_ESCALATE
    return IMPACT, OP_SERVER


@kernel
def encode_red(verb: Any, target: Any) -> Any:
    """A verb and its target as a red action."""
    if verb == REST:
        return 0
    if verb == SWEEP:
        return FIRST_SWEEP + target
    if verb == SCAN:
        return FIRST_SCAN + target
    if verb == EXPLOIT:
        return FIRST_EXPLOIT + target
    if verb == ESCALATE:
        return FIRST_ESCALATE + target
    return IMPACT_ACTION


@kernel
def red_may(s: Any, action: Any) -> Any:
    """Whether red has learned of what the action names: a subnet, an address, or a host."""
    verb, target = decode_red(action)
    if verb == REST:
        return True
    if verb == SWEEP:
        return s.subnets >> target & 1 != 0
    if verb in (SCAN, EXPLOIT):
        return s.addresses >> target & 1 != 0
    return s.hostnames >> target & 1 != 0


@kernel
def write_red_mask(s: Any, out: Any) -> None:
    """Which actions red may take."""
    for action in range(N_RED_ACTIONS):
        out[action] = red_may(s, action)


@kernel
def write_red_features(m: Any, s: Any, out: Any) -> None:
    """What red knows as RED_FEATURES numbers from 0 to 1."""
    for h in range(N_HOSTS):
        _write_host(m, s, h, out[h * RED_PER_HOST :])
    at = N_HOSTS * RED_PER_HOST
    for subnet in range(len(SUBNETS)):
        out[at + subnet] = s.subnets >> subnet & 1
    at += len(SUBNETS)
    out[at] = s.service_known
    out[at + 1] = s.empty_scan
    at += 2
    for verb in range(len(RED_VERBS)):
        out[at + verb] = 1.0 if s.red == verb else 0.0
    at += len(RED_VERBS)
    for result in range(3):
        out[at + result] = 1.0 if s.red_success == result else 0.0
    at += 3
    left = LONGEST - m.turn
    out[at] = min(m.turn / LONGEST, 1.0)
    out[at + 1] = min(max(NEAR - left, 0) / NEAR, 1.0)
    out[at + 2] = max(NEAR - m.turn, 0) / NEAR


@kernel
def _fresh(m: Any, when: Any) -> Any:
    return DECAY[min(m.turn - when, FADED - 1), SLOW] if when != NEVER else np.float32(0.0)


@kernel
def _write_host(m: Any, s: Any, h: int, out: Any) -> None:
    out[0] = s.addresses >> h & 1
    out[1] = s.hostnames >> h & 1
    out[2] = s.scanned[h]
    out[3] = 1.0 if s.red >= SCAN and s.red_target == h else 0.0
    out[4] = _fresh(m, m.last_scan[h])
    out[5] = _fresh(m, m.last_entry[h])
    out[6] = _fresh(m, m.last_root[h])
    out[7] = _fresh(m, m.last_failure[h])
    out[8] = 1.0 if m.last_entry[h] > m.last_failure[h] else 0.0
    out[9] = 1.0 if m.last_root[h] > m.last_failure[h] else 0.0
    out[10] = 1.0 if m.last_scan[h] > m.last_failure[h] else 0.0
    out[11] = 1.0 if m.last_failure[h] == m.turn and m.turn > 0 else 0.0
    for port in range(PORTS_KNOWN):
        out[12 + port] = s.known_ports[h] >> port & 1
