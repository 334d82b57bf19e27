"""Workflows: orders of priority in which a defender should repair types of hosts, and how well it followed one.

Remove and Restore are fixes. A fix complies if its host is of the first type in the order on which red had a session
just before the step. Which host of that type it is, and whether the fix helps, does not matter.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import FOOTHOLD, HOSTS, N_HOSTS, REMOVE, RESTORE
from remuda.games.cage2.state import decode, has_session

HOST_TYPES = ("defender", "enterprise", "op_server", "op_host", "user")
N_HOST_TYPES = len(HOST_TYPES)
ORDER_BITS = N_HOST_TYPES * N_HOST_TYPES
_BY_NAME = {"Defender": 0, "Enterprise": 1, "Op_Server": 2, "Op_Host": 3, "User": 4}
HOST_TYPE_OF: NDArray[np.int64] = np.array([_BY_NAME[host.name.rstrip("0123456789")] for host in HOSTS])  # (hosts,)
ORDERS = tuple(",".join(order) for order in permutations(HOST_TYPES))
COMPLIANCE_WITHOUT_FIX = 0.5  # of an episode in which nothing was fixed
NOT_A_FIX = -1
FIX_COUNTS = np.dtype((np.record, [("fixes", np.int64), ("compliant", np.int64), ("by_type", np.int64, N_HOST_TYPES)]))
"""How many fixes a world has seen so far in its episode."""


class WorkflowRules(NamedTuple):
    """What counts as a session of red's, and what fixes pay."""

    foothold_counts: bool
    alignment: float
    compliant_bonus: float
    violation_penalty: float


def read_order(name: str) -> list[int]:
    """The host types of an order as numbers, from its name: `defender,enterprise,op_server,op_host,user`."""
    words = [word.strip() for word in name.split(",")]
    if sorted(words) != sorted(HOST_TYPES):
        raise ValueError(f"{', '.join(HOST_TYPES)} in any order, with commas between")
    return [HOST_TYPES.index(word) for word in words]


def canonical_order(name: str, foothold_counts: bool) -> str:
    """The order that represents all orders that give the same game.

    Red always has a session on User0. If that counts, the first type with a session is never one after `user`, so the
    order of the types after `user` makes no difference.
    """
    words = name.split(",")
    relevant = words.index("user") + 1 if foothold_counts else N_HOST_TYPES
    return ",".join(words[:relevant] + [host_type for host_type in HOST_TYPES if host_type not in words[:relevant]])


def distinct_orders(foothold_counts: bool) -> list[str]:
    """One order for each different game: 65 of the 120 if the foothold counts, else all of them."""
    return list(dict.fromkeys(canonical_order(name, foothold_counts) for name in ORDERS))


def pair_features(name: str, foothold_counts: bool) -> NDArray[np.float64]:
    """An order as ten numbers, one per pair of types: 1 or -1 for which is first, 0 if it makes no difference."""
    words = name.split(",")
    place = {host_type: i for i, host_type in enumerate(words)}
    if foothold_counts:
        place |= dict.fromkeys(words[place["user"] + 1 :], N_HOST_TYPES)
    return np.array([float(np.sign(place[b] - place[a])) for a, b in combinations(HOST_TYPES, 2)])


def kendall_distance(one: str, other: str, foothold_counts: bool) -> float:
    """Kendall's distance: pairs of types in opposite order; a pair that matters in only one order counts a quarter."""
    return float(((pair_features(one, foothold_counts) - pair_features(other, foothold_counts)) ** 2).sum() / 4)


@kernel
def write_order(order: Any, out: Any) -> None:
    """An order as 25 bits: for each place, one of five."""
    for place in range(N_HOST_TYPES):
        for host_type in range(N_HOST_TYPES):
            out[N_HOST_TYPES * place + host_type] = 1 if order[place] == host_type else 0


@kernel
def place_in_order(bits: Any, host_type: int) -> Any:
    """The place of a type in an order that `write_order` wrote."""
    for place in range(N_HOST_TYPES):
        if bits[N_HOST_TYPES * place + host_type]:
            return place
    return N_HOST_TYPES


@kernel
def first_held_type(s: Any, order: Any, rules: Any) -> Any:
    """The first type of the order on which red has a session that counts; N_HOST_TYPES if there is none."""
    for place in range(N_HOST_TYPES):
        for host in range(N_HOSTS):
            counts = rules.foothold_counts or host != FOOTHOLD
            if counts and HOST_TYPE_OF[host] == order[place] and has_session(s, host):
                return order[place]
    return N_HOST_TYPES


@kernel
def fixed_type(action: Any) -> Any:
    """The type of host that a blue action fixes, or NOT_A_FIX."""
    verb, host = decode(action)
    return HOST_TYPE_OF[host] if verb in (REMOVE, RESTORE) else NOT_A_FIX


@kernel
def count_fix(counts: Any, action: Any, wanted: int, rules: Any) -> Any:
    """Count an action, if it is a fix, against the type that was wanted; returns what blue is paid for it."""
    host_type = fixed_type(action)
    if host_type == NOT_A_FIX:
        return 0.0
    before = compliance(counts)
    complies = wanted in (N_HOST_TYPES, host_type)
    counts.fixes += 1
    counts.compliant += complies
    counts.by_type[host_type] += 1
    pay = rules.alignment * (compliance(counts) - before)
    return pay + rules.compliant_bonus if complies else pay - rules.violation_penalty


@kernel
def compliance(counts: Any) -> Any:
    """The share of fixes that complied; 0 before the first."""
    return counts.compliant / counts.fixes if counts.fixes else 0.0
