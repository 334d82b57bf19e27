"""Kernels: one decorator for all compiled code, and a compile cache that notices every edit.

A kernel is plain Python over arrays. numba compiles it, and the compiled code runs without the GIL. With
`NUMBA_DISABLE_JIT=1` the same source runs under a debugger.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = Path(__file__).parent.parent


def kernel(function: F) -> F:
    """Compile `function` on first use, releasing the GIL while it runs."""
    if numba.config.DISABLE_JIT:
        # rng.py relies on integers that wrap around. Machine code does that silently; numpy would warn.
        return np.errstate(over="ignore")(function)
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_directory(Path(inspect.getfile(function)).parent))
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    finally:
        numba.config.CACHE_DIR = previous


@cache
def cache_directory(folder: Path) -> Path:
    """The directory for compiled code of `folder`, named after a hash of all sources that may be inlined in it.

    numba's own cache checks only the file that defines a kernel. Kernels imported from other files are inlined, so
    numba would not notice an edit there. The hash covers every file with kernels, in remuda and in `folder`.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root else Path.home() / ".cache"
    return base / "remuda" / sources_hash(folder)


def sources_hash(folder: Path) -> str:
    """A hash of every Python source with kernels, in remuda and in `folder`."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted({*_PACKAGE.rglob("*.py"), *folder.glob("*.py")}):
        source = path.read_bytes()
        if b"@kernel" in source:
            digest.update(str(path).encode() + source)
    return digest.hexdigest()[:16]


def is_cached(source: Path) -> bool:
    """Whether the kernels of this file, as it is now, are in the cache; True if it has none."""
    if b"@kernel" not in source.read_bytes():
        return True
    found = cache_directory(source.parent).glob(f"{source.parent.name}_*/{source.stem}.*.nbi")
    return bool(numba.config.DISABLE_JIT) or any(found)
