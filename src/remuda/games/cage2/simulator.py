"""The transition: one step of one world as a function of its state, what everybody does, and chance.

Nothing here draws a random number or decides what an agent does, so a recorded game can be replayed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remuda.core.kernels import kernel
from remuda.games.cage2.network import (
    ANALYSE,
    BRIDGES,
    BRUTE_FORCE,
    CALLBACK,
    CHECK_PORT,
    DECOY_PORT,
    EXPLOIT_PORT,
    FIRST_DECOY,
    FITS,
    FOOTHOLD,
    HARAKA,
    LOCKED,
    LURES,
    MEMBERS,
    MONITOR,
    N_DECOYS,
    N_HOSTS,
    NO_EXPLOIT,
    NO_SHELL,
    OP_SERVER,
    OPERATIONAL,
    REMEMBERED,
    REMOVE,
    RESTORE,
    RESTORE_COST,
    REVEALED,
    ROOT_SHELL,
    SERVICE_DOWN,
    SHELLS,
    SLEEP,
    STATIC_PORTS,
    STATIC_RECORDS,
    SUBNET_OF,
    USER,
    WEIGHTS,
)

REST, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = 0, 1, 2, 3, 4, 5  # what red does
RED_VERBS = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)
NOBODY = 255
FAILED, SUCCEEDED, UNKNOWN = 0, 1, 2  # how an action went; Sleep never says
CLEAN, UNSURE, USER_LEVEL, PRIVILEGED = 0, 1, 2, 3  # blue's table: what became of a host
QUIET, SCANNED, ATTACKED, SCREENED = 0, 1, 2, 3  # blue's table: what happened there this step
FULL = 255  # counts stop here; only "none" and "some" matter to play
STATE = np.dtype(
    (
        np.record,
        [
            # What is the case.
            ("root", np.uint8, N_HOSTS),  # red sessions that are root or SYSTEM
            ("removable", np.uint8, N_HOSTS),  # user sessions that blue's Remove ends
            ("pinned", np.uint8, N_HOSTS),  # user sessions that it does not: SSH, or never noticed
            ("malware", np.uint8, N_HOSTS),  # a file is there for Analyse to find
            ("decoys", np.uint8, (N_HOSTS, N_DECOYS)),  # processes of each kind
            ("smtp_lost", np.uint8, N_HOSTS),  # restored mail server without a version (leaderboard rules)
            ("ports", np.uint16, N_HOSTS),  # open ports as bits, decoys included
            ("service_up", np.uint8),  # OTService runs
            ("service_stoppable", np.uint8),  # Impact can still stop it
            # What red knows; sets are bits.
            ("service_known", np.uint8),
            ("subnets", np.uint8),
            ("addresses", np.uint16),
            ("hostnames", np.uint16),
            ("known_ports", np.uint8, N_HOSTS),  # open ports it remembers
            ("scanned", np.uint8, N_HOSTS),  # whether it remembers any scan
            # What blue sees.
            ("compromised", np.uint8, N_HOSTS),  # CLEAN, UNSURE, USER_LEVEL, PRIVILEGED
            ("activity", np.uint8, N_HOSTS),  # QUIET, SCANNED, ATTACKED, SCREENED (a scan beside a new decoy)
            # What the monitor will deliver at the end of the step.
            ("event_records", np.uint16, N_HOSTS),
            ("event_ports", np.uint16, N_HOSTS),  # distinct local ports, as bits
            # What everybody did in the last step, and how it went.
            ("blue", np.uint8),
            ("blue_success", np.uint8),
            ("green_target", np.uint8),  # NOBODY: green slept
            ("red", np.uint8),
            ("red_target", np.uint8),  # a host, or a subnet for SWEEP
            ("red_success", np.uint8),
            ("exploit", np.uint8),  # NOBODY: none was chosen
            ("empty_scan", np.uint8),  # red scanned a host it could not reach
            ("cost", np.int32),  # minus the reward, in tenths
        ],
    )
)
"""All that a step depends on, apart from how red makes up its mind: one record per world.

