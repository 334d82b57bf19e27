"""The true state of one world as a record, the state an episode starts from, and small functions that read it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import (
    ANALYSE,
    FOOTHOLD,
    N_DECOYS,
    N_HOSTS,
    SLEEP,
    STATIC_PORTS,
    USER,
)

REST, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = 0, 1, 2, 3, 4, 5  # red's verbs
RED_VERBS = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)
NONE = 255  # no host, no target, no exploit
FAILED, SUCCEEDED, UNKNOWN = 0, 1, 2  # the result of an action; of Sleep it is unknown
CLEAN, UNSURE, USER_LEVEL, PRIVILEGED = 0, 1, 2, 3  # blue's table: the state of a host
QUIET, SCANNED, ATTACKED, SCREENED = 0, 1, 2, 3  # blue's table: what happened on a host in this step
FULL = 255  # counts stop here; the rules only ask whether a count is zero
STATE = np.dtype(
    (
        np.record,
        [
            # The network.
            ("root", np.uint8, N_HOSTS),  # red sessions that are root or SYSTEM
            ("removable", np.uint8, N_HOSTS),  # user sessions that blue's Remove ends
            ("pinned", np.uint8, N_HOSTS),  # user sessions that Remove does not end: SSH, or never noticed
            ("malware", np.uint8, N_HOSTS),  # whether there is a file for Analyse to find
            ("decoys", np.uint8, (N_HOSTS, N_DECOYS)),  # processes of each kind
            ("smtp_lost", np.uint8, N_HOSTS),  # restored mail server without a version (leaderboard rules)
            ("ports", np.uint16, N_HOSTS),  # open ports as bits, decoys included
            ("service_up", np.uint8),  # OTService runs
            ("service_stoppable", np.uint8),  # Impact can still stop it
            # What red knows. Sets of hosts, subnets and ports are bits.
            ("service_known", np.uint8),
            ("subnets", np.uint8),
            ("addresses", np.uint16),
            ("hostnames", np.uint16),
            ("known_ports", np.uint8, N_HOSTS),  # open ports that it remembers
            ("scanned", np.uint8, N_HOSTS),  # whether it remembers any scan
            # What blue sees.
            ("compromised", np.uint8, N_HOSTS),  # CLEAN, UNSURE, USER_LEVEL, PRIVILEGED
            ("activity", np.uint8, N_HOSTS),  # QUIET, SCANNED, ATTACKED, SCREENED (a scan of a host with a new decoy)
            # Events of this step, which the monitor turns into blue's table when the step ends.
            ("event_records", np.uint16, N_HOSTS),
            ("event_ports", np.uint16, N_HOSTS),  # distinct local ports, as bits
            # The actions of the last step, and their results.
            ("blue", np.uint8),
            ("blue_success", np.uint8),
            ("green_target", np.uint8),  # NONE: green slept
            ("red", np.uint8),
            ("red_target", np.uint8),  # a host, or a subnet for SWEEP
            ("red_success", np.uint8),
            ("exploit", np.uint8),  # NONE: none was chosen
            ("empty_scan", np.uint8),  # red scanned a host it could not reach
            ("cost", np.int32),  # minus the reward, in tenths
        ],
    )
)
"""Everything that a step depends on, except the memory of red's scripts (see `red.py`): one record per world.

It is a record and not a tuple of arrays, so that a kernel over one world takes one pointer. Measured at 1,000 worlds:
with a tuple of 34 arrays numba counts references in every call, which gives 0.3 instead of 7 million steps/s.
"""


@kernel
def start(s: Any) -> None:
    """Put a world into the state an episode starts from."""
    for h in range(N_HOSTS):
        wipe(s, h)
        s.smtp_lost[h] = 0
        s.known_ports[h] = 0
        s.scanned[h] = 0
        s.compromised[h] = CLEAN
        s.activity[h] = QUIET
        s.event_records[h] = 0
        s.event_ports[h] = 0
    s.service_up = 1
    s.service_stoppable = 1
    s.addresses = 1 << FOOTHOLD
    s.hostnames = 1 << FOOTHOLD
    s.subnets = 1 << USER
    s.service_known = 0
    s.blue = SLEEP
    s.blue_success = UNKNOWN
    s.green_target = NONE
    s.red = REST
    s.red_target = NONE
    s.red_success = UNKNOWN
    s.exploit = NONE
    s.empty_scan = 0
    s.cost = 0


@kernel
def wipe(s: Any, host: int) -> None:
    """Put a host into its first state: without decoys, files or sessions, except red's first one on User0."""
    s.root[host] = 1 if host == FOOTHOLD else 0
    s.removable[host] = 0
    s.pinned[host] = 0
    s.malware[host] = 0
    s.ports[host] = STATIC_PORTS[host]
    for d in range(N_DECOYS):
        s.decoys[host, d] = 0


@kernel
def decode(action: Any) -> Any:
    """A blue action as (verb, host); Sleep and Monitor have no host and give 0."""
    if action < ANALYSE:
        return action, 0
    return ANALYSE + (action - 2) // N_HOSTS, (action - 2) % N_HOSTS


@kernel
def has_session(s: Any, host: int) -> Any:
    """Whether red has a session of any kind on a host."""
    return s.root[host] != 0 or s.removable[host] != 0 or s.pinned[host] != 0


def privilege(s: Any) -> NDArray[np.int64]:
    """Red's privilege on each host of a record or an array of records, (…, hosts): 0 none, 1 user, 2 root."""
    user = (s["removable"] > 0) | (s["pinned"] > 0)
    level: NDArray[np.int64] = np.where(s["root"] > 0, 2, np.where(user, 1, 0))
    return level
