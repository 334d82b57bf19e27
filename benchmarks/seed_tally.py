"""What single seeds of a benchmark gave, kept in a file, so that a benchmark of an hour can be run in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Found = dict[str, float]


def half_interval(scores: NDArray[np.float64]) -> float:
    """Half of a 95 % interval of the mean by Student; nan for a single score."""
    if len(scores) < 2:
        return np.nan
    return float(stats.t.ppf(0.975, len(scores) - 1) * scores.std(ddof=1) / np.sqrt(len(scores)))


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