Records, not a tuple of arrays: a function over one world then takes one pointer. (Measured at 1,000 worlds:
a tuple of 34 arrays has numba count references in every call, 0.3 instead of 7 million steps/s.)
"""


class Orders(NamedTuple):
    """What everybody does in a step."""

    blue: Any
    green_target: Any
    red: Any
    red_target: Any


class Draws(NamedTuple):
    """How the dice of a step fall, whether or not they are needed."""

    exploit: Any  # the one chosen among red's options
    detected: Any  # a new shell is noticed
    session: Any  # which session is escalated, in [0, 1) over those there, removable ones first


@kernel
def start(s: Any) -> None:
    """Put a world into the state an episode starts from."""
    for h in range(N_HOSTS):
        _wipe(s, h)
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
    s.green_target = NOBODY
    s.red = REST
    s.red_target = NOBODY
    s.red_success = UNKNOWN
    s.exploit = NOBODY
    s.empty_scan = 0
    s.cost = 0


@kernel
def transition(s: Any, orders: Any, chance: Any, leaderboard: bool) -> None:
    """One step of a world: blue, green and red act in this order, then blue pays and is told."""
    s.blue = orders.blue
    s.green_target = orders.green_target
    s.red = orders.red
    s.red_target = orders.red_target
    s.exploit = NOBODY
    s.empty_scan = 0
    verb, host = decode(orders.blue)
    found = verb == ANALYSE and s.malware[host] != 0
    s.blue_success = _blue_acts(s, verb, host, leaderboard)
    if orders.green_target != NOBODY:
        _queue_scan(s, orders.green_target)
    s.red_success = _red_acts(s, orders, chance, leaderboard)
    s.cost = _cost(s, verb)
    placed = host if verb >= FIRST_DECOY and verb < RESTORE and s.blue_success == SUCCEEDED else NOBODY
    _monitor(s, placed)
    if found:
        s.compromised[host] = PRIVILEGED


@kernel
def decode(action: Any) -> Any:
    """A blue action as (verb, host); Sleep and Monitor concern no host and give 0."""
    if action < ANALYSE:
        return action, 0
    return ANALYSE + (action - 2) // N_HOSTS, (action - 2) % N_HOSTS


@kernel
def _blue_acts(s: Any, verb: int, host: int, leaderboard: bool) -> int:
    if verb == SLEEP:
        return UNKNOWN
    if verb in (MONITOR, ANALYSE):
        return SUCCEEDED
    if verb == REMOVE:
        s.removable[host] = 0
        if s.compromised[host] != CLEAN:
            s.compromised[host] = UNSURE
        return SUCCEEDED
    if verb == RESTORE:
        _restore(s, host, leaderboard)
        return SUCCEEDED
    return _place(s, host, verb - FIRST_DECOY)


@kernel
def _restore(s: Any, host: int, leaderboard: bool) -> None:
    """Everything red or blue put there goes; red's memory and its first session stay."""
    _wipe(s, host)
    s.compromised[host] = CLEAN
    if leaderboard:
        s.smtp_lost[host] = 1
    if host == OP_SERVER:
        s.service_up = 1
        s.service_stoppable = 0  # the restarted service has no pid on record, so no Impact finds it


@kernel
def _wipe(s: Any, host: int) -> None:
    s.root[host] = 1 if host == FOOTHOLD else 0
    s.removable[host] = 0
    s.pinned[host] = 0
    s.malware[host] = 0
    s.ports[host] = STATIC_PORTS[host]
    for d in range(N_DECOYS):
        s.decoys[host, d] = 0


@kernel
def _place(s: Any, host: int, decoy: int) -> int:
    if s.ports[host] & CHECK_PORT[decoy] or not FITS[decoy, host]:
        return FAILED
    s.ports[host] |= DECOY_PORT[decoy]
    s.decoys[host, decoy] = _one_more(s.decoys[host, decoy])
    return SUCCEEDED


@kernel
def _red_acts(s: Any, orders: Any, chance: Any, leaderboard: bool) -> int:
    verb, target = orders.red, orders.red_target
    if verb == SWEEP:
        return _sweep(s, target)
    if verb == SCAN:
        return _scan(s, target, leaderboard)
    if verb == EXPLOIT:
        return _attack(s, target, chance)
    if verb == ESCALATE:
        return _escalate(s, target, chance)
    if verb == IMPACT:
        return _impact(s)
    return UNKNOWN


@kernel
def _sweep(s: Any, subnet: int) -> int:
    if not _reaches(s, subnet):
        return FAILED
    s.addresses |= MEMBERS[subnet]
    return SUCCEEDED


@kernel
def _scan(s: Any, host: int, leaderboard: bool) -> int:
    """It always reports success; out of reach it learns nothing and nobody notices."""
    if not _reaches(s, SUBNET_OF[host]):
        s.empty_scan = 1
        return SUCCEEDED
    seen = s.ports[host] & REMEMBERED
    s.known_ports[host] = s.known_ports[host] | seen if leaderboard else seen
    s.scanned[host] = 1
    _queue_scan(s, host)
    return SUCCEEDED


@kernel
def _attack(s: Any, host: int, chance: Any) -> int:
    if not s.scanned[host]:
        return FAILED
    s.exploit = chance.exploit
    if chance.exploit == NO_EXPLOIT or not _reaches(s, SUBNET_OF[host]):
        return FAILED
    shell = SHELLS[host, chance.exploit]
    lured = shell == NO_SHELL and _lures(s, host, chance.exploit)
    if shell == NO_SHELL and not lured:
        return FAILED
    fails = lured or shell == LOCKED or (chance.exploit == HARAKA and s.smtp_lost[host] != 0)
    _queue_attack(s, host, chance, lured, not fails)
    if fails:
        return FAILED
    _open_session(s, host, shell, chance)
    s.hostnames |= 1 << host
    return SUCCEEDED


