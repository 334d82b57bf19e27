"""Shared memory without a name: it is passed on as a file descriptor, and freed with the last process that maps it.

There is nothing to unlink and nothing that a killed process could leave in /dev/shm. Who closes what: the process that
made a block keeps its descriptor, to pass it to workers that start later, and closes it when it is done. A process
that receives a descriptor maps the memory and closes the descriptor at once: the mapping keeps the memory alive.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from remuda.core.capabilities import has_memfd

CACHE_LINE = 64
"""Bytes. Arrays start on cache lines of their own: processes that write neighbouring arrays do not slow each other."""
ARRAYS_LIMIT_S = 30.0
"""Longest wait for arrays after the message that announces them; by then they are written, only the pipe is left."""


@dataclass(frozen=True)
class ArrayField:
    """Where an array lies in a block of memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    def view(self, memory: SharedMemory, base: int = 0) -> NDArray[Any]:
        """The array itself, without copying; it keeps the memory mapped."""
        return np.ndarray(self.shape, self.dtype, buffer=memory.buffer, offset=base + self.offset)


def plan_fields(arrays: Iterable[tuple[str, tuple[int, ...], DTypeLike]]) -> tuple[dict[str, ArrayField], int]:
    """Places arrays one after the other, each on cache lines of its own; returns the places and the bytes needed."""
    fields, offset = {}, 0
    for name, shape, dtype in arrays:
        kind = np.dtype(dtype)
        fields[name] = ArrayField(offset, tuple(shape), kind.str)
        size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        offset += -(-size // CACHE_LINE) * CACHE_LINE
    return fields, max(offset, CACHE_LINE)  # mmap refuses an empty block


class SharedMemory:
    """A block of shared memory. Pickling it for a process being started passes the descriptor, not the bytes."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        """A new block, or with `fd` the block of a descriptor that this object then owns."""
        self.size = size
        self._fd = -1  # if making it raises, __del__ must find nothing to close
        self._fd = _nameless_memory() if fd is None else fd
        if fd is None:
            os.ftruncate(self._fd, size)
        self.buffer = mmap.mmap(self._fd, size)

    @property
    def fd(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; the memory itself is freed with the last view of it. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # While a process is being started, DupFd has the fork server pass a duplicate of the descriptor to it.
        return _attach_duplicate, (reduction.DupFd(self._fd), self.size)


def _nameless_memory() -> int:
    """The descriptor of empty shared memory that has no name, or no longer has one."""
    if has_memfd():
        return os.memfd_create("remuda", os.MFD_CLOEXEC)
    import _posixshmem  # what multiprocessing.shared_memory is made of; that one keeps the name

    # The name exists between these two calls only; O_EXCL raises if another process has the same. macOS allows 31
    # characters.
    name = f"/remuda-{os.getpid()}-{time.monotonic_ns() % 10**12}"
    fd: int = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    _posixshmem.shm_unlink(name)
    return fd


def _attach_duplicate(duplicate: Any, size: int) -> SharedMemory:
    return _attach(duplicate.detach(), size)


def _attach(fd: int, size: int) -> SharedMemory:
    """Map the memory of a descriptor that this process was given, and close the descriptor."""
    memory = SharedMemory(size, fd)
    memory.close()
    return memory


def send_arrays(connection: Connection, arrays: Mapping[str, NDArray[Any]], pid: int, announcement: Any) -> None:
    """Send arrays to process `pid` at the other end of a connection: a descriptor and their places, no bytes.

    `announcement` is an ordinary message. It is sent first, but only when the arrays are complete: the receiver need
    not wait for copying between the announcement and the arrays.
    """
    fields, size = plan_fields((name, array.shape, array.dtype) for name, array in arrays.items())
    memory = SharedMemory(size)
    try:
        for name, field in fields.items():
            field.view(memory)[...] = arrays[name]
        describe_worlds = {name: (field.offset, field.shape, field.dtype) for name, field in fields.items()}
        connection.send(announcement)
        connection.send_bytes(json.dumps({"size": size, "fields": describe_worlds}).encode())
        reduction.send_handle(connection, memory.fd, pid)
    finally:
        memory.close()  # the kernel holds the memory for the descriptor that is on its way


def recv_arrays(connection: Connection) -> dict[str, NDArray[Any]]:
    """Receive what `send_arrays` sent after its announcement, as views; TimeoutError if it does not arrive."""
    _wait_for_data(connection)
    describe_worlds = json.loads(connection.recv_bytes())
    _wait_for_data(connection)
    memory = _attach(reduction.recv_handle(connection), describe_worlds["size"])
    return {
        name: ArrayField(offset, tuple(shape), dtype).view(memory)
        for name, (offset, shape, dtype) in describe_worlds["fields"].items()
    }


def _wait_for_data(connection: Connection) -> None:
    if not connection.poll(ARRAYS_LIMIT_S):
        raise TimeoutError(f"arrays were announced and did not arrive within {ARRAYS_LIMIT_S:.0f} s")
