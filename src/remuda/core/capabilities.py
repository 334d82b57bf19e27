"""What this system can do beyond POSIX. Where it cannot, or if PORTABLE is set, portable ways are used instead.

The choice is by capability, never by the name of a platform. `REMUDA_PORTABLE=1` forces all portable ways, so that they
are tested on Linux too.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from pathlib import Path

PORTABLE = "REMUDA_PORTABLE"
"""The environment variable that forces portable ways; worker processes inherit it."""


def portable_only() -> bool:
    """Whether the user forces portable ways."""
    return os.environ.get(PORTABLE, "") not in ("", "0")


def has_memfd() -> bool:
    """Whether shared memory without a name can be made in one call; else it has a name for a moment (`shm_open`)."""
    return hasattr(os, "memfd_create") and not portable_only()


def has_shared_memory() -> bool:
    """Whether there is shared memory that can be passed on as a descriptor, in either way."""
    try:
        import _posixshmem  # noqa: F401
    except ImportError:  # Windows
        return False
    return True


def has_fork_server() -> bool:
    """Whether workers can be forked from a server that has imported everything; else each imports it (`spawn`)."""
    return "forkserver" in multiprocessing.get_all_start_methods() and not portable_only()


def has_parent_death_signal() -> bool:
    """Whether the kernel can kill a process when its parent dies (prctl); else a thread watches the parent."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "prctl") and not portable_only()


def has_proc() -> bool:
    """Whether the kernel lists processes as files; else psutil asks for them."""
    return Path("/proc/self/smaps_rollup").exists() and not portable_only()
