"""Recorded games of the originals, replayed through our rules: how many steps, and how many differ in any field.

The recordings in the repository are a part of those that were made; CAGE2_TRACES names a folder of more.
"""

from __future__ import annotations

import os
from pathlib import Path

from remuda.games.registry import SHIPPED, find_verifier

DATA = Path(__file__).parents[1] / "tests" / "data"
FOLDERS = {"cage2": DATA / "cage2", "coins": DATA / "social", "harvest": DATA / "social", "cleanup": DATA / "social"}


def main() -> None:
    """Print a line per game."""
    for game in SHIPPED:
        if game in FOLDERS:
            print(f"  {game}: {_replayed(game, FOLDERS[game])}")
    if more := os.environ.get("CAGE2_TRACES"):
        print(f"  cage2, all recordings that were made (CAGE2_TRACES): {_replayed('cage2', Path(more))}")


def _replayed(game: str, folder: Path) -> str:
    return str(find_verifier(game)(folder)).splitlines()[0]
