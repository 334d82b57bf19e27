"""Callbacks: what they are told, in which order, and that they may stop a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.testing import BROKEN


class Listener(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: dict[str, Any] = {}

    def start(self, training: Training) -> None:
        self.events.append(f"start {training.rounds}")
        self.seen["config"], self.seen["path"] = training.config, training.path

    def collected(self, training: Training, episodes: int, agent_steps: int) -> None:
        self.events.append(f"collected {episodes}")

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        self.events.append(f"learned {rows[0]['round']}")
        assert {"return", *training.metrics} <= set(rows[0])
        assert system["round"] == rows[0]["round"]
        assert training.run.path == training.path

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        self.events.append("evaluated")
        assert scores["episodes"] == training.config.evaluate_episodes
        assert set(training.evaluation_metrics) <= set(rows[0])

    def saved(self, training: Training, checkpoint: Path, episodes: int) -> None:
        assert checkpoint.is_dir()
        self.seen.setdefault("saved", []).append(episodes)

    def failed(self, training: Training, message: str) -> None:
        self.events.append("failed")

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        self.events.append("end")
        self.seen["result"] = result


NAN_REWARD = BROKEN["nanreward"]


class StopAtTwo(Callback):
    """Ends the run in its second round."""

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        if rows[0]["round"] == 2:
            training.stop("it is enough")


def test_a_callback_is_told_everything_in_order(tiny: dict[str, Any], tmp_path: Path) -> None:
    own = Listener()
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[own], **tiny)
    rounds = [event for k in (1, 2, 3, 4) for event in (f"collected {3 * k}", f"learned {k}")]
    assert own.events == ["start 0", *rounds, "evaluated", "end"]
    assert own.seen["saved"] == [3, 6, 9, 12]
    assert own.seen["result"]["weights_sha256"] == run.result["weights_sha256"]
    assert own.seen["path"] == run.path
    assert own.seen["config"].seed == 0


def test_a_callback_stops_the_run_with_its_reason(tiny: dict[str, Any], tmp_path: Path) -> None:
    own = Listener()
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[StopAtTwo(), own], **tiny)
    assert not run.result["finished"]
    assert run.stopped_by is None
    assert "stopped at 6 episodes (it is enough)" in (run.path / "console.log").read_text()
    again = Listener()
    assert remuda.resume(run.path, quiet=True, callbacks=[again]).result["finished"]
    assert again.events[0] == "start 2"
    assert again.events[-1] == "end"


def test_failures_reach_callbacks(tmp_path: Path) -> None:
    own = Listener()
    plan: dict[str, Any] = {
        "learner": "random", "worlds": 3, "total_episodes": 9, "evaluate_episodes": 2, "pictures": False,
        "max_failures": 1.0, "engine": "vectorized",
    }  # fmt: skip
    remuda.train("test_callbacks:NAN_REWARD", out=tmp_path / "run", quiet=True, callbacks=[own], **plan)
    assert "failed" in own.events


def test_an_error_of_a_callback_ends_the_run_saved_and_the_others_are_told(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    class Fails(Callback):
        def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
            if rows[0]["round"] == 3:
                raise KeyError("a bug of the caller's")

    own = Listener()
    with pytest.raises(KeyError):
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[own, Fails()], **tiny)
    assert own.events[-1] == "end"
    assert own.seen["result"] is None
    assert remuda.resume(tmp_path / "run", quiet=True).result["finished"]


def test_a_resumed_run_says_which_callbacks_nobody_gave_again(
    tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[StopAtTwo(), show], **tiny)
    remuda.resume(run.path, total_episodes=9, callbacks=[show])
    said = capsys.readouterr().err
    assert "shortened from 12 to 9 episodes" in said
    assert "this run had callbacks that it has no more, StopAtTwo: give them again" in said
    assert f"remuda.resume({str(run.path)!r}, callbacks=[…])" in said
    remuda.resume(run.path, total_episodes=12, callbacks=[show, Listener(), StopAtTwo()])
    assert "callbacks that it has no more" not in capsys.readouterr().err


@pytest.mark.parametrize("hook", ["start", "collected", "learned", "evaluated", "saved", "failed"])
def test_every_hook_stops_the_run_by_returning_false(hook: str, tmp_path: Path) -> None:
    answer = np.mean([1.0]) < 0 if hook == "learned" else False  # numpy's False
    stops = type("Stops", (Callback,), {hook: lambda self, *_: answer})()
    plan: dict[str, Any] = {
        "learner": "random", "worlds": 3, "total_episodes": 30, "evaluate_episodes": 2, "pictures": False,
        "evaluate_every": 6, "checkpoint_every": 3, "max_failures": 1.0, "engine": "vectorized",
    }  # fmt: skip
    run = remuda.train("test_callbacks:NAN_REWARD", out=tmp_path / "run", quiet=True, callbacks=stops, **plan)
    assert not run.result["finished"]
    assert "(callback Stops returned False)" in (run.path / "console.log").read_text()


class Strange(Callback):
    """Has the methods of another library's callbacks."""

    def _on_step(self) -> bool:
        return False


