"""The portable ways, forced on this system: shm_open, spawned workers, a watched parent, psutil."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import proc
import remuda
from remuda.core import capabilities
from remuda.core.machine import process_tree, tree_bytes, tree_cpu_s
from remuda.transport.shared_memory import SharedMemory

SETTINGS: dict[str, Any] = {
    "agents": 2, "worlds": 4, "total_episodes": 8, "turns": 10, "layer": 16, "frames": 1, "batch_size": 8,
    "deterministic": True, "pictures": False, "evaluate_episodes": 4, "n_workers": 2, "quiet": True,
}  # fmt: skip


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces the portable ways here and in all child processes."""
    monkeypatch.setenv(capabilities.PORTABLE, "1")


@pytest.mark.usefixtures("portable")
def test_no_capability_of_linux_is_used() -> None:
    assert not capabilities.has_memfd()
    assert not capabilities.has_fork_server()
    assert not capabilities.has_parent_death_signal()
    assert not capabilities.has_proc()
    assert capabilities.has_shared_memory()


@pytest.mark.usefixtures("portable")
def test_shared_memory_has_no_name_once_it_is_made() -> None:
    names = set(Path("/dev/shm").iterdir())
    memory = SharedMemory(4096)
    assert set(Path("/dev/shm").iterdir()) <= names
    memory.buffer[:4] = b"1234"
    again = SharedMemory(4096, os.dup(memory.fd))
    assert again.buffer[:4] == b"1234"


def test_psutil_sees_the_same_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        plain = set(process_tree(os.getpid())), tree_bytes(child.pid), tree_cpu_s(os.getpid())
        monkeypatch.setenv(capabilities.PORTABLE, "1")
        assert set(process_tree(os.getpid())) == plain[0] >= {os.getpid(), child.pid}
        assert tree_bytes(child.pid) >= 0.5 * plain[1] > 0  # the child may have grown; resident pages include shared
        assert tree_cpu_s(os.getpid()) == pytest.approx(plain[2], abs=0.5)
        child.kill()


def _hang() -> None:
    from remuda.transport.processes import die_with_parent

    die_with_parent()
    signal.pause()


PARENT = """
import sys
sys.path.insert(0, {tests!r})
from test_portable import _hang
from remuda.transport.processes import process_context
if __name__ == "__main__":
    child = process_context().Process(target=_hang)
    child.start()
    print(child.pid, flush=True)
    child.join()
"""


@pytest.mark.usefixtures("portable")
def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(tests=str(Path(__file__).parent)))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    proc.wait(lambda: not psutil.pid_exists(child), 60, lambda: "the worker outlives its parent")


@pytest.mark.promise
@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("engine", ["executor", "sync"])
def test_the_result_is_the_same(engine: str, tmp_path: Path) -> None:
    portable = remuda.train("treasurehunt", engine=engine, out=tmp_path / "portable", **SETTINGS)
    plain = remuda.train("treasurehunt", engine="sequential", out=tmp_path / "plain", **SETTINGS)
    assert portable.result["weights_sha256"] == plain.result["weights_sha256"]
    assert np.array_equal(portable.metrics["return"], plain.metrics["return"])
    assert multiprocessing.active_children() == []


@pytest.mark.promise
@pytest.mark.usefixtures("portable")
def test_learner_processes_train_and_leave_nothing(tmp_path: Path) -> None:
    names = set(Path("/dev/shm").iterdir())
    settings = {**SETTINGS, "deterministic": False, "n_learners": 1}
    run = remuda.train("treasurehunt", engine="actor-learner", out=tmp_path / "run", **settings)
    assert run.result["finished"]
    assert run.result["episodes"] == SETTINGS["total_episodes"]
    assert set(Path("/dev/shm").iterdir()) <= names
    assert multiprocessing.active_children() == []
