"""Threads: how many cores there really are, and one thread per core for everybody."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


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
