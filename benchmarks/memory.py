"""Memory: the peak of a process with 50 agents in 64 worlds and default settings."""

from __future__ import annotations

import tempfile

from benchmarks.harness import machine, remuda

LIMIT_GIB = 4.0


def main() -> None:
    """Train five rounds (the replay buffers hold four) in its own process and print the peak."""
    words = ("--agents", "50", "--worlds", "64", "--epochs", "5", "updates_per_episode=0.015625", "pictures=false")
    with tempfile.TemporaryDirectory() as folder:
        result = remuda("train", "treasurehunt", *words, "--out", f"{folder}/run")
    peak = result["peak_memory_bytes"] / 2**30
    print(f"\nMemory of 50 agents in 64 worlds, default settings\n  {machine()}")
    print(f"  peak {peak:.2f} GiB (wanted under {LIMIT_GIB} GiB)")
