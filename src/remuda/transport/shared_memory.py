"""Nameless shared memory: it is passed on by descriptor and gone with the last process that has it."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNED = 64  # bytes: a cache line, so that neighbours in memory do not slow each other down
ARRIVE_LIMIT_S = 30.0
"""Longest from the word that announces arrays to the arrays, which are written by then."""


@dataclass(frozen=True)
class ArrayField:
    """Where an array lies in a block of memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    def view(self, memory: SharedMemory, base: int = 0) -> NDArray[Any]:
        """The array itself, without copying."""
        return np.ndarray(self.shape, self.dtype, buffer=memory.buffer, offset=base + self.offset)


def plan_fields(arrays: Iterable[tuple[str, tuple[int, ...], DTypeLike]]) -> tuple[dict[str, ArrayField], int]:
    """Lay arrays out one after the other, each on a cache line of its own; returns them and the bytes needed."""
    fields, offset = {}, 0
    for name, shape, dtype in arrays:
        kind = np.dtype(dtype)
        fields[name] = ArrayField(offset, tuple(shape), kind.str)
        size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        offset += -(-size // ALIGNED) * ALIGNED
    return fields, max(offset, ALIGNED)


class SharedMemory:
    """A block of shared memory. Pickling it for a process being started passes the descriptor, not the bytes."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.size = size
        self._fd = -1  # until there is one to close
        self._fd = os.memfd_create("remuda", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self._fd, size)
        self.buffer = mmap.mmap(self._fd, size)

    @property
    def fd(self) -> int:
        """The descriptor."""
        return self._fd

    def close(self) -> None:
        """Let go of the descriptor; the memory itself goes when the last view of it does. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self._fd), self.size)


def _attach(fd: Any, size: int) -> SharedMemory:
    memory = SharedMemory(size, fd.detach())
    memory.close()  # the mapping keeps the memory; the descriptor is not needed any more
    return memory


def send_arrays(connection: Connection, arrays: Mapping[str, NDArray[Any]], pid: int, word: Any) -> None:
    """Hand arrays to the process at the other end: a descriptor and where they lie, no bytes through the pipe.

    `word` is sent first, when everything is in place: whoever hears it need not wait for the rest.
    """
    fields, size = plan_fields((name, array.shape, array.dtype) for name, array in arrays.items())
    size = max(size, 1)
    memory = SharedMemory(size)
    try:
        for name, field in fields.items():
            field.view(memory)[...] = arrays[name]
        index = {name: (field.offset, field.shape, field.dtype) for name, field in fields.items()}
        connection.send(word)
        connection.send_bytes(json.dumps({"size": size, "fields": index}).encode())
        reduction.send_handle(connection, memory.fd, pid)
    finally:
        memory.close()


def recv_arrays(connection: Connection) -> dict[str, NDArray[Any]]:
    """What `send_arrays` sent after its word, as views of the shared memory; TimeoutError if it does not come."""
    _expect(connection)
    index = json.loads(connection.recv_bytes())
    _expect(connection)
    memory = _attach_handle(reduction.recv_handle(connection), index["size"])
    return {
        name: ArrayField(offset, tuple(shape), dtype).view(memory)
        for name, (offset, shape, dtype) in index["fields"].items()
    }


def _expect(connection: Connection) -> None:
    if not connection.poll(ARRIVE_LIMIT_S):
        raise TimeoutError(f"arrays were announced and did not come within {ARRIVE_LIMIT_S:.0f} s")


def _attach_handle(fd: int, size: int) -> SharedMemory:
    memory = SharedMemory(size, fd)
    memory.close()
    return memory
