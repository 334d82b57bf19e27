"""What a machine cannot carry is refused before anything is started, with what would help."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remuda.core.errors import ConfigError
from remuda.runs import limits


def test_memory_is_refused_with_what_is_needed_and_free(
    train: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"needs .* of memory .*, 1000 bytes are free: lower agents"):
        train()
    assert not (tmp_path / "run").exists()


def test_disk_is_refused(train: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"of disk for its checkpoints, 1000 bytes are free .* use another --out"):
        train()
    assert not (tmp_path / "run").exists()


def test_open_files_are_raised_as_far_as_they_may_be(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: asked.append(values))
    assert train(engine="executor", n_workers=2).result["finished"]
    assert asked == [(64 + 2 * limits.DESCRIPTORS_EACH, hard)]


def test_too_many_workers_for_the_open_files(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 68))
    with pytest.raises(
        ConfigError, match=r"n_workers=2 needs 72 open files, this process may have 68: .*at most 1 workers"
    ):
        train(engine="executor", n_workers=2)


def test_so_few_open_files_that_no_worker_fits(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, 20))
    with pytest.raises(ConfigError, match=r"use an engine without processes \(engine=vectorized\)"):
        train(engine="executor", n_workers=2)


def test_so_few_open_files_that_nothing_can_train(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, 20))
    with pytest.raises(ConfigError, match=r"^training needs 64 open files, this process may have 20: .*\(as root\)$"):
        train(engine="vectorized")


def test_networks_are_refused_before_they_are_made(train: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory may be promised that is not there; whoever then takes it ends the process. One network is made to look."""
    monkeypatch.setattr(limits, "free_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"needs [\d,.]+ GiB of memory for networks and optimisers, 1.0 GiB are free"):
        train(frames=5000, agents=20)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_larger_than_memory_is_refused(train: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate_episodes=1000000000000 needs .* GiB of memory .* lower evaluate"):
        train(evaluate_episodes=10**12)
    assert not (tmp_path / "run").exists()