class TooFew(Callback):
    """Has forgotten an argument."""

    def learned(self, rows: Sequence[Row]) -> None:  # type: ignore[override]
        """Nothing."""


class Asynchronous(Callback):
    """Would never run."""

    async def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:  # type: ignore[override]
        """Nothing."""


async def later(rows: list[Row]) -> None:
    """Nothing."""


def one_by_one(rows: list[Row]) -> Iterator[Row]:
    yield from rows


def show(rows: list[Row]) -> None:
    """Nothing."""


def make_stop() -> Callback:
    return StopAtTwo()


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        (Strange(), "Strange._on_step would never be called: hooks are start, collected, learned, evaluated, saved"),
        ([TooFew()], r"TooFew.learned is called with other arguments: write def learned\(self, training, rows, system"),
        ([lambda: None], "is called with the rows of each round"),
        ([StopAtTwo], r"StopAtTwo is a class, not a remuda.Callback object: did you forget the brackets, StopAtTwo"),
        (Asynchronous(), "Asynchronous.learned is async, and nothing would await it"),
        ([later], "later is async, and nothing would await it"),
        ([one_by_one], "one_by_one has a yield, so calling it would run nothing"),
        ("test_callbacks:one_by_one", "one_by_one has a yield"),
        ([3], "3 is neither a remuda.Callback object nor a function"),
        ("wandbb", "unknown callback 'wandbb': did you mean 'wandb'"),
    ],
)
def test_a_callback_that_could_not_be_called_is_refused(
    tiny: dict[str, Any], tmp_path: Path, callbacks: Any, said: str
) -> None:
    with pytest.raises(remuda.RemudaError, match=said):
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=callbacks, **tiny)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("callbacks", [None, show, ["test_callbacks:show"], "test_callbacks:show"])
def test_a_callback_alone_none_and_the_name_of_a_function_are_taken(
    tiny: dict[str, Any], tmp_path: Path, callbacks: Any
) -> None:
    assert remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=callbacks, **tiny).finished


def test_the_name_of_a_function_that_makes_a_callback(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks="test_callbacks:make_stop", **tiny)
    assert run.result["episodes"] == 6


def test_callbacks_by_name(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = remuda.train(
        "treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": ["test_callbacks:StopAtTwo"]}
    )
    assert run.result["episodes"] == 6
    assert run.plan.callbacks == ["test_callbacks:StopAtTwo"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["wandbb"], "did you mean 'wandb'"),
        (["nowhere:Class"], "callbacks: 'nowhere:Class' cannot be imported"),
        (["test_callbacks:Path"], "'test_callbacks:Path' is a class, but not a subclass of remuda.Callback"),
    ],
)
def test_a_wrong_name_is_one_sentence(tiny: dict[str, Any], tmp_path: Path, names: list[str], said: str) -> None:
    with pytest.raises(remuda.RemudaError, match=said):
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": names})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_by_a_signal_exits_with_128_and_its_number(
    words: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "remuda", "train", *words, "total_episodes=30000", "--out", str(out), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in iter(process.stderr.readline, ""):  # type: ignore[union-attr]
        if line.startswith("episodes"):
            break
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    result = json.loads(said)
    assert not result["finished"]
    assert remuda.Run(out).checkpoint().name == f"{result['episodes']:09d}"


class Terminates(Callback):
    """A signal comes while the callbacks start."""

    def start(self, training: Training) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_while_callbacks_start_stops_and_saves(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", callbacks=[Terminates()], quiet=True, **tiny)
    assert (run.stopped_by, run.result["episodes"]) == (signal.SIGTERM, 0)
    assert run.checkpoint().name == "000000000"


class Tidies(Callback):
    """Takes the rows it gets apart."""

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        for row in (*rows, system):
            row.clear()

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        scores["mean_return"].clear()
        for row in (*rows, scores):
            row.clear()


def test_what_a_callback_does_to_its_rows_is_seen_by_nobody_else(
    tiny: dict[str, Any], tmp_path: Path, trained: Any, csv_rows: Any
) -> None:
    listener, whole = Listener(), trained()
    run = remuda.train("treasurehunt", out=tmp_path / "run", callbacks=[Tidies(), listener], quiet=True, **tiny)
    assert csv_rows(run) == csv_rows(whole)
    assert run.result["evaluation"] == whole.result["evaluation"]
    assert "evaluated" in listener.events