@kernel
def _lures(s: Any, host: int, exploit: int) -> bool:
    """Whether a decoy answers this exploit."""
    for d in range(N_DECOYS):  # noqa: SIM110, any() of a generator does not compile
        if s.decoys[host, d] and LURES[d] == exploit:
            return True
    return False


@kernel
def _open_session(s: Any, host: int, shell: int, chance: Any) -> None:
    if chance.exploit != BRUTE_FORCE:
        s.malware[host] = 1
    if shell == ROOT_SHELL:
        s.root[host] = _one_more(s.root[host])
    elif chance.exploit != BRUTE_FORCE and chance.detected:
        s.removable[host] = _one_more(s.removable[host])
    else:
        s.pinned[host] = _one_more(s.pinned[host])


@kernel
def _one_more(count: int) -> int:
    return count + 1 if count < FULL else FULL


@kernel
def _queue_attack(s: Any, host: int, chance: Any, lured: bool, succeeds: bool) -> None:
    """Brute force is loud; other exploits leave one trace, two at a decoy, and a callback if noticed."""
    s.event_ports[host] |= EXPLOIT_PORT[chance.exploit]
    if chance.exploit == BRUTE_FORCE:
        s.event_records[host] += 11 if succeeds else 10
        return
    s.event_records[host] += 2 if lured else 1
    if succeeds and chance.detected:
        s.event_records[host] += 1
        s.event_ports[host] |= CALLBACK


@kernel
def _escalate(s: Any, host: int, chance: Any) -> int:
    if not has_session(s, host):
        return FAILED
    if s.root[host] == 0:
        sessions = np.int64(s.removable[host]) + s.pinned[host]
        if chance.session * sessions < s.removable[host]:
            s.removable[host] -= 1
        else:
            s.pinned[host] -= 1
        s.root[host] = 1
        s.malware[host] = 1
    s.addresses |= REVEALED[host]
    s.subnets |= 1 << SUBNET_OF[host]
    if host == OP_SERVER:
        s.service_known = 1
    return SUCCEEDED


@kernel
def _impact(s: Any) -> int:
    if not has_session(s, OP_SERVER) or s.service_known == 0:
        return FAILED
    if s.service_stoppable:
        s.service_up = 0
    return SUCCEEDED


@kernel
def has_session(s: Any, host: int) -> Any:
    """Whether red is on a host, with whatever rights."""
    return s.root[host] != 0 or s.removable[host] != 0 or s.pinned[host] != 0


@kernel
def _reaches(s: Any, subnet: int) -> bool:
    """User and Enterprise always; Operational from any session on Enterprise0, 1 or 2."""
    if subnet != OPERATIONAL:
        return True
    for host in range(BRIDGES[0], BRIDGES[1]):  # noqa: SIM110
        if has_session(s, host):
            return True
    return False


@kernel
def _queue_scan(s: Any, host: int) -> None:
    """One event per listening record."""
    records = STATIC_RECORDS[host]
    for d in range(N_DECOYS):
        records += s.decoys[host, d]
    s.event_records[host] += records
    s.event_ports[host] |= s.ports[host]


@kernel
def _cost(s: Any, verb: int) -> int:
    """Minus blue's reward, in tenths: whole numbers, so that no sum is ever rounded."""
    tenths, root = 0, s.root
    for host in range(N_HOSTS):
        if root[host]:
            tenths += WEIGHTS[host]
    if s.service_up == 0:
        tenths += int(10 * SERVICE_DOWN)
    if verb == RESTORE:
        tenths += int(10 * RESTORE_COST)
    return tenths


@kernel
def _monitor(s: Any, placed: int) -> None:
    """Deliver every host's events to blue's table."""
    records, ports, activity = s.event_records, s.event_ports, s.activity
    for host in range(N_HOSTS):
        activity[host] = QUIET
        if records[host]:
            activity[host] = _classify(records[host], np.int64(ports[host]), host == placed)
            if activity[host] == ATTACKED:
                s.compromised[host] = USER_LEVEL
            records[host] = 0
            ports[host] = 0


@kernel
def _classify(records: Any, ports: Any, placed: bool) -> int:
    """What blue's table makes of a host's events; a decoy placed in this step is one more record."""
    entries = records + 1 if placed else records
    beyond_one = ports & (ports - 1)
    three_ports = beyond_one & (beyond_one - 1) != 0
    if entries >= 3 and three_ports:
        return SCANNED
    if ports & CALLBACK:
        return ATTACKED
    if entries >= 3 and beyond_one == 0:
        return ATTACKED
    return SCREENED if placed else SCANNED
