"""How processes start, and what they leave behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import util
from pathlib import Path

import pytest

import proc
from remuda.core import machine
from remuda.core.capabilities import PORTABLE
from remuda.transport.processes import processes_unavailable


def _start_a_fork_server_and_die() -> None:
    assert processes_unavailable("{}") is None
    os._exit(7)


def test_a_child_that_dies_leaves_its_parents_folder_of_sockets_alone() -> None:
    """multiprocessing hands the folder on, and the child's fork server cleans up after a killed parent."""
    folder = Path(util.get_temp_dir())
    child = multiprocessing.get_context("spawn").Process(target=_start_a_fork_server_and_die)
    child.start()
    child.join()
    assert child.exitcode == 7
    time.sleep(1.0)
    assert folder.is_dir()


KILLED_EARLY = """
import os, signal, threading, time
from multiprocessing import forkserver, util
from remuda.transport.processes import processes_unavailable

def die_when_it_runs():
    while getattr(forkserver._forkserver, "_forkserver_pid", None) is None:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    print(util.get_temp_dir(), flush=True)
    threading.Thread(target=die_when_it_runs).start()
    processes_unavailable("{}")
"""


def test_a_first_process_that_is_killed_while_its_fork_server_imports_leaves_no_folder() -> None:
    command = [sys.executable, "-c", KILLED_EARLY]
    environment = {name: value for name, value in os.environ.items() if name != PORTABLE}  # which has no fork server
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    folder = Path(done.stdout.strip())
    deadline = time.monotonic() + 60.0
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()


LONG_FOLDER = """
import os, sys, tempfile
from remuda.transport.processes import processes_unavailable

if __name__ == "__main__":
    print(processes_unavailable("{}"), len(os.listdir(os.environ["TMPDIR"])))
"""


def test_sockets_are_elsewhere_if_the_temporary_folder_has_a_long_name(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    environment = {**os.environ, "TMPDIR": str(long)}
    command = [sys.executable, "-c", LONG_FOLDER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["None", "0"], done.stderr


def test_a_folder_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "d" * 90)
    assert machine.folder_for_sockets("/12345") is None
    assert machine.folder_for_sockets("/" + "s" * 20) == "/tmp"
    assert machine.folder_for_sockets("/" + "s" * 200) is None, "no folder is short enough"


INTERRUPTED = """
import os, sys
from remuda.transport.processes import processes_unavailable

if __name__ == "__main__":
    signal = __import__("signal")
    arrived = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append(number))
    print(processes_unavailable("{}"), len(arrived))
"""


def test_ctrl_c_while_the_fork_server_starts_reaches_the_first_process_only() -> None:
    """A terminal sends it to the whole group; the fork server would die of it, with a traceback."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        proc.wait(lambda: len(proc.descendants(process.pid)) >= 2, 60)  # a tracker of resources, and the fork server
        for _ in range(5):
            time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    why, arrived = out.split()
    assert why == "None"
    assert int(arrived) >= 1
