"""Tournaments of eight herds and a scripted player in two games, and that the order of the entrants changes nothing.

Herds of two lengths of training, four seeds each, from `benchmarks/studies/tournament_*.yaml`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.harness import machine
from remuda import study, tournament
from remuda.studies.tournament.page import write_tournament

FILES = sorted((Path(__file__).parent / "studies").glob("tournament_*.yaml"))
EPISODES = 60


def main(out: Path | None = None) -> None:
    """Train the herds, let them meet in two orders, and print the ranking; `out` keeps the pages."""
    print(f"\nTournaments, {EPISODES} episodes a pair\n  {machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        for file in FILES:
            done = study(file, out=folder / file.stem, quiet=True)
            runs = [str(run.path) for own in done.runs().values() for run in own]
            found = tournament(*runs, "random", episodes=EPISODES)
            turned = tournament("random", *reversed(runs), episodes=EPISODES)
            assert found.result() == turned.result(), "the order of the entrants changed something"
            write_tournament(found, folder / f"{file.stem}-page")
            print(f"\n{found}\n  the same in the reverse order", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
