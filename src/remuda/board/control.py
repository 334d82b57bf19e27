"""Stop and extend a run, where the person who started the board allowed it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from remuda.board.catalogue import holder_of, last_rows, number
from remuda.board.locks import lock_holders
from remuda.core.errors import RunError


def stop(root: Path, name: str) -> str:
    """Ask the process that trains a run to save and end."""
    holder = holder_of(root, name, lock_holders())
    if holder is None or holder <= 0 or not _has_open(holder, root / name / ".lock"):
        raise RunError(f"{name} is not being trained on this machine")
    os.kill(holder, signal.SIGTERM)  # and not SIGINT, which a job in a shell's background ignores
    return f"{name} was asked to save and stop"


def _has_open(process: int, path: Path) -> bool:
    """Whether a process has a file open: the table of locks knows inodes, and two disks may have the same ones."""
    with suppress(OSError):  # the run or the process has ended, or the process is somebody else's
        wanted = path.lstat()
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False


def extend(root: Path, name: str, total_episodes: int) -> str:
    """Continue a run to so many episodes, in a process of its own that outlives the board."""
    if holder_of(root, name, lock_holders()) is not None:
        raise RunError(f"{name} is being trained: stop it first")
    rows = last_rows(root, name, "metrics.csv")
    done = number(rows[-1].get("episodes")) if rows else None
    if total_episodes <= (done or 0):
        raise RunError(f"{name} has trained {done or 0:.0f} episodes already; give more than that")
    command = [sys.executable, "-m", "remuda", "resume", str(root / name), "--total-episodes", str(total_episodes)]
    nowhere = subprocess.DEVNULL  # the run writes its own console.log
    process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    threading.Thread(target=process.wait, daemon=True).start()  # so that no zombie is left when it ends
    return f"{name} goes on to {total_episodes:,} episodes"
