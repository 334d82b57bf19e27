"""The scripted red agents: B_line, Meander, Sleep.

A decision has two parts, so that recorded games can be checked: `next_action` gives the action and its candidate
targets, `record_choice` stores which target was chosen.
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
from remuda.games.cage2.state import (
    ESCALATE,
    EXPLOIT,
    FAILED,
    IMPACT,
    NONE,
    REST,
    SCAN,
    SUCCEEDED,
    SWEEP,
)

B_LINE, MEANDER, ASLEEP = 0, 1, 2
AGENTS = ("b_line", "meander", "sleep")
LEARNED = len(AGENTS)  # a player of the group `red` instead of a script
ENTRY_POINT, GATEWAY = 100, 101  # placeholders: the user host drawn for the episode, and the host it links to
FIRST_ENTRY, ENTRIES = NAMES.index("User1"), 4
E2 = NAMES.index("Enterprise2")
GATEWAYS: NDArray[np.int64] = np.array([NAMES.index(f"Enterprise{i}") for i in (1, 1, 0, 0)])  # for User1 … User4
PROGRAM: NDArray[np.int64] = np.array(  # (line, action/target): what B_line does if every step succeeds
    [
        [SWEEP, USER],
        [SCAN, ENTRY_POINT], [EXPLOIT, ENTRY_POINT], [ESCALATE, ENTRY_POINT],
        [SCAN, GATEWAY], [EXPLOIT, GATEWAY], [ESCALATE, GATEWAY],
        [SWEEP, ENTERPRISE],
        [SCAN, E2], [EXPLOIT, E2], [ESCALATE, E2],
        [SCAN, OP_SERVER], [EXPLOIT, OP_SERVER], [ESCALATE, OP_SERVER],
        [IMPACT, OP_SERVER],
    ]
)  # fmt: skip
ON_FAILURE: NDArray[np.int64] = np.array([0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13])  # (line,): where it goes back
RESTART, STRIKE, LAST_LINE = 1, 12, len(PROGRAM) - 1
NOT_STARTED = 255
RED_STATE = np.dtype(
    (
        np.record,
        [
            ("counter", np.uint8),  # B_line's line in PROGRAM
            ("entry", np.uint8),  # the user host through which B_line enters
            ("struck", np.uint8),  # whether B_line has exploited Op_Server0 before
            ("swept", np.uint8),  # subnets that Meander has swept; sets are bits
            ("probed", np.uint16),  # addresses that Meander has scanned
            ("exploited", np.uint16),  # addresses that Meander has exploited and does not believe lost
            ("escalated", np.uint16),  # hosts that Meander has escalated on and does not believe lost
            ("entered", np.uint16),  # addresses that Meander has exploited with success at least once
        ],
    )
)
"""What the red scripts remember, one record per world."""


@kernel
def reset_red(m: Any, entry: int) -> None:
    """Start an episode in which B_line enters through the user host `entry`."""
    m.counter = NOT_STARTED
    m.entry = entry
    m.struck = 0
    m.swept = 0
    m.probed = 0
    m.exploited = 0
    m.escalated = 0
    m.entered = 0


@kernel
def next_action(agent: int, m: Any, s: Any) -> Any:
    """Red's next action, and its candidate targets as bits; no bits: the action has no target."""
    if agent == B_LINE:
        return _b_line(m, s)
    if agent == MEANDER:
        _revise_meander(m, s)
        return _meander(m, s)
    return REST, 0


@kernel
def record_choice(agent: int, m: Any, action: int, target: int) -> None:
    """Remember the chosen action and target; only Meander needs this."""
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
def pick_bit(candidates: int, u: float) -> int:
    """One of the set bits, chosen uniformly by a number in [0, 1); NONE if no bit is set."""
    left = int(u * count_bits(candidates))
    for i in range(N_HOSTS):
        if candidates >> i & 1:
            if left == 0:
                return i
            left -= 1
    return NONE


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
    """The exploit for these remembered ports: the preferred one if `top`, otherwise one of the others."""
    preferred = PREFERRED[ports]
    others = OPTIONS[ports] & ~(1 << preferred)
    if preferred == NO_EXPLOIT or top or others == 0:
        return preferred
    return pick_bit(others, other)


@kernel
def _b_line(m: Any, s: Any) -> Any:
    """B_line goes to the next line of PROGRAM after a success, and back to a fixed line after a failure."""
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
    elif target == GATEWAY:
        target = GATEWAYS[m.entry - FIRST_ENTRY]
    return action, 1 << target


@kernel
def _revise_meander(m: Any, s: Any) -> None:
    """After its last action, correct what Meander believes: a failure means that it must try again."""
    action = s.red
    if action < EXPLOIT:
        return
    host = 1 << np.int64(s.red_target)
    if action == EXPLOIT and s.red_success == SUCCEEDED:
        m.entered |= host
    elif action == EXPLOIT:
        m.exploited &= ~host
        _revise_subnets(m)
    elif s.red_success == FAILED:
        m.escalated &= ~host
        if m.entered & host:
            m.exploited &= ~host


@kernel
def _revise_subnets(m: Any) -> None:
    """After a failed exploit Meander believes all Operational hosts lost, or if it has none, all Enterprise hosts."""
    for subnet in (OPERATIONAL, ENTERPRISE):
        lost = m.escalated & MEMBERS[subnet]
        if lost:
            m.escalated &= ~lost
            m.exploited &= ~lost
            return


@kernel
def _meander(m: Any, s: Any) -> Any:
    """Meander takes the first of impact, sweep, scan, escalate, exploit that has a target."""
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
