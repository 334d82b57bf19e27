"""A folder for temporary files that is removed however this process ends, `kill -9` included."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

CLEANUP_PROGRAM = """
import os, shutil, signal, sys, time
from contextlib import suppress
folder, family = sys.argv[1], []
for line in sys.stdin:
    with suppress(OSError):
        family.append(os.pidfd_open(int(line)))

def end(process):
    with suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGKILL)

def users_of_the_folder():
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with suppress(OSError):
            process = os.pidfd_open(int(name))
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if folder.encode() in file.read() and int(name) != os.getpid():
                    yield process
            os.close(process)

for process in family:
    end(process)
for _ in range(100):
    found = False
    for process in users_of_the_folder():
        found = True
        end(process)
    shutil.rmtree(folder, ignore_errors=True)
    if not found and not os.path.exists(folder):
        break
    time.sleep(0.1)
"""
"""A program that waits until this process is gone, then kills the processes of the folder and removes it.

After `kill -9` of this process some of Ray's processes would live on for a minute. The program reads from a pipe whose
write end is ours: the kernel closes it with us, however we end, and the input is at its end. Each line of the input is
the number of a process to kill; those that have the folder in their command line are killed, too, for this process may
have ended before it could name them. A process is opened as a pidfd before anything is decided about it, so no other
one that got the same number later can be killed.
"""


class TemporaryFolder:
    """The folder, and the small process that removes it if this one cannot; nobody else may enter it."""

    def __init__(self, prefix: str, place: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        try:
            self._cleanup = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", CLEANUP_PROGRAM, str(self.path)],
                stdin=subprocess.PIPE,
                start_new_session=True,  # a signal to our process group must not end it before its work
            )
        except OSError:
            self.path.rmdir()
            raise

    def kill_with_us(self, processes: Iterable[int]) -> None:
        """These end, too, if this process is killed."""
        assert self._cleanup.stdin is not None
        with suppress(OSError):  # somebody has ended it: then nobody cleans up after a kill -9
            self._cleanup.stdin.write("".join(f"{pid}\n" for pid in processes).encode())
            self._cleanup.stdin.flush()

    def close(self) -> None:
        """Remove the folder."""
        self._cleanup.kill()
        self._cleanup.communicate()
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
