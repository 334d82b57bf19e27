"""How red makes up its mind: B_line, Meander, Sleep.

A decision has two halves, so that recorded games can be checked: what red considers (an action and its
candidate targets), then the commitment to one of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import (
    ENTERPRISE,
    MEMBERS,
    N_HOSTS,
    NAMES,
    NO_EXPLOIT,
    OP_SERVER,
    OPERATIONAL,
    OPTIONS,
    PREFERRED,
    SUBNETS,
    USER,
)
from remuda.games.cage2.simulator import (
    ESCALATE,
    EXPLOIT,
    FAILED,
    IMPACT,
    NOBODY,
    REST,
    SCAN,
    SUCCEEDED,
    SWEEP,
)

B_LINE, MEANDER, ASLEEP = 0, 1, 2
AGENTS = ("b_line", "meander", "sleep")
ENTRY_POINT, NEXT_HOP = 100, 101  # stand for the user host drawn for the episode and what it links to
FIRST_ENTRY, ENTRIES = NAMES.index("User1"), 4
E2 = NAMES.index("Enterprise2")
HOPS: NDArray[np.int64] = np.array([NAMES.index(f"Enterprise{i}") for i in (1, 1, 0, 0)])  # for User1 … User4
PROGRAM: NDArray[np.int64] = np.array(  # (counter, action/target)
    [
        [SWEEP, USER],
        [SCAN, ENTRY_POINT], [EXPLOIT, ENTRY_POINT], [ESCALATE, ENTRY_POINT],
        [SCAN, NEXT_HOP], [EXPLOIT, NEXT_HOP], [ESCALATE, NEXT_HOP],
        [SWEEP, ENTERPRISE],
        [SCAN, E2], [EXPLOIT, E2], [ESCALATE, E2],
        [SCAN, OP_SERVER], [EXPLOIT, OP_SERVER], [ESCALATE, OP_SERVER],
        [IMPACT, OP_SERVER],
    ]
)  # fmt: skip
ON_FAILURE: NDArray[np.int64] = np.array([0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13])  # (counter,)
RESTART, STRIKE, LAST_LINE = 1, 12, len(PROGRAM) - 1
NOT_STARTED = 255
MIND = np.dtype(
    (
        np.record,
        [
            ("counter", np.uint8),  # B_line's line of the program
            ("entry", np.uint8),  # B_line's user host
            ("struck", np.uint8),  # B_line has exploited Op_Server0 before
            ("swept", np.uint8),  # Meander's subnets; sets are bits
            ("probed", np.uint16),  # Meander's scanned addresses
            ("exploited", np.uint16),  # likewise, exploited and not found wanting
            ("escalated", np.uint16),
            ("entered", np.uint16),  # exploited with success at least once
        ],
    )
)
"""What red's scripts keep to themselves, one record per world."""


@kernel
def clear_mind(m: Any, entry: int) -> None:
    """A new episode, in which B_line will enter through `entry`."""
    m.counter = NOT_STARTED
    m.entry = entry
    m.struck = 0
    m.swept = 0
    m.probed = 0
    m.exploited = 0
    m.escalated = 0
    m.entered = 0


@kernel
def consider(agent: int, m: Any, s: Any) -> Any:
    """What red does next and the targets it may choose from, as bits; no bits: it needs no target."""
    if agent == B_LINE:
        return _follow_program(m, s)
    if agent == MEANDER:
        _learn_from_last(m, s)
        return _wander(m, s)
    return REST, 0


@kernel
def commit(agent: int, m: Any, action: int, target: int) -> None:
    """Note what was chosen."""
    if agent != MEANDER:
        return
    if action == SWEEP:
        m.swept |= 1 << target
    elif action == SCAN:
        m.probed |= 1 << target
    elif action == ESCALATE:
        m.escalated |= 1 << target
    elif action == EXPLOIT:
        m.exploited |= 1 << target


@kernel
def pick(candidates: int, chance: float) -> int:
    """One of the set bits, uniformly, by a number in [0, 1); NOBODY if there is none."""
    left = int(chance * count_bits(candidates))
    for i in range(N_HOSTS):
        if candidates >> i & 1:
            if left == 0:
                return i
            left -= 1
    return NOBODY


@kernel
def count_bits(mask: int) -> int:
    """How many bits are set."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@kernel
def pick_exploit(ports: Any, other: float, top: bool) -> Any:
    """The exploit for these remembered ports: the preferred one if `top`, else any of the others."""
    preferred = PREFERRED[ports]
    others = OPTIONS[ports] & ~(1 << preferred)
    if preferred == NO_EXPLOIT or top or others == 0:
        return preferred
    return pick(others, other)


@kernel
def _follow_program(m: Any, s: Any) -> Any:
    """B_line: on with the program after success, back to a fixed line after failure."""
    line: Any = np.int64(m.counter)
    if line == NOT_STARTED:
        line = 0
    elif s.red_success == SUCCEEDED:
        line = min(line + 1, LAST_LINE)
    else:
        line = ON_FAILURE[line]
    if line == STRIKE:
        if not m.struck and s.empty_scan:
            line = RESTART
        else:
            m.struck = 1
    m.counter = line
    action, target = PROGRAM[line, 0], PROGRAM[line, 1]
    if target == ENTRY_POINT:
        target = np.int64(m.entry)
    elif target == NEXT_HOP:
        target = HOPS[m.entry - FIRST_ENTRY]
    return action, 1 << target


@kernel
def _learn_from_last(m: Any, s: Any) -> None:
    """Meander: what a failure tells it to try again."""
    action = s.red
    if action < EXPLOIT:
        return
    host = 1 << np.int64(s.red_target)
    if action == EXPLOIT and s.red_success == SUCCEEDED:
        m.entered |= host
    elif action == EXPLOIT:
        m.exploited &= ~host
        _doubt(m)
    elif s.red_success == FAILED:
        m.escalated &= ~host
        if m.entered & host:
            m.exploited &= ~host


@kernel
def _doubt(m: Any) -> None:
    """A failed exploit: all Operational hosts, or else all Enterprise ones, may have been lost."""
    for subnet in (OPERATIONAL, ENTERPRISE):
        lost = m.escalated & MEMBERS[subnet]
        if lost:
            m.escalated &= ~lost
            m.exploited &= ~lost
            return


@kernel
def _wander(m: Any, s: Any) -> Any:
    """Meander: the first of impact, sweep, scan, escalate, exploit that has a target."""
    if m.escalated >> OP_SERVER & 1:
        return IMPACT, 1 << OP_SERVER
    for subnet in range(len(SUBNETS)):
        if s.subnets >> subnet & 1 and not m.swept >> subnet & 1:
            return SWEEP, 1 << subnet
    unscanned = s.addresses & ~m.probed
    if unscanned:
        return SCAN, np.int64(unscanned)
    lost = m.entered & ~m.exploited
    below_root = s.hostnames & ~m.escalated & ~lost
    if below_root:
        return ESCALATE, np.int64(below_root)
    outside = s.addresses & ~m.exploited
    if outside:
        return EXPLOIT, np.int64(outside)
    return REST, 0
