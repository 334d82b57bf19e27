"""How many threads torch uses, so that the threads of all processes together do not exceed the cores."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Limit torch to one thread per calling thread, because the engine's own threads and processes share the cores.

    (Measured elsewhere: two torch threads per process on a busy two-core machine made one update 10 to
    80 times slower.)

    Its other settings are those of a fresh process meanwhile, as workers have them: a notebook may have chosen another
    default type or switched gradients off.
    """
    import torch

    with _limit.lock:
        if not _limit.users:
            _limit.before = torch.get_num_threads()
            _limit.dtype_before = torch.get_default_dtype()
        _limit.users += 1
        torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        with _limit.lock:
            _limit.users -= 1
            if not _limit.users:
                torch.set_num_threads(_limit.before)
                torch.set_default_dtype(_limit.dtype_before)


def restore_torch() -> None:
    """Undo what a game did to torch's settings: inside `one_thread_each` they are those of a fresh process."""
    import torch

    if not _limit.users:
        return
    if torch.get_default_dtype() != torch.float32:
        torch.set_default_dtype(torch.float32)
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


class _Limit:
    """Several threads may train at once: the first notes torch's number of threads, the last one restores it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before = 1
        self.dtype_before: Any = None


_limit = _Limit()


def thread_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool of threads in which torch uses one thread per calling thread.

    Each thread has to set this itself: `torch.set_num_threads` in another thread takes effect here only after the first
    matrix products, which then have other bits and use a second core.
    """
    import torch

    return ThreadPoolExecutor(threads, name, initializer=torch.set_num_threads, initargs=(1,))


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for the next allocations of this process instead of returning it to the system.

    Every gradient allocates and frees the same megabytes. Memory that was returned comes back as pages that the kernel
    clears one by one: 5,000 page faults and a quarter of the processor time of a gradient of the preset `workflow_rl`.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # a C library other than glibc
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest value glibc accepts
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
