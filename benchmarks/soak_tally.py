"""What a soak test has done and found so far, in a file from which a later part goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


class Tally:
    """Counts, problems and measurements; written to its file after every run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self.counts: Counter[str] = Counter(known.get("counts", {}))
        self.problems: list[str] = known.get("problems", [])
        self.references: dict[str, dict[str, Any]] = known.get("references", {})
        self.memory: list[list[Any]] = known.get("memory", [])
        self.parts: list[dict[str, int]] = known.get("parts", [])

    def problem(self, text: str) -> None:
        """Something that should not have been."""
        self.counts["problems"] += 1
        self.problems.append(text[:600])

    def write(self) -> None:
        """Replace the file."""
        draft = self.path.with_suffix(".draft")
        content = {
            "counts": dict(sorted(self.counts.items())),
            "problems": self.problems,
            "references": self.references,
            "memory": self.memory,
            "parts": self.parts,
        }
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(self.path)

    def print(self) -> None:
        """Everything so far."""
        for number, part in enumerate(self.parts, 1):
            print(f"  part {number}: {part['seconds']:,} s, {part['faults']:,} faults, {part['runs']} runs")
        for name, count in sorted(self.counts.items()):
            print(f"  {name}: {count:,}")
        for name, seconds, first, last, files_first, files_last in self.memory:
            print(
                f"  memory, {name}: {first / 2**20:.0f} to {last / 2**20:.0f} MiB ({last / first - 1:+.1%}) in "
                f"{seconds} s, descriptors {files_first:.0f} to {files_last:.0f}"
            )
        for text in self.problems:
            print(f"  - {text}")
