"""Kernels: one decorator for all compiled code, and a compile cache that notices every edit.

A kernel is plain Python over arrays. numba compiles it, and the compiled code runs without the GIL. With
`NUMBA_DISABLE_JIT=1` the same source runs under a debugger.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = Path(__file__).parent.parent
_log = logging.getLogger("remuda")


@overload
def kernel(function: F) -> F: ...


@overload
def kernel(*, arithmetic: bool = ..., inline: bool = ..., allocates: bool = ...) -> Callable[[F], F]: ...


def kernel(
    function: F | None = None, *, arithmetic: bool = False, inline: bool = False, allocates: bool = True
) -> F | Callable[[F], F]:
    """Compile a function on first use, releasing the GIL while it runs.

    `arithmetic=True` is for loops over many numbers: a product and a sum may be rounded once instead of twice (FMA),
    and a division by zero gives inf or nan instead of raising. Both let loops use vector instructions. The order of
    sums stays as written.

    `inline=True` is for a function that a loop calls with a tuple of many arrays: a call copies some nine words per
    array, which takes longer than a short function does. The caller takes longer to compile.

    `allocates=False` is for a function that makes no array; a slice is none, but `a[i] = b` between arrays may make
    one. numba then counts no references. Elsewhere it counts one, atomically, for every slice, and for every array of
    a tuple that is handed on: Coins played 1.64 times as fast without (`python -m benchmarks social`, 2026-11-18).
    numba refuses to compile a function that makes an array itself; those that it calls are not looked at.
    """
    if function is None:
        return partial(_compile, arithmetic=arithmetic, inline=inline, allocates=allocates)
    return _compile(function, arithmetic, inline, allocates)


def _compile(function: F, arithmetic: bool, inline: bool, allocates: bool) -> F:
    if numba.config.DISABLE_JIT:
        # rng.py relies on integers that wrap around. Machine code does that silently; numpy would warn.
        return np.errstate(over="ignore")(function)
    settings: dict[str, Any] = {"nogil": True, "forceinline": inline, "_nrt": allocates}
    if arithmetic:
        settings |= {"fastmath": {"contract"}, "error_model": "numpy"}
    source = source_file(function)
    folder = None if source is None else cache_directory(source.parent)
    if folder is None or function.__module__ not in sys.modules:  # numba imports the module to read its cache
        return cast(F, numba.njit(**settings)(function))
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        return cast(F, numba.njit(cache=True, **settings)(function))
    finally:
        numba.config.CACHE_DIR = previous


@contextmanager
def uncompiled() -> Iterator[list[Exception]]:
    """Run every kernel as plain Python in this block: slow, but indices are checked, and errors have a line.

    It holds for all threads of the process. The list gets what kernels raise.
    """
    raised: list[Exception] = []

    def call(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return dispatcher.py_func(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise

    # numba's own class has no __call__ in Python: it inherits one of C, which counts again once ours is deleted.
    dispatchers: Any = Dispatcher
    dispatchers.__call__ = call
    try:
        with np.errstate(over="ignore"):  # as in `_compile`
            yield raised
    finally:
        del dispatchers.__call__


def source_file(thing: Any) -> Path | None:
    """The file that defines a function or class; None for one of a notebook cell or of `python -c`."""
    try:
        path = Path(inspect.getfile(thing))
    except (TypeError, OSError):
        return None
    return path if path.is_file() else None


@cache
def cache_directory(folder: Path) -> Path | None:
    """The directory for compiled code of `folder`, named after a hash of all sources that may be inlined in it.

    numba's own cache checks only the file that defines a kernel. Kernels imported from other files are inlined, so
    numba would not notice an edit there. The hash covers every file with kernels, in remuda and in `folder`.
    None where nothing can be written: then compiled code lives as long as the process.
    """
    base = cache_base()
    return None if base is None else base / sources_hash(folder)


@cache
def cache_base() -> Path | None:
    """The first directory that can be written: the user's cache, else a private one among temporary files."""
    try:
        root = os.environ.get("XDG_CACHE_HOME")
        own = (Path(root) if root else Path.home() / ".cache") / "remuda"
        own.mkdir(parents=True, exist_ok=True)
        if os.access(own, os.W_OK | os.X_OK):
            return own
    except (OSError, RuntimeError):  # no home, or a path that is no directory
        pass
    private = Path(tempfile.gettempdir()) / f"remuda-{os.geteuid()}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        status = private.lstat()
        # Compiled code is loaded from here, so nobody else may have made or may write it.
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            _log.warning("the cache directory cannot be written: compiled code is kept in %s", private)
            return private
    except OSError:
        pass
    _log.warning("no cache directory can be written: everything is compiled again at every start")
    return None


def sources_hash(folder: Path) -> str:
    """A hash of every Python source with kernels, in remuda and in `folder`, and of how numba compiles them."""
    settings = (numba.__version__, numba.config.BOUNDSCHECK, numba.config.OPT)  # other code may sum in another order
    digest = hashlib.sha256(repr(settings).encode())
    for path in sorted({*_PACKAGE.rglob("*.py"), *folder.glob("*.py")}):
        source = path.read_bytes()
        if b"@kernel" in source:
            digest.update(str(path).encode() + source)
    return digest.hexdigest()[:16]


def is_cached(source: Path | None) -> bool:
    """Whether the kernels of this file, as it is now, are in the cache; True if it has none, or there is no file."""
    if source is None or b"@kernel" not in source.read_bytes():
        return True
    folder = cache_directory(source.parent)
    found = folder is not None and any(folder.glob(f"{source.parent.name}_*/{source.stem}.*.nbi"))
    return bool(numba.config.DISABLE_JIT) or found
