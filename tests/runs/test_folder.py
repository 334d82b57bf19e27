"""Run directories: reserved at once, removed if the run is refused, restarted if nothing was saved."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.core.errors import ConfigError, LearnerError
from remuda.runs import training


def test_two_that_start_at_once_get_two_folders(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "remuda", "train", *words]
    both = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0, 0], said
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [f"treasurehunt-00{k}" for k in (1, 2, 3)]


def test_a_refused_plan_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(remuda.RemudaError):
        remuda.train("treasurehunt", quiet=True, **{**tiny, "evaluate_episodes": 10**12})
    assert not (tmp_path / "runs").exists()


def test_a_refused_plan_leaves_a_folder_that_was_there(tmp_path: Path, tiny: dict[str, Any]) -> None:
    with pytest.raises(remuda.RemudaError):
        remuda.train("treasurehunt", quiet=True, out=tmp_path, **{**tiny, "evaluate_episodes": 10**12})
    assert list(tmp_path.iterdir()) == []


def test_a_refused_plan_leaves_the_run_that_another_process_began_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    began = b"game: treasurehunt\n"

    def slow(plan: Any) -> None:
        folder.mkdir()
        (folder / "config.yaml").write_bytes(began)
        (folder / ".lock").touch()

    monkeypatch.setattr(training, "check_engine", slow)
    with pytest.raises(ConfigError):
        remuda.train("treasurehunt", quiet=True, out=folder, **{**tiny, "evaluate_episodes": 10**12})
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "config.yaml"]
    assert (folder / "config.yaml").read_bytes() == began


def test_a_run_without_a_checkpoint_starts_from_the_beginning(train: Any, trained: Any) -> None:
    run = train()
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "result.json").unlink()
    again = remuda.resume(run.path, quiet=True)
    assert again.result["weights_sha256"] == trained().result["weights_sha256"]
    assert len(again.metrics["round"]) == len(trained().metrics["round"])
    assert "has no checkpoint yet: training starts from the beginning" in (run.path / "console.log").read_text()


def test_weights_that_are_not_finite_are_never_saved(train: Any, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"agent \d has .* not finite: nothing was saved"):
        train(lr=3e38, total_episodes=60)
    run = remuda.Run(tmp_path / "run")
    for path in run.checkpoints():
        remuda.resume(run.path, checkpoint_name=path.name, quiet=True, callbacks=[lambda rows: False])
        break
