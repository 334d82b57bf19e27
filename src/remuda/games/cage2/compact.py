"""The compact actions: 40 in place of 145, where a decoy action places the next useful decoy of its host.

Left out are actions that never help: Monitor, which runs after every step anyway; Defender and User0, where blue can
neither lose nor end anything; Remove where only SSH sessions occur; decoys that attract nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remuda.games.cage2.network import (
    ANALYSE,
    DECOYS,
    FIRST_DECOY,
    NAMES,
    REMOVE,
    RESTORE,
    SLEEP,
    action_name,
    action_of,
)

REPAIRED = tuple(name for name in NAMES if name not in ("Defender", "User0"))
REMOVABLE = ("Enterprise1", "Enterprise2", "User1", "User2", "User3", "User4")
_SERVER = ("HarakaSMPT", "Tomcat", "Apache")
_WORKSTATION = ("Tomcat", "Apache", "Smss", "Svchost")
USEFUL_DECOYS = {  # by host: the decoys worth placing, in the order of placing
    "Enterprise0": _SERVER,
    "Enterprise1": ("Femitter",),
    "Enterprise2": ("Femitter",),
    "Op_Host0": _SERVER,
    "Op_Host1": _SERVER,
    "Op_Host2": _SERVER,
    "Op_Server0": _SERVER,
    "User0": _WORKSTATION,
    "User1": _WORKSTATION,
    "User2": ("Femitter", "Tomcat", "Apache", "SSHD"),
    "User3": ("SSHD",),
}
_DECOY_NAMES = [decoy.name for decoy in DECOYS]
PAIRS: NDArray[np.int64] = np.array(  # (pairs, 2): host and decoy, in the order of placing within a host
    [(NAMES.index(host), _DECOY_NAMES.index(decoy)) for host, decoys in USEFUL_DECOYS.items() for decoy in decoys]
)
N_PAIRS = len(PAIRS)
_PLAIN = [
    SLEEP,
    *(action_of(ANALYSE, NAMES.index(name)) for name in REPAIRED),
    *(action_of(RESTORE, NAMES.index(name)) for name in REPAIRED),
    *(action_of(REMOVE, NAMES.index(name)) for name in REMOVABLE),
]
FIRST_DECOY_ACTION = len(_PLAIN)
DECOY_HOSTS: NDArray[np.int64] = np.array([NAMES.index(name) for name in USEFUL_DECOYS])  # (decoy actions,)
N_COMPACT = FIRST_DECOY_ACTION + len(DECOY_HOSTS)
PLAIN_ACTIONS: NDArray[np.int64] = np.array(_PLAIN)  # (plain actions,): as one of the 145
PAIR_ACTIONS: NDArray[np.int64] = np.array([action_of(FIRST_DECOY + d, h) for h, d in PAIRS.tolist()])  # (pairs,)


def compact_name(action: int) -> str:
    """The name of a compact action."""
    if action < FIRST_DECOY_ACTION:
        return action_name(int(PLAIN_ACTIONS[action]))
    return f"next decoy {NAMES[DECOY_HOSTS[action - FIRST_DECOY_ACTION]]}"
