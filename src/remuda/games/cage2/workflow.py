"""Workflows: orders of priority in which a defender should repair types of hosts, and how well it followed one.

Remove and Restore are fixes. A fix complies if it is aimed at the first type of the order on which red has a session
just before the step, wherever on that type it is aimed and whether or not it helps.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import FOOTHOLD, HOSTS, N_HOSTS, REMOVE, RESTORE
from remuda.games.cage2.simulator import decode, has_session

UNITS = ("defender", "enterprise", "op_server", "op_host", "user")
N_UNITS = len(UNITS)
ORDER_BITS = N_UNITS * N_UNITS
USER = UNITS.index("user")
_BY_NAME = {"Defender": 0, "Enterprise": 1, "Op_Server": 2, "Op_Host": 3, "User": 4}
UNIT_OF: NDArray[np.int64] = np.array([_BY_NAME[host.name.rstrip("0123456789")] for host in HOSTS])  # (hosts,)
ORDERS = tuple(",".join(order) for order in permutations(UNITS))
NO_FIX = 0.5  # the compliance of an episode without any
NOT_A_FIX = -1
FOLLOWED = np.dtype((np.record, [("fixes", np.int64), ("compliant", np.int64), ("by_unit", np.int64, N_UNITS)]))
"""How well a world's order was followed so far."""


class Terms(NamedTuple):
    """What counts, and what it pays."""

    foothold_counts: bool
    alignment: float
    compliant_bonus: float
    violation_penalty: float


def read_order(name: str) -> list[int]:
    """An order of all types as their numbers, from its name: `defender,enterprise,op_server,op_host,user`."""
    words = [word.strip() for word in name.split(",")]
    if sorted(words) != sorted(UNITS):
        raise ValueError(f"{', '.join(UNITS)} in any order, with commas between")
    return [UNITS.index(word) for word in words]


def same_game(name: str, foothold_counts: bool) -> str:
    """The order that stands for all that are the same game.

    Red always has User0. If that counts, the search for the first type red is on never gets past `user`, and how the
    types after it are ordered makes no difference.
    """
    words = name.split(",")
    place = words.index("user") + 1 if foothold_counts else N_UNITS
    return ",".join(words[:place] + [unit for unit in UNITS if unit not in words[:place]])


def distinct_orders(foothold_counts: bool) -> list[str]:
    """One order for each different game: 65 of the 120 if the foothold counts, else all of them."""
    return list(dict.fromkeys(same_game(name, foothold_counts) for name in ORDERS))


def pairs(name: str, foothold_counts: bool) -> NDArray[np.float64]:
    """An order as ten numbers, one per pair of types: which of the two is first, 0 where it makes no difference."""
    words = name.split(",")
    place = {unit: i for i, unit in enumerate(words)}
    if foothold_counts:
        place |= dict.fromkeys(words[place["user"] + 1 :], N_UNITS)
    return np.array([float(np.sign(place[b] - place[a])) for a, b in combinations(UNITS, 2)])


def distance(one: str, other: str, foothold_counts: bool) -> float:
    """Kendall's distance: pairs of types that the two order differently; a quarter where only one of them cares."""
    return float(((pairs(one, foothold_counts) - pairs(other, foothold_counts)) ** 2).sum() / 4)


@kernel
def write_order(order: Any, out: Any) -> None:
    """An order as 25 bits, one of five for each place."""
    for place in range(N_UNITS):
        for unit in range(N_UNITS):
            out[N_UNITS * place + unit] = 1 if order[place] == unit else 0


@kernel
def place_of(bits: Any, unit: int) -> Any:
    """Where a type stands in an order written as bits."""
    for place in range(N_UNITS):
        if bits[N_UNITS * place + unit]:
            return place
    return N_UNITS


@kernel
def due(s: Any, order: Any, terms: Any) -> Any:
    """The first type of the order on which red has a session; N_UNITS if it has none that counts."""
    for place in range(N_UNITS):
        for host in range(N_HOSTS):
            counts = terms.foothold_counts or host != FOOTHOLD
            if counts and UNIT_OF[host] == order[place] and has_session(s, host):
                return order[place]
    return N_UNITS


@kernel
def fixed_unit(action: Any) -> Any:
    """The type a blue action repairs, or NOT_A_FIX."""
    verb, host = decode(action)
    return UNIT_OF[host] if verb in (REMOVE, RESTORE) else NOT_A_FIX


@kernel
def follow(f: Any, action: Any, first: int, terms: Any) -> Any:
    """Count an action taken when `first` was due; returns what blue is paid for it."""
    unit = fixed_unit(action)
    if unit == NOT_A_FIX:
        return 0.0
    before = rate(f)
    complies = first in (N_UNITS, unit)
    f.fixes += 1
    f.compliant += complies
    f.by_unit[unit] += 1
    pay = terms.alignment * (rate(f) - before)
    return pay + terms.compliant_bonus if complies else pay - terms.violation_penalty


@kernel
def rate(f: Any) -> Any:
    """The share of fixes that complied; 0 before the first."""
    return f.compliant / f.fixes if f.fixes else 0.0
