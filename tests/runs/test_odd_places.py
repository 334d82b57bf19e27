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

import gymnasium
import numpy as np
import pytest
import torch

import remuda
from remuda.core.errors import GameError, RunError, StorageError
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


class WandersOff(gymnasium.Env[Any, Any]):
    """An environment that changes the working directory, or fails with a text that is not UTF-8."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, away: str, fails: bool = False) -> None:
        self.away, self.fails = away, fails

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        os.chdir(self.away)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fails:
            raise ValueError("not text: \udcff\ud800")
        return np.zeros(2, np.float32), float(action), True, False, {}


@pytest.mark.parametrize("engine", ["sequential", "executor"])
def test_a_game_that_changes_directory_does_not_move_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    monkeypatch.chdir(here)
    settings = {"learner": "random", "worlds": 2, "n_workers": 1, "engine": engine, "quiet": True}
    run = remuda.train(WandersOff, away=str(away), total_episodes=4, checkpoint_every=2, out="run", **settings)
    assert run.path == here / "run"
    assert run.result["episodes"] == 4
    assert list(away.iterdir()) == []
    assert Path.cwd() == here, "the working directory was not put back"


@pytest.mark.parametrize("engine", ["sequential", "executor"])
def test_an_error_text_that_is_not_utf8_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.chdir(tmp_path)  # it wanders off here: to where it is
    settings = {"learner": "random", "worlds": 2, "n_workers": 1, "engine": engine, "quiet": True}
    with pytest.raises(GameError, match="not text"):
        remuda.train(WandersOff, away=str(tmp_path), fails=True, total_episodes=4, out="run", **settings)


@pytest.mark.parametrize("learner", ["iqn", "ppo"])
def test_what_a_notebook_did_to_torch_changes_nothing(tmp_path: Path, tiny: dict[str, Any], learner: str) -> None:
    plain = {name: tiny[name] for name in ("agents", "height", "width", "turns", "worlds", "total_episodes", "device")}
    plan = {**plain, "learner": learner, "pictures": False, "quiet": True, "deterministic": True}
    whole = remuda.train("treasurehunt", out=tmp_path / "whole", **plan)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            run = remuda.train("treasurehunt", out=tmp_path / "run", **plan)
            scores = run.evaluate(2)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert scores.returns.tolist() == whole.evaluate(2).returns.tolist()


def test_a_working_directory_that_was_removed_is_one_sentence(tiny: dict[str, Any], tmp_path: Path) -> None:
    here, gone = Path.cwd(), tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        for out in ("run", None):
            with pytest.raises(RunError, match="the working directory was removed: change to one that exists"):
                remuda.train("treasurehunt", out=out, quiet=True, **tiny)
        assert remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **tiny).finished
    finally:
        os.chdir(here)


@pytest.mark.parametrize("closed", [False, True])
def test_a_stream_that_takes_no_text_does_not_end_the_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    stream = (tmp_path / "stream").open("w", encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stderr", stream)
    if closed:
        stream.close()
    run = remuda.train("treasurehunt", out=tmp_path / "ünï", **tiny)
    stream.close()
    assert run.finished
    shown = (tmp_path / "stream").read_text(encoding="ascii")
    assert closed or "\\xfcn\\xef" in shown


def test_an_evaluation_whose_scores_do_not_fit_is_refused(trained: Any) -> None:
    with pytest.raises(remuda.RemudaError, match=r"episodes=10{15} needs .* GiB of memory for the scores"):
        trained().evaluate(10**15)


def test_what_is_no_text_is_printed_with_escapes(tmp_path: Path) -> None:
    """The terminal's stream is strict: `remuda check` prints there what a game says."""
    (tmp_path / "no_text.py").write_text(NO_TEXT)
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "remuda", "check", "no_text:Game"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "not text: \\udcff" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


NO_TEXT = """
import gymnasium, numpy as np

class Game(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise ValueError("not text: \\udcff")
"""


LONG = "x" * 300
COMMANDS: list[list[str]] = [
    *([word, LONG] for word in ("resume", "evaluate", "watch", "replay", "check", "study", "search", "board", "games")),
    ["train", LONG], ["train", f"{LONG}:make"], ["train", "treasurehunt", "--board", "--out", LONG],
    ["train", "treasurehunt", f"learner=frozen:{LONG}/0"], ["train", "treasurehunt", f"warm_start={LONG}"],
    ["train", "--config", LONG], ["verify", "cage2", LONG], ["schelling", LONG], ["sweep", LONG],
    ["tournament", LONG, f"{LONG}/0"], ["tournament", "random", "random", "--out", LONG],
    ["compare", "treasurehunt", "--html", f"{LONG}/page.html"], ["watch", "RUN", "--out", f"{LONG}.gif"],
    *([word, "RUN", "--out", LONG] for word in ("export", "record")),
    *([word, "RUN", "--checkpoint", name] for word in ("evaluate", "resume", "export") for name in (LONG, "")),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).replace(LONG, "LONG"))
def test_a_name_that_no_file_can_have_is_one_sentence(trained: Any, cli: Callable[..., Any], words: list[str]) -> None:
    done = cli(*(str(trained().path) if word == "RUN" else word for word in words))
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.err
