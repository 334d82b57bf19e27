"""This machine: the cores a process may use, processor and library versions, and the tree of processes."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from remuda.core.capabilities import has_proc

QUOTAS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Files with a container's CPU quota and period, for control groups version 2 and version 1."""


SOCKET_PATH = 103 if sys.platform == "darwin" else 107
"""Bytes that the path of a Unix socket may have."""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Where temporary files may be if the usual folder has too long a name for sockets in it."""
MAX_FOREIGN, MAX_STOLEN = 0.10, 0.03
"""Shares of a machine's time that others may use before a measurement says so."""


def cores() -> int:
    """Cores this process may use: the smaller of its affinity and its control group's quota."""
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
    """The processor, how many cores of it, and the library versions that results depend on."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    # From the installed metadata: importing torch and numba for their versions would take seconds.
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numba", "numpy"))
    return f"{model}, {cores()} cores; Python {platform.python_version()}, {versions}"


def folder_for_sockets(name: str) -> str | None:
    """A folder for temporary files in which a socket of such a name can be made: clusters have long scratch folders.

    None: the usual folder will do, or no other does.
    """
    longest = SOCKET_PATH - len(name)
    if len(os.fsencode(tempfile.gettempdir())) <= longest:
        return None
    fitting = (folder for folder in SHORT_FOLDERS if len(folder) <= longest and os.access(folder, os.W_OK | os.X_OK))
    return next(fitting, None)


@dataclass(frozen=True)
class CpuClock:
    """Processor seconds of this machine so far: in all, not idle, taken by other guests of the host, and ours."""

    total: float
    busy: float
    stolen: float
    own: float

    @classmethod
    def now(cls) -> CpuClock:
        """Read the kernel's counters; all zero where there are none."""
        try:
            words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
            user, nice, system, idle, waiting, irq, soft, stolen = (int(word) for word in words)
        except (OSError, ValueError, IndexError):
            return cls(0.0, 0.0, 0.0, 0.0)
        tick = os.sysconf("SC_CLK_TCK")
        busy = user + nice + system + irq + soft
        return cls((busy + idle + waiting + stolen) / tick, busy / tick, stolen / tick, tree_cpu_s(os.getpid()))

    def disturbance_since(self, before: CpuClock) -> str:
        """A sentence if other programs or other guests took much of the machine since then; else nothing."""
        total = self.total - before.total
        if total <= 0:
            return ""
        foreign = max(0.0, self.busy - before.busy - (self.own - before.own)) / total
        stolen = (self.stolen - before.stolen) / total
        words = [f"other programs used {foreign:.0%} of its time"] if foreign > MAX_FOREIGN else []
        words += [f"the host took {stolen:.0%} away (steal)"] if stolen > MAX_STOLEN else []
        return f"this machine was busy: {' and '.join(words)}" if words else ""


def process_tree(pid: int) -> Iterator[int]:
    """A process and all its descendants that run now."""
    yield pid
    if not has_proc():
        import psutil

        with suppress(psutil.Error):
            yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        return
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in children.read_text().split():
                yield from process_tree(int(child))


def tree_bytes(pid: int) -> int:
    """Memory of a process and its descendants; pages that several of them share are counted once (PSS).

    Without /proc shared pages are counted in each process: the sum is too large then.
    """
    if not has_proc():
        return int(_sum_with_psutil(pid, lambda process: float(process.memory_info().rss)))
    total = 0
    for process in process_tree(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of a process and its descendants, including children that have ended."""
    if not has_proc():
        return _sum_with_psutil(pid, lambda process: float(sum(process.cpu_times()[:4])))
    ticks = 0
    for process in process_tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _sum_with_psutil(pid: int, value: Callable[[Any], float]) -> float:
    """The sum of a value over a process and its descendants; those that end meanwhile count as zero."""
    import psutil

    total = 0.0
    for number in process_tree(pid):
        with suppress(psutil.Error):
            total += value(psutil.Process(number))
    return total
