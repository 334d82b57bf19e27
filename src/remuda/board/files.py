"""Reading files under one folder and nowhere else: no link is followed, and only regular files are opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO


class NotInside(OSError):
    """A path that leads out of the folder, or to something that is not a plain file or directory."""


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a relative path; refuses absolute paths, `..` and NUL."""
    if "\0" in name or "\\" in name or name.startswith("/"):
        raise NotInside(f"{name!r} is not a path inside the folder")
    parts = PurePosixPath(name).parts
    if ".." in parts:
        raise NotInside(f"{name!r} is not a path inside the folder")
    return parts


@contextmanager
def directory(root: Path, name: str) -> Iterator[int]:
    """A file descriptor of a directory under `root`; every step on the way must be a directory and not a link."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts_of(name):
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened(root: Path, folder: str, file: str) -> Iterator[BinaryIO]:
    """A regular file in a directory under `root`."""
    *above, last = parts_of(file)
    with directory(root, "/".join((folder, *above))) as descriptor:
        # A pipe would block without O_NONBLOCK.
        found = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
    with os.fdopen(found, "rb") as stream:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise NotInside(f"{file!r} is not a regular file")
        yield stream


def read(root: Path, folder: str, file: str, max_bytes: int) -> bytes:
    """The first `most` bytes of a file; nothing where there is none."""
    with suppress(OSError), opened(root, folder, file) as stream:
        return stream.read(max_bytes)
    return b""


def read_tail(root: Path, folder: str, file: str, max_bytes: int) -> tuple[bytes, bytes]:
    """The first line of a file, and its last whole lines, about `most` bytes."""
    with suppress(OSError), opened(root, folder, file) as stream:
        head = stream.readline(1 << 16)
        size = os.fstat(stream.fileno()).st_size
        start = max(len(head), size - max_bytes)
        stream.seek(start)
        tail = stream.read(max_bytes)
        if start > len(head):
            tail = tail[tail.find(b"\n") + 1 :]
        return head, tail[: tail.rfind(b"\n") + 1]
    return b"", b""


def names(root: Path, folder: str) -> list[str]:
    """What a directory holds; nothing where there is none."""
    with suppress(OSError), directory(root, folder) as descriptor:
        return sorted(entry.name for entry in os.scandir(descriptor))
    return []


def stamp(root: Path, folder: str, files: tuple[str, ...]) -> list[tuple[int, int]]:
    """Size and time of change of each file; what is not there has (0, 0)."""
    found: list[tuple[int, int]] = []
    try:
        with directory(root, folder) as descriptor:
            for file in files:
                try:
                    state = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
                    found.append((state.st_size, state.st_mtime_ns))
                except OSError:
                    found.append((0, 0))
    except OSError:
        return [(0, 0)] * len(files)
    return found
