"""What single seeds of a benchmark gave, kept in a file, so that a benchmark of an hour can be run in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

Found = dict[str, float]


class SeedTally:
    """Results by name and seed; with a file, a later call continues it."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, dict[str, Found]] = {}  # by name, then seed
        if path is not None and path.exists():
            self.found = json.loads(path.read_text("utf-8"))

    def measure(self, name: str, seed: int, run: Callable[[], Found]) -> None:
        """Run a seed, unless its result is known."""
        seeds = self.found.setdefault(name, {})
        if str(seed) in seeds:
            return
        seeds[str(seed)] = run()
        print(f"{name}, seed {seed}: {seeds[str(seed)]}", file=sys.stderr, flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.found, indent=1), "utf-8")

    def of(self, name: str) -> list[Found]:
        """All seeds of a name, in their order."""
        return [own for _, own in sorted(self.found.get(name, {}).items(), key=lambda item: int(item[0]))]
