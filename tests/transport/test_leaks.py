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
    """A worker imports the script that started it: ours would take half a second every time."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@dataclass(frozen=True)
class Holdings:
    """What this process and those it started have of the machine."""

    processes: frozenset[proc.Process]
    descriptors: dict[proc.Process, Counter[str]]
    memories: frozenset[proc.Inode]
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        """After a collection: a run's objects know each other, and its memory goes with the last of them."""
        gc.collect()
        others = proc.descendants(os.getpid())
        everybody = {*others, proc.process(os.getpid())}
        return cls(
            processes=frozenset(others),
            descriptors={one: descriptors(one.pid) for one in everybody},
            memories=frozenset(inode for one in everybody for inode in proc.memories(one.pid)),
            threads=len(list(Path("/proc/self/task").iterdir())),
        )


def descriptors(pid: int) -> Counter[str]:
    """Open descriptors by what they lead to, whatever its number."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[re.sub(r"\d+", "#", str(link.readlink()))] += 1
        except FileNotFoundError:
            continue  # the one we are reading with
    return kinds


class Cycle:
    """Starts workers, trains a little and ends in one of the ways a run can end; other engines, other ends in turn."""

    def __init__(self, folder: Path, engines: Sequence[str]) -> None:
        self.folder, self.engines = folder, engines
        self.count = 0
        self.most_workers = 0
        self.known: set[proc.Process] = set()
        self()
        self.known = proc.descendants(os.getpid())  # a fork server and a resource tracker stay, for the next run

    def workers(self) -> list[proc.Process]:
        """Worker processes at this moment."""
        return sorted(proc.descendants(os.getpid()) - self.known, key=lambda one: one.pid)

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """Nothing special."""

    def stop(self, rows: list[dict[str, Any]]) -> bool:
        """As if somebody had asked."""
        return False

    def fail(self, rows: list[dict[str, Any]]) -> None:
        """Out through all frames."""
        raise ZeroDivisionError("a bug of the caller's")

    def lose(self, rows: list[dict[str, Any]]) -> None:
        """A worker dies on the way, another one every time: also one that learns."""
        if rows[0]["round"] == 1:
            workers = self.workers()
            os.kill(workers[self.count // 8 % len(workers)].pid, signal.SIGKILL)

    def __call__(self) -> None:
        turn, which = divmod(self.count, len(self.engines))
        ending = (self.finish, self.stop, self.fail, self.lose)[turn % 4]
        self.count += 1

        def callback(rows: list[dict[str, Any]]) -> bool | None:
            self.most_workers = max(self.most_workers, len(self.workers()))
            return ending(rows)

        excepted = {self.fail: ZeroDivisionError}.get(ending, ())
        with suppress(excepted):
            settings = {**SMALL, **ENGINES[self.engines[which]]}
            out = self.folder / str(self.count)
            run = remuda.train("remuda.testing:GIFTS", out=out, callbacks=[callback], quiet=True, **settings)
            assert run.result["finished"] or ending == self.stop


def check_cycles(folder: Path, engines: Sequence[str], cycles: int) -> None:
    cycle = Cycle(folder, engines)
    for _ in range(3):
        cycle()
    before = Holdings.now()
    assert len(before.processes) == 2, "a fork server and a resource tracker; whoever else there was is gone"
    cycle.most_workers = 0
    for _ in range(cycles):
        cycle()
    after = Holdings.now()
    assert cycle.most_workers >= 2, "nothing was started, so nothing could have been left"
    assert after == before
    assert not [path.name for path in Path("/dev/shm").iterdir() if "remuda" in path.name]


def test_twenty_runs_leave_nothing(tmp_path: Path) -> None:
    check_cycles(tmp_path, ["executor", "actor-learner"], 20)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_two_hundred_runs_leave_nothing(tmp_path: Path, engine: str) -> None:
    check_cycles(tmp_path, [engine], 200)
