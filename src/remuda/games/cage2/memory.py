"""What blue can remember: features computed from what blue saw and did, never from the true state.

`remember` takes the 52 bits that a wrapper shows and the action that led to them, nothing else, so the same code plays
behind our simulator, behind the original and in an exported agent. `remuda export` copies its functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.compact import (
    DECOY_HOSTS,
    FIRST_DECOY_ACTION,
    N_COMPACT,
    N_PAIRS,
    PAIR_ACTIONS,
    PAIRS,
    PLAIN_ACTIONS,
)
from remuda.games.cage2.network import CHECK_PORT, DECOY_PORT, FITS, N_DECOYS, N_HOSTS, STATIC_PORTS

NEVER = -1
NOBODY = 255
LONGEST = 100  # steps of the longest official game; the clock does not depend on the option `steps`
NEAR = 15  # steps after the start, and before step LONGEST, that the clock shows more finely
MEMORY = np.dtype(
    (
        np.record,
        [
            ("turn", np.int64),  # steps played
            ("action", np.int64),  # the last action, one of the 145
            ("activity", np.uint8, N_HOSTS),  # now: 0 none, 1 scan, 2 exploit
            ("compromised", np.uint8, N_HOSTS),  # now: 0 no, 1 unknown, 2 user, 3 privileged
            ("scans", np.int64, N_HOSTS),  # how often a scan was seen
            ("exploits", np.int64, N_HOSTS),
            ("last_scan", np.int64, N_HOSTS),  # the step in which it was seen last, or NEVER; so for the next ones
            ("last_exploit", np.int64, N_HOSTS),
            ("last_analysis", np.int64, N_HOSTS),
            ("last_remove", np.int64, N_HOSTS),
            ("last_restore", np.int64, N_HOSTS),
            ("ports", np.uint16, N_HOSTS),  # believed open, as bits; a decoy fails where its port is open
            ("up", np.uint8, (N_HOSTS, N_DECOYS)),  # decoys believed up
            ("met", np.uint8, (N_HOSTS, N_DECOYS)),  # decoys that were up in a scan of this episode
            ("met_last", np.uint8, (N_HOSTS, N_DECOYS)),  # decoys that were up in the last scan
            ("active", np.int64),  # the host of the last activity, or NOBODY
            ("active_before", np.int64),  # the other host of the activity before
            ("last_activity", np.int64),
        ],
    )
)
"""One record per world."""
FAST, SLOW = 3.0, 15.0  # time constants of the two decays, in steps
FADED = 1024
DECAY: NDArray[np.float32] = np.exp(-np.arange(FADED)[:, None] / np.array([FAST, SLOW])).astype(np.float32)
"""(steps, 2): how fresh an event is after so many steps."""
PER_HOST = 27
VERB_KINDS = 5  # sleep or monitor, analyse, remove, decoy, restore
SINCE_ACTIVITY = 8  # steps since the last activity as one of so many; the last stands for more, or never
PER_PAIR = 3
FEATURES = N_HOSTS * PER_HOST + N_PAIRS * PER_PAIR + 3 + SINCE_ACTIVITY + VERB_KINDS + N_HOSTS


@kernel
def forget(m: Any) -> None:
    """Begin an episode."""
    m.turn = 0
    m.action = 0
    m.active = NOBODY
    m.active_before = NOBODY
    m.last_activity = NEVER
    for h in range(N_HOSTS):
        m.activity[h] = 0
        m.compromised[h] = 0
        m.scans[h] = 0
        m.exploits[h] = 0
        m.last_scan[h] = NEVER
        m.last_exploit[h] = NEVER
        m.last_analysis[h] = NEVER
        m.last_remove[h] = NEVER
        m.last_restore[h] = NEVER
        m.ports[h] = STATIC_PORTS[h]
        for d in range(N_DECOYS):
            m.up[h, d] = 0
            m.met[h, d] = 0
            m.met_last[h, d] = 0


@kernel
def remember(m: Any, bits: Any, action: Any) -> None:
    """Take in one step: blue's action, one of the 145, and the 52 bits that it then saw."""
    m.turn += 1
    m.action = action
    if action >= 2:
        remember_action(m, (action - 2) // N_HOSTS, (action - 2) % N_HOSTS)
    for h in range(N_HOSTS):
        m.activity[h] = bits[4 * h] + bits[4 * h + 1]
        m.compromised[h] = bits[4 * h + 2] + 2 * bits[4 * h + 3]
        if m.activity[h] > 0:
            remember_activity(m, h)


@kernel
def remember_action(m: Any, verb: int, host: int) -> None:
    """Take in an action on a host; verbs: 0 analyse, 1 remove, 2 to 9 the decoys, 10 restore."""
    if verb == 0:
        m.last_analysis[host] = m.turn
    elif verb == 1:
        m.last_remove[host] = m.turn
    elif verb == 10:
        m.last_restore[host] = m.turn
        m.ports[host] = STATIC_PORTS[host]
        for d in range(N_DECOYS):
            m.up[host, d] = 0
    elif FITS[verb - 2, host] and not m.ports[host] & CHECK_PORT[verb - 2]:
        m.ports[host] |= DECOY_PORT[verb - 2]
        m.up[host, verb - 2] = 1


@kernel
def remember_activity(m: Any, host: int) -> None:
    """Take in what was seen on a host in this step."""
    if m.activity[host] == 1:
        m.scans[host] += 1
        m.last_scan[host] = m.turn
        for d in range(N_DECOYS):
            m.met[host, d] |= m.up[host, d]
            m.met_last[host, d] = m.up[host, d]
    else:
        m.exploits[host] += 1
        m.last_exploit[host] = m.turn
    if m.active != host:
        m.active_before = m.active
        m.active = host
    m.last_activity = m.turn


@kernel
def freshness(m: Any, when: int, speed: int) -> Any:
    """1 for what happened in the last step, decaying with time; 0 for what never happened."""
    return DECAY[min(m.turn - when, FADED - 1), speed] if when != NEVER else np.float32(0.0)


@kernel
def write_features(m: Any, out: Any) -> None:
    """The memory as FEATURES numbers from 0 to 1."""
    for h in range(N_HOSTS):
        write_host(m, h, out[h * PER_HOST :])
    at = N_HOSTS * PER_HOST
    for p in range(N_PAIRS):
        h, d = PAIRS[p, 0], PAIRS[p, 1]
        out[at + 3 * p] = m.up[h, d]
        out[at + 3 * p + 1] = m.met[h, d]
        out[at + 3 * p + 2] = m.met_last[h, d]
    at += N_PAIRS * PER_PAIR
    left = LONGEST - m.turn
    out[at] = min(m.turn / LONGEST, 1.0)
    out[at + 1] = min(max(NEAR - left, 0) / NEAR, 1.0)
    out[at + 2] = max(NEAR - m.turn, 0) / NEAR
    at += 3
    since = m.turn - m.last_activity if m.last_activity != NEVER else SINCE_ACTIVITY
    for i in range(SINCE_ACTIVITY):
        out[at + i] = 1.0 if i == min(since, SINCE_ACTIVITY - 1) else 0.0
    at += SINCE_ACTIVITY
    verb, host = (m.action - 2) // N_HOSTS, (m.action - 2) % N_HOSTS
    kind = 0 if m.action < 2 else 1 + verb if verb < 2 else 4 if verb == 10 else 3
    for i in range(VERB_KINDS):
        out[at + i] = 1.0 if i == kind else 0.0
    at += VERB_KINDS
    for h in range(N_HOSTS):
        out[at + h] = 1.0 if kind and h == host else 0.0


@kernel
def write_host(m: Any, h: int, out: Any) -> None:
    """The PER_HOST numbers of one host."""
    scan, exploit, restored = m.last_scan[h], m.last_exploit[h], m.last_restore[h]
    repaired = max(restored, m.last_remove[h])
    seen = max(scan, exploit)
    out[0] = 1.0 if m.activity[h] == 1 else 0.0
    out[1] = 1.0 if m.activity[h] == 2 else 0.0
    for level in range(1, 4):
        out[1 + level] = 1.0 if m.compromised[h] == level else 0.0
    out[5] = 1.0 if m.scans[h] > 0 else 0.0
    out[6] = 1.0 if m.scans[h] > 1 else 0.0
    out[7] = min(m.scans[h], 8) / 8.0
    out[8] = freshness(m, scan, 0)
    out[9] = freshness(m, scan, 1)
    out[10] = 1.0 if m.exploits[h] > 0 else 0.0
    out[11] = min(m.exploits[h], 8) / 8.0
    out[12] = freshness(m, exploit, 0)
    out[13] = freshness(m, exploit, 1)
    out[14] = 1.0 if restored != NEVER else 0.0
    out[15] = freshness(m, restored, 0)
    out[16] = freshness(m, restored, 1)
    out[17] = freshness(m, m.last_remove[h], 0)
    out[18] = freshness(m, m.last_remove[h], 1)
    out[19] = 1.0 if m.last_analysis[h] > seen else 0.0
    out[20] = freshness(m, m.last_analysis[h], 0)
    out[21] = 1.0 if m.active == h else 0.0
    out[22] = 1.0 if m.active_before == h else 0.0
    # A repair comes before red's action of the same step, so what is seen in that step is later.
    out[23] = 1.0 if scan != NEVER and scan >= repaired else 0.0
    out[24] = 1.0 if exploit != NEVER and exploit >= repaired else 0.0
    out[25] = 1.0 if scan != NEVER and scan >= restored else 0.0
    out[26] = 1.0 if exploit != NEVER and exploit >= restored else 0.0


@kernel
def next_pair(m: Any, host: int) -> int:
    """The next useful decoy of a host, as a number in PAIRS; N_PAIRS if none is left."""
    for p in range(N_PAIRS):
        if PAIRS[p, 0] == host and not m.ports[host] & CHECK_PORT[PAIRS[p, 1]]:
            return p
    return N_PAIRS


@kernel
def full_action(m: Any, action: int) -> Any:
    """A compact action as one of the 145; Sleep in place of a decoy where none is left."""
    if action < FIRST_DECOY_ACTION:
        return PLAIN_ACTIONS[action]
    p = next_pair(m, DECOY_HOSTS[action - FIRST_DECOY_ACTION])
    return PAIR_ACTIONS[p] if p < N_PAIRS else PLAIN_ACTIONS[0]


@kernel
def write_mask(m: Any, out: Any) -> None:
    """Which compact actions are allowed: all but decoys on hosts where none is left."""
    for a in range(N_COMPACT):
        out[a] = a < FIRST_DECOY_ACTION or next_pair(m, DECOY_HOSTS[a - FIRST_DECOY_ACTION]) < N_PAIRS
