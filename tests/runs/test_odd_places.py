"""Odd paths, odd names, several trainings in one process, readers beside a training: one sentence, or it works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import remuda
from remuda.core.errors import RunError, StorageError
from remuda.runs import checkpoint
from remuda.studies.compare.page import Comparison


@pytest.mark.parametrize(
    "out", ["a\0b", "x" * 300, f"{'y' * 200}/{'z' * 300}", os.fsdecode(b"run-\xff"), 7, True], ids=repr
)
def test_an_odd_directory_is_one_sentence(tiny: dict[str, Any], out: Any) -> None:
    with pytest.raises(RunError):
        remuda.train("treasurehunt", out=out, quiet=True, **tiny)


def test_names_with_markup_are_shown_as_they_are(
    tiny: dict[str, Any], tmp_path: Path, cli: Callable[..., Any], words: list[str]
) -> None:
    out = tmp_path / "lr[seed1][/x]"
    done = cli("train", *words, "--out", out)
    assert done.code == 0
    assert "lr[seed1][/x]" in done.err


def test_a_console_log_that_cannot_be_made_is_one_sentence(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.open

    def full(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "console.log":
            raise OSError(28, "No space left on device")
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match="the disk is full"):
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **tiny)


def test_a_comparison_is_written_onto_a_full_disk_with_one_sentence() -> None:
    comparison = Comparison("title", "machine", "command", [], [], None, 1, (), ())
    with pytest.raises(StorageError, match="the disk is full"):
        comparison.write("/dev/full")


def test_trainings_in_threads_leave_the_process_as_it_was(tiny: dict[str, Any], tmp_path: Path) -> None:
    threads, hook = torch.get_num_threads(), threading.excepthook
    torch.set_num_threads(2)
    try:
        runs = [
            threading.Thread(
                target=remuda.train,
                args=("treasurehunt",),
                kwargs={"out": tmp_path / str(i), "quiet": True, **tiny, "total_episodes": 6 + 6 * i},
            )
            for i in range(2)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert torch.get_num_threads() == 2
        assert threading.excepthook is hook
        assert all(remuda.load(tmp_path / str(i)).finished for i in range(2))
    finally:
        torch.set_num_threads(threads)


def test_a_checkpoint_replaced_while_it_is_read_is_read_again(
    trained: Any, copy_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(trained())
    newest, plain = run.checkpoints()[0], checkpoint.read
    calls: list[Path] = []

    def read(path: Path, file: str) -> Any:
        calls.append(path)
        if len(calls) == 1:  # training replaces it now: the reader finds half of each
            shutil.copytree(newest, newest.with_name(".draft"))
            shutil.rmtree(newest)
            newest.with_name(".draft").rename(newest)
            raise checkpoint.CheckpointError("damaged")
        return plain(path, file)

    monkeypatch.setattr(checkpoint, "read", read)
    assert run.agent(0).actions == 4 or calls
    assert len(calls) == 2


def test_a_checkpoint_that_is_damaged_is_refused_at_once(trained: Any, copy_of: Any) -> None:
    run = copy_of(trained())
    (run.checkpoints()[0] / "policy.safetensors").write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match="damaged"):
        run.agent(0)


@pytest.mark.parametrize("module", ["typer.main", "pydantic.main", "numba.core.types"])
def test_ctrl_c_in_the_first_seconds_is_one_sentence(tmp_path: Path, module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "remuda", "train", "treasurehunt", "--out", str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
                break
        lines = [line for line in process.stderr if not line.startswith("import time:")]
        assert process.wait() == 130
        assert [line.strip() for line in lines if line.strip()] == ["stopped by Ctrl-C; there was nothing to save"]
