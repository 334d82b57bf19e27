"""Soak test: hours of training with faults, in parts; is every episode learned once, and is nothing left behind?

    SOAK_S=10800 SOAK_FOLDER=soak python -m benchmarks soak

A part takes SOAK_S seconds and is over by then. In it, one run after another is trained to its end, however often
that takes: `remuda train`, then `remuda resume` with another engine each time. Meanwhile the hook of the chaos tests
kills, stops, slows down, exits or raises in any process; the first process gets signals; its disk is filled and freed
(where a small one can be mounted); its clock jumps; its output is not read; its tables are damaged between two starts;
and other processes read the run, the board among them. Everything is added to `tally.json` in SOAK_FOLDER after every
run, and a later part goes on from there.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import machine
from benchmarks.soak_readers import board_of
from benchmarks.soak_run import FAULTS_S, SoakRun
from benchmarks.soak_tally import Tally
from remuda.core.machine import CpuClock

SOAK_S = float(os.environ.get("SOAK_S", "10800"))
FOLDER = Path(os.environ.get("SOAK_FOLDER", "soak"))
DISK_MIB = 96


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own that can be filled without harm; a plain folder where nothing can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "soak", str(disk)], capture_output=True, check=False
    ).returncode
    try:
        yield disk
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)


def main() -> None:
    """One part, and the table of everything so far."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that nothing is left when it is stopped
    tally = Tally(FOLDER / "tally.json")
    began, clock = time.monotonic(), CpuClock.now()
    part = {"seconds": 0, "faults": -tally.counts["faults landed"], "runs": 0}
    tally.parts.append(part)
    earlier = -part["faults"]
    try:
        with board_of(FOLDER) as board:
            while time.monotonic() < began + SOAK_S - 2 * FAULTS_S or not part["runs"]:
                with tempfile.TemporaryDirectory(prefix="run-", dir=FOLDER, ignore_cleanup_errors=True) as name:
                    folder = Path(name).absolute()
                    with small_disk(folder) as disk:
                        SoakRun(folder, disk, tally, random.Random(), began + SOAK_S, board).run()
                part["runs"] += 1
                _keep(tally, part, began, earlier)
    finally:
        _keep(tally, part, began, earlier)
        print(f"\nSoak, {sum(one['seconds'] for one in tally.parts):,} s in all\n  {machine()}")
        if disturbed := CpuClock.now().disturbance_since(clock):
            print(f"  {disturbed}")
        tally.print()


def _keep(tally: Tally, part: dict[str, int], began: float, earlier: int) -> None:
    part["seconds"] = round(time.monotonic() - began)
    part["faults"] = tally.counts["faults landed"] - earlier
    tally.write()


if __name__ == "__main__":
    main()
