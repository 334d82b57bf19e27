"""Errors of the disk, in a sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remuda.core.errors import StorageError


def absolute(path: Path | str) -> Path:
    """The path, whatever directory a game changes to later."""
    try:
        return Path(path).absolute()
    except OSError:  # the working directory was removed
        return Path(path)


def shown(path: Path, here: Path | None = None) -> str:
    """The path as one would type it in `here`, by default the working directory: relative if it is below."""
    here = here or absolute(".")
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def storage_reason(error: Exception) -> str:
    """Why the disk refused, in a few words."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return "the disk is full" if full or "No space left" in str(error) else str(error)


def error_reason(error: Exception) -> str:
    """What the system says about a path, in a few words."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system into a StorageError that names the folder."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{folder} could not be written ({storage_reason(error)})") from error
