"""How many workers there are if no number was given, and what is said about too many."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine_runs import ONE_WORLD_AT_A_TIME, console_lines

import remuda
from remuda.core import machine
from remuda.engines import build, choose, context
from remuda.learners.iqn.learner import IQN


@pytest.mark.parametrize(
    ("switches", "workers"),
    [
        ({"parallel_training": False}, "3 collecting processes"),
        ({"async_learning": False}, "3 collecting processes"),
        ({"use_threads": True, "async_learning": False}, "3 threads"),
    ],
    ids=str,
)
def test_without_a_number_of_workers_there_are_as_many_as_cores(
    train: Any, monkeypatch: pytest.MonkeyPatch, switches: dict[str, Any], workers: str
) -> None:
    for module in (build, choose, context):
        monkeypatch.setattr(module, "cores", lambda: 3)
    run = train(parallel={**switches, "num_workers": None})
    assert run.plan.n_workers is None
    assert len(console_lines(run, f"({workers})")) == 1
    assert len(run.result["processes"]) == (3 if "processes" in workers else 0)


@pytest.mark.parametrize(
    ("affinity", "quota", "count"),
    [
        (8, None, 8),
        (8, "max 100000", 8),
        (8, "300000 100000", 3),
        (8, "350000 100000", 3),
        (8, "20000 100000", 1),
        (2, "400000 100000", 2),
        (1, "max 100000", 1),
        (4, "nonsense", 4),
    ],
)
def test_only_cores_that_this_process_may_use_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, quota: str | None, count: int
) -> None:
    """The machine may have more, given to other processes or containers."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / Path(path).name)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert machine.cores() == count


def test_cores_on_a_system_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / "missing")
    assert machine.cores() == 6


@pytest.mark.slow
def test_a_hundred_workers_on_two_cores_work_and_cause_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random policies, to keep it fast: that results do not depend on workers is tested elsewhere."""
    for module in (build, choose, context):
        monkeypatch.setattr(module, "cores", lambda: 2)
    many = {"worlds": 100, "total_episodes": 100, "n_workers": 100, "engine": "executor", "learner": "random"}
    settings = {
        name: value for name, value in ONE_WORLD_AT_A_TIME.items() if name not in IQN.options_type().model_fields
    }
    run = remuda.train(out=tmp_path / "run", quiet=True, **{**settings, **many})
    assert run.result["finished"]
    assert run.result["episodes"] == 100
    assert len(run.result["processes"]) == 100
    assert all(process["restarts"] == 0 for process in run.result["processes"])
    assert (
        len(console_lines(run, "warning: 100 workers on 2 cores: good for")) == len(console_lines(run, "warning")) == 1
    )


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({"engine": "executor", "n_workers": 9}, ["warning: 9 workers on 2 cores (this plan has work for 3)"]),
        ({"engine": "vectorized", "n_workers": 9}, ["warning: 9 workers on 2 cores"]),
        ({"engine": "threads", "n_workers": 9}, ["warning: 9 workers on 2 cores"]),
        ({"engine": "actor-learner", "n_workers": 2, "deterministic": False}, ["warning: 3 workers on 2 cores"]),
        ({"engine": "vectorized", "n_workers": 2}, []),
        ({"engine": "vectorized"}, []),
        ({"engine": "sequential", "n_workers": 9}, []),
        ({"engine": "executor", "n_workers": 2, "n_learners": 9}, ["engine=executor has no use for n_learners"]),
    ],
    ids=str,
)
def test_workers_that_make_nothing_faster_cause_a_warning(
    train: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], warnings: list[str]
) -> None:
    for module in (build, choose, context):
        monkeypatch.setattr(module, "cores", lambda: 2)
    lines = console_lines(train(**settings), "warning")
    assert len(lines) == len(warnings)
    for line, warning in zip(lines, warnings, strict=True):
        assert warning in line


def test_a_number_of_workers_that_was_not_given_causes_no_warning(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (build, choose, context):
        monkeypatch.setattr(module, "cores", lambda: 1)
    run = train(engine="actor-learner", deterministic=False)
    assert len(run.result["processes"]) == 2
    assert console_lines(run, "warning") == []
