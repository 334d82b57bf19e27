"""Invariant 6 over many runs in one process: no child, no shared memory, no descriptor, no thread is left behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import proc
import remuda

SMALL: dict[str, Any] = {
    "agents": 2, "turns": 12, "worlds": 3, "total_episodes": 6, "checkpoint_every": 6, "evaluate_episodes": 3,
    "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256,
    "device": "cpu", "pictures": False,
}  # fmt: skip
ENGINES: dict[str, dict[str, Any]] = {
    "sync": {"engine": "sync", "n_workers": 2},
    "executor": {"engine": "executor", "n_workers": 2},
    "actor-learner": {"engine": "actor-learner", "n_workers": 1, "n_learners": 1},
}


@pytest.fixture(autouse=True)
def workers_need_not_import_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports the script that started it; for pytest that takes half a second every time."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@dataclass(frozen=True)
class Holdings:
    """The processes, descriptors, shared memory and threads of this process and those it started."""

    processes: frozenset[proc.Process]
    descriptors: dict[proc.Process, Counter[str]]
    memories: frozenset[proc.Inode]
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        """The holdings after a garbage collection: a run's objects refer to each other in cycles."""
        gc.collect()
        others = proc.descendants(os.getpid())
        processes = {*others, proc.process(os.getpid())}
        return cls(
            processes=frozenset(others),
            descriptors={one: descriptors(one.pid) for one in processes},
            memories=frozenset(inode for one in processes for inode in proc.memories(one.pid)),
            threads=len(list(Path("/proc/self/task").iterdir())),
        )


def descriptors(pid: int) -> Counter[str]:
    """Counts open descriptors by what they refer to, without numbers."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[re.sub(r"\d+", "#", str(link.readlink()))] += 1
        except FileNotFoundError:
            continue  # the descriptor that iterdir itself used
    return kinds


class Cycle:
    """Trains a little and ends in one of the ways a run can end; engines and ends take turns."""

    def __init__(self, folder: Path, engines: Sequence[str]) -> None:
        self.folder, self.engines = folder, engines
        self.count = 0
        self.max_workers = 0
        self.known: set[proc.Process] = set()
        self()
        self.known = proc.descendants(os.getpid())  # a fork server and a resource tracker stay for the next run

    def workers(self) -> list[proc.Process]:
        """The worker processes that run now."""
        return sorted(proc.descendants(os.getpid()) - self.known, key=lambda one: one.pid)

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """The run finishes."""

    def stop(self, rows: list[dict[str, Any]]) -> bool:
        """The run is stopped."""
        return False

    def fail(self, rows: list[dict[str, Any]]) -> None:
        """The callback raises."""
        raise ZeroDivisionError("a bug in the callback")

    def kill_worker(self, rows: list[dict[str, Any]]) -> None:
        """A worker is killed during the run, every time another one: also one that learns."""
        if rows[0]["round"] == 1:
            workers = self.workers()
            os.kill(workers[self.count // 8 % len(workers)].pid, signal.SIGKILL)

    def __call__(self) -> None:
        turn, which = divmod(self.count, len(self.engines))
        ending = (self.finish, self.stop, self.fail, self.kill_worker)[turn % 4]
        self.count += 1

        def callback(rows: list[dict[str, Any]]) -> bool | None:
            self.max_workers = max(self.max_workers, len(self.workers()))
            return ending(rows)

        expected = {self.fail: ZeroDivisionError}.get(ending, ())
        with suppress(expected):
            settings = {**SMALL, **ENGINES[self.engines[which]]}
            out = self.folder / str(self.count)
            run = remuda.train("remuda.testing:GIFTS", out=out, callbacks=[callback], quiet=True, **settings)
            assert run.result["finished"] or ending == self.stop


def check_cycles(folder: Path, engines: Sequence[str], cycles: int) -> None:
    held_by_others = Holdings.now().memories  # by earlier tests of this process
    cycle = Cycle(folder, engines)
    for _ in range(3):
        cycle()
    before = Holdings.now()
    assert len(before.processes) == 2, "only a fork server and a resource tracker may be left"
    cycle.max_workers = 0
    for _ in range(cycles):
        cycle()
    after = Holdings.now()
    assert cycle.max_workers >= 2, "no worker was started, so none could have been left"
    assert not after.memories - held_by_others
    assert after == before
    assert not [path.name for path in Path("/dev/shm").iterdir() if "remuda" in path.name]


def test_twenty_runs_leave_nothing(tmp_path: Path) -> None:
    check_cycles(tmp_path, ["executor", "actor-learner"], 20)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_two_hundred_runs_leave_nothing(tmp_path: Path, engine: str) -> None:
    check_cycles(tmp_path, [engine], 200)
