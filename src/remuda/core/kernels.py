"""Compiling: one decorator for all compiled code, and a cache that notices every edit.

A kernel is plain Python over arrays. numba compiles it without the GIL; with `NUMBA_DISABLE_JIT=1`
the same source runs under a debugger.
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
        # Counter-based randomness wraps around on purpose; numpy would warn where machine code does not.
        return np.errstate(over="ignore")(function)
    source = source_file(function)
    if source is None:  # numba refuses to cache what is in no file
        return cast(F, numba.njit(nogil=True)(function))
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_directory(source.parent))
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    finally:
        numba.config.CACHE_DIR = previous


def source_file(thing: Any) -> Path | None:
    """The file that defines a function or class; None for one of a notebook cell or of `python -c`."""
    try:
        path = Path(inspect.getfile(thing))
    except (TypeError, OSError):
        return None
    return path if path.is_file() else None


@cache
def cache_directory(folder: Path) -> Path:
    """Where compiled code of `folder` is kept: a directory named after all the sources it may contain.

    numba looks at the defining file only and inlines the rest, so an edit to an imported kit would go
    unnoticed; hence the hash over every file that has kernels, ours and those beside the caller's.
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


def is_cached(source: Path | None) -> bool:
    """Whether kernels of this file, as it is now, were compiled before, or there are none or no file."""
    if source is None or b"@kernel" not in source.read_bytes():
        return True
    found = cache_directory(source.parent).glob(f"{source.parent.name}_*/{source.stem}.*.nbi")
    return bool(numba.config.DISABLE_JIT) or any(found)
