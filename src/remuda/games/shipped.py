"""The games that come with remuda or with an installed package, by name, without importing any of them.

Importing a game imports numba, which takes a second or more; the command line lists games without that.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

ENTRY_POINTS = "remuda.games"
"""The group of entry points by which an installed package offers games."""


class ShippedGame(NamedTuple):
    """A game that comes with remuda: the module that has its `ENTRY`, and one sentence about it."""

    module: str
    summary: str
    verifier: str | None = None
    """`module:function` that compares recorded games of the original with ours, for `remuda verify`."""


SHIPPED: dict[str, ShippedGame] = {
    "treasurehunt": ShippedGame(
        "remuda.games.treasurehunt", "agents forage in a walled field: gems +10, food +5, bones -10, walls -1"
    ),
    "coins": ShippedGame(
        "remuda.games.coins",
        "two agents collect coins: any coin +1, but one of the other's colour costs the other 2",
        "remuda.games.social_verify:verify_coins",
    ),
    "harvest": ShippedGame(
        "remuda.games.harvest",
        "apples grow next to apples: who eats the last one ends it for all (open or closed map)",
        "remuda.games.social_verify:verify_harvest",
    ),
    "cleanup": ShippedGame(
        "remuda.games.cleanup",
        "apples grow only while somebody cleans the river, which pays nothing",
        "remuda.games.social_verify:verify_cleanup",
    ),
    "stag_hunt": ShippedGame(
        "remuda.games.stag_hunt", "agents collect stags or hares, then meet: a stag pays 4 if both have it, a hare 2"
    ),
    "matrix": ShippedGame(
        "remuda.games.matrix", "agents collect two kinds, then meet and play a matrix game, e.g. prisoner's dilemma"
    ),
    "tag": ShippedGame("remuda.games.tag", "one agent is it, the others are paid; it tags who is next to it"),
    "cage2": ShippedGame(
        "remuda.games.cage2",
        "CAGE Challenge 2: defend a network of 13 hosts against scripted intruders",
        "remuda.games.cage2.verify:verify",
    ),
}


@cache
def installed_games() -> dict[str, EntryPoint]:
    """Games of installed packages, by the names of their entry points."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
