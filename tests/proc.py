"""What the kernel says about processes and their shared memory, for tests of what is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remuda.core.capabilities import has_fork_server

PROC = Path("/proc")
OUR_MEMORY = ("/memfd:remuda", "/dev/shm/remuda-")
"""How the kernel calls our shared memory: made by memfd_create, or by shm_open (its name is removed at once)."""
with_fork_server = pytest.mark.skipif(not has_fork_server(), reason="workers are spawned: there is no fork server")
Inode = tuple[int, int]


@dataclass(frozen=True)
class Process:
    """A process, not to be mistaken for a later one with its number."""

    pid: int
    started: int  # ticks since boot

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that only waits to be counted by its parent does not."""
        now = _stat(self.pid)
        return now is not None and now[0] == self and now[2] not in "ZX"

    @property
    def command(self) -> str:
        """Its command line, shortened."""
        try:
            return (PROC / str(self.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        except OSError:
            return ""


def _stat(pid: int) -> tuple[Process, int, str] | None:
    """A process, its parent and its state."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return Process(pid, int(fields[19])), int(fields[1]), fields[0]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in PROC.iterdir() if path.name.isdigit())


def process(pid: int) -> Process:
    """The process that has this number now."""
    found = find(pid)
    assert found is not None, f"there is no process {pid}"
    return found


def find(pid: int) -> Process | None:
    """The process that has this number now, if there is one."""
    found = _stat(pid)
    return None if found is None else found[0]


def descendants(pid: int) -> set[Process]:
    """Everybody started by a process or by whom it started, whether still running or not yet counted."""
    children: dict[int, set[Process]] = {}
    for found in filter(None, map(_stat, _pids())):
        children.setdefault(found[1], set()).add(found[0])
    result: set[Process] = set()
    parents = [pid]
    while parents:
        own = children.get(parents.pop(), set()) - result
        result |= own
        parents += [child.pid for child in own]
    return result


def memories(pid: int) -> set[Inode]:
    """Our nameless shared memory that a process has open or mapped."""
    found: set[Inode] = set()
    try:
        for link in (PROC / str(pid) / "fd").iterdir():
            try:
                if str(link.readlink()).startswith(OUR_MEMORY):
                    status = link.stat()
                    found.add((status.st_dev, status.st_ino))
            except FileNotFoundError:
                continue
        for line in (PROC / str(pid) / "maps").read_text().splitlines():
            if any(name in line for name in OUR_MEMORY):
                device, inode = line.split()[3:5]
                major, minor = (int(part, 16) for part in device.split(":"))
                found.add((os.makedev(major, minor), int(inode)))
    except OSError:
        pass  # it ended, or is not ours to look at
    return found


def holders(wanted: Iterable[Inode]) -> set[int]:
    """Processes that have any of this memory."""
    inodes = set(wanted)
    return {pid for pid in _pids() if inodes & memories(pid)}


def wait(what: Callable[[], bool], limit_s: float, otherwise: Callable[[], str] = lambda: "nothing happened") -> None:
    """Until it is so; an AssertionError after the limit."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.01)


def stopped(pid: int) -> bool:
    """Whether somebody has sent it SIGSTOP."""
    found = _stat(pid)
    return found is not None and found[2] in "Tt"
