"""Which compact actions can make a difference by what blue believes; with actions=useful the others are masked.

Most repairs change nothing most of the time. A policy that may try them everywhere learns early that Remove seldom
helps, stops using it, and is then stuck with Restore, which costs 1: against Meander −15 instead of −12.6 at 100 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.compact import FIRST_DECOY_ACTION, PLAIN_ACTIONS
from remuda.games.cage2.network import ANALYSE, HARAKA, NO_SHELL, OP_SERVER, RESTORE, SHELLS, SLEEP
from remuda.games.cage2.state import decode, has_session

HAS_MAIL: NDArray[np.bool_] = SHELLS[:, HARAKA] != NO_SHELL  # (hosts,): whether a restored host loses its mail server


@kernel
def mask_useless(h: Any, count: int, leaderboard: Any, out: Any) -> None:
    """Also forbid repairs and analyses that no hypothesis has a use for; `out` has what `write_mask` wrote."""
    for a in range(FIRST_DECOY_ACTION):
        verb, host = decode(PLAIN_ACTIONS[a])
        out[a] = verb == SLEEP or is_useful(h, count, verb, host, leaderboard)


@kernel
def is_useful(h: Any, count: int, verb: int, host: int, leaderboard: Any) -> bool:
    """Whether the action changes something in a hypothesis; for Analyse, whether hypotheses differ in what it finds."""
    infected = 0
    for i in range(count):
        s = h[i].network
        if verb == ANALYSE:
            infected += s.malware[host] != 0
        elif _repair_helps(s, verb, host, leaderboard):
            return True
    return 0 < infected < count


@kernel
def mask_useless_truly(s: Any, leaderboard: Any, out: Any) -> None:
    """The same for a blue that sees the true state: no analysis, and only repairs that do something."""
    for a in range(FIRST_DECOY_ACTION):
        verb, host = decode(PLAIN_ACTIONS[a])
        out[a] = verb == SLEEP or (verb != ANALYSE and _repair_helps(s, verb, host, leaderboard))


@kernel
def _repair_helps(s: Any, verb: int, host: int, leaderboard: Any) -> bool:
    """Whether Remove or Restore changes something."""
    return s.removable[host] != 0 or (verb == RESTORE and _restore_helps(s, host, leaderboard))


@kernel
def _restore_helps(s: Any, host: int, leaderboard: Any) -> bool:
    """Whether Restore ends a session, protects or restarts the service, or takes away a mail server's version."""
    if host == OP_SERVER and (s.service_stoppable or not s.service_up):
        return True
    return has_session(s, host) or (leaderboard and HAS_MAIL[host] and not s.smtp_lost[host])
