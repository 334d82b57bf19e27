"""The facts of CAGE 2's Scenario2: hosts, subnets, listeners, accounts, exploits, decoys, links, weights.

The tables at the top are for people; the arrays below are the same facts for compiled code, which inlines them. (This
text contains the word @kernel so that the cache of compiled code also depends on this file.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ENTERPRISE, OPERATIONAL, USER = 0, 1, 2
SUBNETS = ("Enterprise", "Operational", "User")


class Host(NamedTuple):
    """One machine; `weight` is the cost to blue of each step in which red is root there."""

    name: str
    subnet: int
    os: str
    weight: float
    account: str | None  # whose password can be guessed over SSH
    link: str | None  # whose address an escalation here reveals


HOSTS = (
    Host("Defender", ENTERPRISE, "Linux", 0.1, None, None),
    Host("Enterprise0", ENTERPRISE, "Linux", 1.0, "pi", None),
    Host("Enterprise1", ENTERPRISE, "Windows", 1.0, "vagrant", None),
    Host("Enterprise2", ENTERPRISE, "Windows", 1.0, "vagrant", "Op_Server0"),
    Host("Op_Host0", OPERATIONAL, "Linux", 0.1, "pi", None),
    Host("Op_Host1", OPERATIONAL, "Linux", 0.1, "pi", None),
    Host("Op_Host2", OPERATIONAL, "Linux", 0.1, "pi", None),
    Host("Op_Server0", OPERATIONAL, "Linux", 1.0, "pi", None),
    Host("User0", USER, "Windows", 0.0, "vagrant", None),
    Host("User1", USER, "Windows", 0.1, "vagrant", "Enterprise1"),
    Host("User2", USER, "Windows", 0.1, "vagrant", "Enterprise1"),
    Host("User3", USER, "Linux", 0.1, "pi", "Enterprise0"),
    Host("User4", USER, "Linux", 0.1, "pi", "Enterprise0"),
)
NAMES = tuple(host.name for host in HOSTS)
N_HOSTS = len(HOSTS)
FOOTHOLD = NAMES.index("User0")  # red's first session is here, and nothing ends it
OP_SERVER = NAMES.index("Op_Server0")
BRIDGES = (
    NAMES.index("Enterprise0"),
    NAMES.index("Enterprise2") + 1,
)  # first and last + 1: a session here reaches Operational
SERVICE_DOWN = 10.0  # cost of a step in which OTService is not running
RESTORE_COST = 1.0


class ListeningService(NamedTuple):
    """A process with an open port; exploits match on its service, and a shell runs as its user."""

    port: int
    service: str | None
    user: str


_SSH_ROOT = (ListeningService(22, "ssh", "root"),)
_WORKSTATION = (ListeningService(22, "ssh", "sshd_server"), ListeningService(21, "femitter", "SYSTEM"))
_INTERNAL = (
    ListeningService(22, "ssh", "sshd_server"),
    ListeningService(135, None, "SYSTEM"),
    ListeningService(3389, "rdp", "SYSTEM"),
    ListeningService(445, None, "SYSTEM"),  # no smb here, so EternalBlue fails on 139 too
    ListeningService(139, None, "SYSTEM"),
    ListeningService(80, "web", "NetworkService"),
    ListeningService(443, "web", "NetworkService"),
)
LISTENERS = {
    "Defender": (
        ListeningService(22, "ssh", "root"),
        ListeningService(53, None, "systemd"),
        ListeningService(53, None, "systemd"),
        ListeningService(68, None, "root"),
    ),
    "Enterprise0": _SSH_ROOT,
    "Enterprise1": _INTERNAL,
    "Enterprise2": _INTERNAL,
    "Op_Host0": _SSH_ROOT,
    "Op_Host1": _SSH_ROOT,
    "Op_Host2": _SSH_ROOT,
    "Op_Server0": _SSH_ROOT,
    "User0": _WORKSTATION,
    "User1": _WORKSTATION,
    "User2": (
        ListeningService(445, "smb", "SYSTEM"),
        ListeningService(139, "smb", "SYSTEM"),
        ListeningService(135, None, "SYSTEM"),
        ListeningService(3389, "rdp", "NetworkService"),
    ),
    "User3": (
        ListeningService(80, "web", "www-data"),
        ListeningService(3389, "mysql", "root"),  # on BlueKeep's port, so SQLInjection is never tried here
        ListeningService(443, "web", "www-data"),
        ListeningService(25, "smtp", "root"),
    ),
    "User4": (
        ListeningService(22, "ssh", "root"),
        ListeningService(80, "web", "www-data"),
        ListeningService(3390, "mysql", "root"),
        ListeningService(443, "web", "www-data"),
        ListeningService(25, "smtp", "root"),
    ),
}


class Exploit(NamedTuple):
    """An exploit: red tries it if it remembers its port (and one of `also_needs`), and prefers larger weights."""

    name: str
    port: int
    service: str
    weight: float
    also_needs: tuple[int, ...] = ()


EXPLOITS = (  # numbered from 1; 0 is "no option"
    Exploit("EternalBlue", 139, "smb", 2.0),
    Exploit("BlueKeep", 3389, "rdp", 1.0),
    Exploit("HTTPRFI", 80, "web", 3.0),
    Exploit("HTTPSRFI", 443, "web", 4.0),
    Exploit("SSHBruteForce", 22, "ssh", 0.1),
    Exploit("SQLInjection", 3390, "mysql", 5.0, also_needs=(80, 443)),
    Exploit("HarakaRCE", 25, "smtp", 6.0),
    Exploit("FTPDirectoryTraversal", 21, "femitter", 7.0),
)
NO_EXPLOIT = 0
BRUTE_FORCE = 1 + [e.name for e in EXPLOITS].index("SSHBruteForce")
HARAKA = 1 + [e.name for e in EXPLOITS].index("HarakaRCE")
PREFER_TOP = 0.75  # chance that red takes the option with the largest weight
DETECTED = 0.95  # chance that a new shell is noticed


class Decoy(NamedTuple):
    """A false service: fails if port `check` is open on the host, otherwise opens port `opens`."""

    name: str
    check: int
    opens: int
    service: str
    os: str | None  # None: any


DECOYS = (
    Decoy("Apache", 80, 80, "web", None),
    Decoy("Femitter", 21, 21, "femitter", "Windows"),
    Decoy("HarakaSMPT", 25, 25, "smtp", "Linux"),
    Decoy("Smss", 139, 139, "smb", "Windows"),
    Decoy("SSHD", 22, 22, "ssh", None),
    Decoy("Svchost", 3389, 3389, "rdp", "Windows"),
    Decoy("Tomcat", 443, 443, "web", None),
    Decoy(
        "Vsftpd", 21, 80, "web", "Linux"
    ),  # checks 21 but opens 80, so it can be placed several times, and after Apache
)
N_DECOYS = len(DECOYS)
SLEEP, MONITOR, ANALYSE, REMOVE, FIRST_DECOY, RESTORE = 0, 1, 2, 3, 4, 4 + N_DECOYS
VERBS = ("Sleep", "Monitor", "Analyse", "Remove", *(f"Decoy{decoy.name}" for decoy in DECOYS), "Restore")
N_ACTIONS = 2 + (len(VERBS) - 2) * N_HOSTS


def action_name(action: int) -> str:
    """The name of a blue action."""
    if action < ANALYSE:
        return VERBS[action]
    return f"{VERBS[ANALYSE + (action - 2) // N_HOSTS]} {NAMES[(action - 2) % N_HOSTS]}"


def action_of(verb: int, host: int) -> int:
    """The index of a blue action on a host."""
    return 2 + (verb - ANALYSE) * N_HOSTS + host


PORTS = (21, 22, 25, 80, 139, 443, 3389, 3390, 53, 68, 135, 445)  # bit numbers; red remembers the first eight
REMEMBERED = 0xFF
CALLBACK = 1 << len(PORTS)  # the ephemeral port of a noticed reverse shell
NO_SHELL, USER_SHELL, ROOT_SHELL, LOCKED = 0, 1, 2, 3


def _bits(ports: tuple[int, ...]) -> int:
    return sum(1 << PORTS.index(port) for port in set(ports))


def _shell(host: Host, exploit: Exploit) -> int:
    """What an exploit yields on a host without decoys."""
    for listener in LISTENERS[host.name]:
        if (listener.port, listener.service) == (exploit.port, exploit.service):
            if exploit.service == "ssh":
                return USER_SHELL if host.account else LOCKED
            return ROOT_SHELL if listener.user in ("root", "SYSTEM") else USER_SHELL
    return NO_SHELL


def _options(remembered: int) -> tuple[int, int]:
    """The exploits red considers for a set of remembered ports, as bits, and the one it prefers."""
    tried = [
        (exploit.weight, number)
        for number, exploit in enumerate(EXPLOITS, 1)
        if remembered & _bits((exploit.port,)) and (not exploit.also_needs or remembered & _bits(exploit.also_needs))
    ]
    return sum(1 << number for _, number in tried), max(tried, default=(0.0, NO_EXPLOIT))[1]


def _lure(decoy: Decoy) -> int:
    return 1 + [(e.port, e.service) for e in EXPLOITS].index((decoy.opens, decoy.service))


WEIGHTS: NDArray[np.int64] = np.array([round(10 * host.weight) for host in HOSTS])  # (hosts,), in tenths
SUBNET_OF: NDArray[np.int64] = np.array([host.subnet for host in HOSTS])  # (hosts,)
MEMBERS: NDArray[np.int64] = np.array(  # (subnets,), hosts as bits
    [sum(1 << h for h, host in enumerate(HOSTS) if host.subnet == subnet) for subnet in range(len(SUBNETS))]
)
REVEALED: NDArray[np.int64] = np.array(  # (hosts,): addresses as bits that an escalation shows
    [1 << h | (1 << NAMES.index(host.link) if host.link else 0) for h, host in enumerate(HOSTS)]
)
STATIC_PORTS: NDArray[np.uint16] = np.array([_bits(tuple(x.port for x in LISTENERS[n])) for n in NAMES], np.uint16)
STATIC_RECORDS: NDArray[np.int64] = np.array([len(LISTENERS[name]) for name in NAMES])  # (hosts,)
SHELLS: NDArray[np.uint8] = np.array(  # (hosts, 1 + exploits)
    [[NO_SHELL, *(_shell(host, exploit) for exploit in EXPLOITS)] for host in HOSTS], np.uint8
)
EXPLOIT_PORT: NDArray[np.uint16] = np.array([0, *(_bits((e.port,)) for e in EXPLOITS)], np.uint16)  # (1 + exploits,)
OPTIONS: NDArray[np.int64] = np.array([_options(ports)[0] for ports in range(256)])  # (remembered ports,)
PREFERRED: NDArray[np.int64] = np.array([_options(ports)[1] for ports in range(256)])  # (remembered ports,)
CHECK_PORT: NDArray[np.uint16] = np.array([_bits((d.check,)) for d in DECOYS], np.uint16)  # (decoys,)
DECOY_PORT: NDArray[np.uint16] = np.array([_bits((d.opens,)) for d in DECOYS], np.uint16)  # (decoys,)
LURES: NDArray[np.int64] = np.array([_lure(decoy) for decoy in DECOYS])  # (decoys,): the exploit each attracts
FITS: NDArray[np.bool_] = np.array([[d.os in (None, host.os) for host in HOSTS] for d in DECOYS])  # (decoys, hosts)
GREEN_HOSTS: NDArray[np.int64] = np.array([NAMES.index(n) for n in NAMES if n.startswith(("User", "Enterprise"))])
