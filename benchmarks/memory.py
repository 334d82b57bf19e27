"""Memory: 50 agents in 64 worlds with default settings, peak of the whole process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import machine

LIMIT_GIB = 4.0


def main() -> None:
    """Train five rounds (its memories hold four) in a process of its own and print its peak."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "remuda", "train", "treasurehunt", "--agents", "50", "--worlds", "64"),
            *("--epochs", "5", "--json", "--out", str(Path(folder) / "run"), "updates_per_episode=0.015625"),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peak = json.loads(done.stdout)["peak_memory_bytes"] / 2**30
    print(f"\nMemory of 50 agents in 64 worlds, default settings\n  {machine()}")
    print(f"  peak {peak:.2f} GiB (wanted under {LIMIT_GIB} GiB)")
