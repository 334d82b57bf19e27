"""The transition: one step of one world, as a function of its state, of all actions and of the random draws.

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
    STATIC_RECORDS,
    SUBNET_OF,
    WEIGHTS,
)
from remuda.games.cage2.state import (
    ATTACKED,
    CLEAN,
    ESCALATE,
    EXPLOIT,
    FAILED,
    FULL,
    IMPACT,
    NONE,
    PRIVILEGED,
    QUIET,
    SCAN,
    SCANNED,
    SCREENED,
    SUCCEEDED,
    SWEEP,
    UNKNOWN,
    UNSURE,
    USER_LEVEL,
    decode,
    has_session,
    wipe,
)


class TurnActions(NamedTuple):
    """The actions of all sides in a step."""

    blue: Any
    green_target: Any
    red: Any
    red_target: Any


class Draws(NamedTuple):
    """The random outcomes of a step, whether or not they are needed."""

    exploit: Any  # the exploit that red chooses among its options
    detected: Any  # whether a new shell is noticed
    session: Any  # in [0, 1): which session is escalated, by its rank, removable ones first


@kernel
def transition(s: Any, actions: Any, draws: Any, leaderboard: bool) -> None:
    """One step of a world: blue, green and red act in this order, then the cost and blue's table are computed."""
    s.blue = actions.blue
    s.green_target = actions.green_target
    s.red = actions.red
    s.red_target = actions.red_target
    s.exploit = NONE
    s.empty_scan = 0
    verb, host = decode(actions.blue)
    found = verb == ANALYSE and s.malware[host] != 0
    s.blue_success = _blue_acts(s, verb, host, leaderboard)
    if actions.green_target != NONE:
        _queue_scan(s, actions.green_target)
    s.red_success = _red_acts(s, actions, draws, leaderboard)
    s.cost = _cost(s, verb)
    placed = host if verb >= FIRST_DECOY and verb < RESTORE and s.blue_success == SUCCEEDED else NONE
    _monitor(s, placed)
    if found:
        s.compromised[host] = PRIVILEGED


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
    """Remove everything that red or blue put on a host; what red remembers and its first session stay."""
    wipe(s, host)
    s.compromised[host] = CLEAN
    if leaderboard:
        s.smtp_lost[host] = 1
    if host == OP_SERVER:
        s.service_up = 1
        s.service_stoppable = 0  # the original records no pid of the restarted service, so Impact cannot find it


@kernel
def _place(s: Any, host: int, decoy: int) -> int:
    if s.ports[host] & CHECK_PORT[decoy] or not FITS[decoy, host]:
        return FAILED
    s.ports[host] |= DECOY_PORT[decoy]
    s.decoys[host, decoy] = _one_more(s.decoys[host, decoy])
    return SUCCEEDED


@kernel
def _red_acts(s: Any, actions: Any, draws: Any, leaderboard: bool) -> int:
    verb, target = actions.red, actions.red_target
    if verb == SWEEP:
        return _sweep(s, target)
    if verb == SCAN:
        return _scan(s, target, leaderboard)
    if verb == EXPLOIT:
        return _attack(s, target, draws)
    if verb == ESCALATE:
        return _escalate(s, target, draws)
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
    """A scan always reports success; of a host out of reach red learns nothing and no event is created."""
    if not _reaches(s, SUBNET_OF[host]):
        s.empty_scan = 1
        return SUCCEEDED
    seen = s.ports[host] & REMEMBERED
    s.known_ports[host] = s.known_ports[host] | seen if leaderboard else seen
    s.scanned[host] = 1
    _queue_scan(s, host)
    return SUCCEEDED


@kernel
def _attack(s: Any, host: int, draws: Any) -> int:
    if not s.scanned[host]:
        return FAILED
    s.exploit = draws.exploit
    if draws.exploit == NO_EXPLOIT or not _reaches(s, SUBNET_OF[host]):
        return FAILED
    shell = SHELLS[host, draws.exploit]
    lured = shell == NO_SHELL and _lures(s, host, draws.exploit)
    if shell == NO_SHELL and not lured:
        return FAILED
    fails = lured or shell == LOCKED or (draws.exploit == HARAKA and s.smtp_lost[host] != 0)
    _queue_attack(s, host, draws, lured, not fails)
    if fails:
        return FAILED
    _open_session(s, host, shell, draws)
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
def _open_session(s: Any, host: int, shell: int, draws: Any) -> None:
    if draws.exploit != BRUTE_FORCE:
        s.malware[host] = 1
    if shell == ROOT_SHELL:
        s.root[host] = _one_more(s.root[host])
    elif draws.exploit != BRUTE_FORCE and draws.detected:
        s.removable[host] = _one_more(s.removable[host])
    else:
        s.pinned[host] = _one_more(s.pinned[host])


@kernel
def _one_more(count: int) -> int:
    return count + 1 if count < FULL else FULL


@kernel
def _queue_attack(s: Any, host: int, draws: Any, lured: bool, succeeds: bool) -> None:
    """Brute force creates 10 or 11 events; other exploits one, two at a decoy, and one more if the shell is noticed."""
    s.event_ports[host] |= EXPLOIT_PORT[draws.exploit]
    if draws.exploit == BRUTE_FORCE:
        s.event_records[host] += 11 if succeeds else 10
        return
    s.event_records[host] += 2 if lured else 1
    if succeeds and draws.detected:
        s.event_records[host] += 1
        s.event_ports[host] |= CALLBACK


@kernel
def _escalate(s: Any, host: int, draws: Any) -> int:
    if not has_session(s, host):
        return FAILED
    if s.root[host] == 0:
        sessions = np.int64(s.removable[host]) + s.pinned[host]
        if draws.session * sessions < s.removable[host]:
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
def _reaches(s: Any, subnet: int) -> bool:
    """Whether red reaches a subnet: Operational only from a session on Enterprise0, 1 or 2; the others always."""
    if subnet != OPERATIONAL:
        return True
    for host in range(BRIDGES[0], BRIDGES[1]):  # noqa: SIM110
        if has_session(s, host):
            return True
    return False


@kernel
def _queue_scan(s: Any, host: int) -> None:
    """A scan creates one event per listening process."""
    records = STATIC_RECORDS[host]
    for d in range(N_DECOYS):
        records += s.decoys[host, d]
    s.event_records[host] += records
    s.event_ports[host] |= s.ports[host]


@kernel
def _cost(s: Any, verb: int) -> int:
    """Minus blue's reward, in tenths. Whole numbers, so that sums are exact."""
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
    """Turn the events of every host into blue's table."""
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
    """How blue's table shows a host's events; a decoy placed in this step counts as one more record."""
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
