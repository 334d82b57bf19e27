"""The games that come with remuda, as a table that can be read without importing any of them.

Importing a game imports numba, which takes a second or more; the command line lists games without that.
"""

from __future__ import annotations

from typing import NamedTuple


class ShippedGame(NamedTuple):
    """A game that comes with remuda: the module that has its `ENTRY`, and one sentence about it."""

    module: str
    summary: str


SHIPPED: dict[str, ShippedGame] = {
    "treasurehunt": ShippedGame(
        "remuda.games.treasurehunt", "agents forage in a walled field: gems +10, food +5, bones -10, walls -1"
    ),
    "cage2": ShippedGame(
        "remuda.games.cage2", "CAGE Challenge 2: defend a network of 13 hosts against scripted intruders"
    ),
}
