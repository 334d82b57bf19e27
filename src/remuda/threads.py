"""Threads: how many cores there really are, and one thread per core for everybody."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

QUOTAS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Where a container sees its quota and its period, in either version of control groups."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


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


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let torch use one thread per caller: the engine's own threads share the cores.

    (Measured elsewhere: two torch threads per process on a busy two-core machine made one update 10 to
    80 times slower.)
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Threads in which torch itself uses no more threads.

    `torch.set_num_threads` elsewhere reaches a new thread only after its first products, which then have
    other bits and take another core.
    """
    return ThreadPoolExecutor(threads, name, initializer=torch.set_num_threads, initargs=(1,))


def keep_freed_memory() -> None:
    """Let this process use the memory of its last products for the next ones, instead of returning it in between.

    Every gradient takes and frees the same megabytes. Returned to the system they come back as pages to be cleared
    one by one: 5,000 page faults and a quarter of the processor time of a gradient of the preset `workflow_rl`.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library than glibc
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most it takes
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
