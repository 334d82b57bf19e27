"""This machine: how many cores there really are, its processor and versions, and the process tree."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np
import torch

QUOTAS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Where a container sees its quota and its period, in either version of control groups."""


def cores() -> int:
    """Cores this process may really use: affinity, and the control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in QUOTAS:
        try:
            quota, period = " ".join(Path(file).read_text() for file in files).split()
            if quota not in ("max", "-1"):
                count = min(count, max(1, int(quota) // int(period)))
        except (OSError, ValueError):
            pass
    return count


def machine() -> str:
    """The processor, how many cores of it, and the versions that matter."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, numba {numba.__version__}"
    return f"{model}, {cores()} cores; {versions}, numpy {np.__version__}"


def family(pid: int) -> Iterator[int]:
    """A process, whom it has started, whom they have, and so on."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            for child in children.read_text().split():
                yield from family(int(child))


def tree_bytes(pid: int) -> int:
    """Memory of a process and all it has started; what several of them share is counted once."""
    total = 0
    for one in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of a process and all it has started, those who have ended included."""
    ticks = 0
    for one in family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")
