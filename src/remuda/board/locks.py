"""Who trains what: the kernel's table of file locks, only read; taking a lock could refuse a training its start."""

from __future__ import annotations

from pathlib import Path

TABLE = Path("/proc/locks")


def lock_holders() -> dict[int, int]:
    """Process by inode of the file that it holds exclusively."""
    holders: dict[int, int] = {}
    try:
        lines = TABLE.read_text().splitlines()
    except OSError:
        return holders
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE":
            inode = words[5].rpartition(":")[2]
            if inode.isdigit() and words[4].lstrip("-").isdigit():
                holders[int(inode)] = int(words[4])
    return holders
