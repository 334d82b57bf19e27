"""Weights & Biases and MLflow: what they are told, and that they can never end or hold up a run. All offline."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tracker_files import client, mlflow_run, of_mlflow, of_wandb, offline_runs, table, wandb_processes

import proc
import remuda
from remuda.core.errors import ConfigError
from remuda.runs.callbacks import tracker
from remuda.runs.callbacks import wandb as wandb_callback
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.callbacks.mlflow import MLflow
from remuda.runs.callbacks.wandb import WeightsAndBiases
from remuda.testing import BROKEN

NAN_REWARD = BROKEN["nanreward"]
NOWHERE = "http://127.0.0.1:9"
"""An address of this machine where nobody listens."""
FAILING: dict[str, Any] = {
    "learner": "random", "worlds": 3, "total_episodes": 9, "evaluate_episodes": 2, "pictures": False,
    "max_failures": 1.0, "engine": "vectorized",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No telemetry, no network, no files outside the test's folder, no login of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "_MLFLOW_", "DATABRICKS_")):
            monkeypatch.delenv(name)
    for name, value in {
        "DO_NOT_TRACK": "true",
        "NETRC": str(tmp_path / "netrc"),
        "WANDB_MODE": "offline",
        "WANDB_BASE_URL": NOWHERE,
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",  # since MLflow 3 it has to be asked for; SQLite would need SQLAlchemy
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        (tmp_path / "wb").mkdir(exist_ok=True)
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wb"))


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the logger "remuda" was told."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines()
    tracker.LOGGER.addHandler(handler)
    yield lines
    tracker.LOGGER.removeHandler(handler)


class StopAtTwo(Callback):
    """Ends the run in its second round."""

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        if rows[0]["round"] == 2:
            training.stop("it is enough")


def test_wandb_has_the_config_the_metrics_and_the_result(
    trained: Any, tiny: dict[str, Any], tmp_path: Path, said: list[str]
) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": ["wandb"]})
    (own,) = offline_runs(tmp_path / "wb")
    assert (own.project, own.name, own.exit_code) == ("remuda", "run", 0)
    assert json.loads((run.path / "wandb.json").read_text()) == {"id": own.run_id}
    assert own.config["total_episodes"] == 12
    assert own.config["options"]["turns"] == 12
    assert own.step_metrics["*"] == "episodes"
    for agent in (0, 1):
        for name in ("return", "loss"):
            logged = of_wandb(own.history, f"train/{name}/foragers{agent}")
            assert logged == pytest.approx(table(run, "metrics.csv", name, agent), rel=1e-5)
    both = [of_wandb(own.history, f"train/return/foragers{agent}") for agent in (0, 1)]
    assert of_wandb(own.history, "train/return/mean") == {k: (both[0][k] + both[1][k]) / 2 for k in (3, 6, 9, 12)}
    assert of_wandb(own.history, "system/lag_mean") == {3: 0, 6: 0, 9: 0, 12: 0}
    assert of_wandb(own.history, "evaluate/total_return") == {12: run.result["evaluation"]["total_return"]}
    assert set(of_wandb(own.history, "evaluate/return/foragers1")) == {12}
    assert own.summary["result/weights_sha256"] == run.result["weights_sha256"]
    assert own.summary["result/evaluation/total_return"] == run.result["evaluation"]["total_return"]
    assert run.result["weights_sha256"] == trained().result["weights_sha256"]
    assert said == []
    assert wandb_processes() == []


def test_mlflow_has_the_config_the_metrics_and_the_result(
    tiny: dict[str, Any], tmp_path: Path, said: list[str]
) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": ["mlflow"]})
    own = mlflow_run(run)
    assert (own.info.run_name, own.info.status) == ("run", "FINISHED")
    assert client().get_experiment(own.info.experiment_id).name == "remuda"
    assert own.data.params["total_episodes"] == "12"
    assert own.data.params["options.turns"] == "12"
    for agent in (0, 1):
        for name in ("return", "loss"):
            logged = dict(of_mlflow(run, f"train/{name}/foragers{agent}"))
            assert logged == pytest.approx(table(run, "metrics.csv", name, agent), rel=1e-5)
    both = [dict(of_mlflow(run, f"train/return/foragers{agent}")) for agent in (0, 1)]
    assert of_mlflow(run, "train/return/mean") == [(k, (both[0][k] + both[1][k]) / 2) for k in (3, 6, 9, 12)]
    assert of_mlflow(run, "system/lag_mean") == [(3, 0), (6, 0), (9, 0), (12, 0)]
    assert of_mlflow(run, "evaluate/total_return") == [(12, run.result["evaluation"]["total_return"])]
    assert of_mlflow(run, "result/agent_steps") == [(12, run.result["agent_steps"])]
    assert own.data.tags["result/weights_sha256"] == run.result["weights_sha256"]
    assert said == []


def test_mlflow_takes_a_database(tiny: dict[str, Any], tmp_path: Path, said: list[str]) -> None:
    pytest.importorskip("sqlalchemy", reason="MLflow needs it for SQLite")
    pytest.importorskip("alembic", reason="MLflow needs it for SQLite")
    import mlflow

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with warnings.catch_warnings(action="ignore"):  # MLflow uses what SQLAlchemy deprecates
        run = remuda.train(
            "treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[MLflow("mine", tracking_uri=uri)], **tiny
        )
        reader = mlflow.MlflowClient(tracking_uri=uri)
        (own,) = reader.search_runs([reader.get_experiment_by_name("mine").experiment_id])
        points = reader.get_metric_history(own.info.run_id, "train/return/foragers0")
    assert {point.step: point.value for point in points} == pytest.approx(
        table(run, "metrics.csv", "return", 0), rel=1e-5
    )
    assert own.info.status == "FINISHED"
    assert said == []


def test_options_from_python(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    callbacks = [WeightsAndBiases("mine", name="first", dir=str(tmp_path / "other")), MLflow(experiment="mine")]
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=callbacks, **tiny)
    (own,) = offline_runs(tmp_path / "other")
    assert (own.project, own.name) == ("mine", "first")
    assert client().get_experiment(mlflow_run(run).info.experiment_id).name == "mine"


def test_a_resumed_run_continues_the_same_runs_of_the_trackers(
    tiny: dict[str, Any], tmp_path: Path, said: list[str]
) -> None:
    names = ["wandb", "mlflow", "test_trackers:StopAtTwo"]
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": names})
    assert mlflow_run(run).info.status == "KILLED"
    run_id = mlflow_run(run).info.run_id
    run = remuda.resume(run.path, quiet=True)
    assert run.result["finished"]
    first, second = offline_runs(tmp_path / "wb")
    assert first.run_id == second.run_id
    steps = [list(of_wandb(own.history, "train/return/foragers0")) for own in (first, second)]
    assert steps == [[3, 6], [9, 12]]
    assert mlflow_run(run).info.run_id == run_id
    assert mlflow_run(run).info.status == "FINISHED"
    assert [step for step, _ in of_mlflow(run, "train/return/foragers0")] == [3, 6, 9, 12]
    assert said == []


def test_an_extended_run_has_its_new_length(tiny: dict[str, Any], tmp_path: Path, said: list[str]) -> None:
    settings = {**tiny, "total_episodes": 6, "callbacks": ["wandb", "mlflow"]}
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **settings)
    run = remuda.resume(run.path, quiet=True, total_episodes=12)
    assert offline_runs(tmp_path / "wb")[1].config["total_episodes"] == 12
    own = mlflow_run(run).data
    assert (own.params["total_episodes"], own.tags["config.total_episodes"]) == ("6", "12")
    assert "config.seed" not in own.tags
    assert own.metrics["result/episodes"] == 12
    assert said == []


def test_a_run_that_mlflow_no_longer_has_becomes_a_new_one(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    names = ["mlflow", "test_trackers:StopAtTwo"]
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": names})
    before = mlflow_run(run).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    run = remuda.resume(run.path, quiet=True)
    assert mlflow_run(run).info.run_id != before
    assert [step for step, _ in of_mlflow(run, "train/return/mean")] == [9, 12]
    assert said == []


def test_failures_reach_the_trackers(tmp_path: Path) -> None:
    callbacks = ["wandb", "mlflow"]
    run = remuda.train("test_trackers:NAN_REWARD", out=tmp_path / "run", quiet=True, **FAILING, callbacks=callbacks)
    (own,) = offline_runs(tmp_path / "wb")
    assert own.alerts
    assert own.alerts[0] in (run.path / "console.log").read_text()
    assert own.summary["last_failure"] == mlflow_run(run).data.tags["last_failure"]


def test_a_run_that_an_error_ends_has_failed(tiny: dict[str, Any], tmp_path: Path) -> None:
    class Fails(Callback):
        def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
            raise KeyError("a bug of the caller's")

    callbacks = [WeightsAndBiases(), MLflow(), Fails()]
    with pytest.raises(KeyError):
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=callbacks, **tiny)
    (own,) = offline_runs(tmp_path / "wb")
    assert own.exit_code == 1
    assert mlflow_run(remuda.Run(tmp_path / "run")).info.status == "FAILED"
    assert wandb_processes() == []


@pytest.mark.parametrize(("key", "reason"), [("", "No API key configured"), ("0" * 40, "Timed out initializing run")])
def test_without_login_or_network_wandb_logs_offline(
    tiny: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
    key: str,
    reason: str,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setitem(wandb_callback.SETTINGS, "init_timeout", 1.0)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("TERM", "xterm")
    for stream in ("stdin", "stderr"):  # on a terminal, wandb would ask for a key and wait
        monkeypatch.setattr(f"wandb.errors.term._sys_{stream}_isatty", lambda: True)
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": ["wandb"]})
    assert run.result["finished"]
    (own,) = offline_runs(tmp_path / "wb")
    assert list(of_wandb(own.history, "train/return/mean")) == [3, 6, 9, 12]
    assert len(said) == 1
    assert said[0].startswith(f"Weights & Biases: {reason}")
    assert "wandb sync " in said[0]
    assert Path(said[0].partition("wandb sync ")[2].partition(" (")[0]).is_dir()
    assert wandb_processes() == []


def test_a_tracker_that_cannot_write_does_not_end_the_run(
    tiny: dict[str, Any], tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    callbacks = [MLflow(tracking_uri=(tmp_path / "file").as_uri()), MLflow(tracking_uri=NOWHERE)]
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=callbacks, **tiny)
    assert run.result["finished"]
    assert len(said) == 2
    assert all(line.startswith("MLflow: ") for line in said)


def test_a_server_that_never_answers_does_not_hold_up_the_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(tracker, "END_LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections and is silent
        callback = MLflow(tracking_uri=f"http://127.0.0.1:{server.getsockname()[1]}")
        run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[callback], **tiny)
    assert run.result["finished"]
    assert said == ["MLflow: it did not finish within 0 s, so the end of the run may be missing (the run goes on)"]


class Slow(tracker.Tracker):
    """A tracker that opens only when it is told to, and fails at one step."""

    package, title, id_pattern = "json", "Slow", r"[a-z]+"

    def __init__(self) -> None:
        super().__init__()
        self.ready = threading.Event()
        self.steps: list[int] = []

    def open(self, module: Any, training: Training, run_id: str | None) -> str:
        assert self.ready.wait(30)
        return "abc"

    def log(self, values: Mapping[str, float], episodes: int) -> None:
        if episodes == 3:
            raise OSError("no network\nat all")
        self.steps.append(episodes)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self.steps.append(-1)


class Release(Callback):
    """Opens the slow tracker in the last round."""

    def __init__(self, slow: Slow) -> None:
        self.slow = slow

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        if rows[0]["round"] == 4:
            self.slow.ready.set()


def test_the_run_does_not_wait_for_its_tracker_and_one_error_is_said_once(
    tiny: dict[str, Any], tmp_path: Path, said: list[str]
) -> None:
    slow = Slow()
    remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[slow, Release(slow)], **tiny)
    assert slow.steps == [6, 9, 12, 12, -1]  # the last one is the evaluation
    assert said == ["Slow: no network (the run goes on)"]


def test_what_a_tracker_cannot_take_in_time_is_dropped(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(tracker, "MAX_WAITING", 2)
    slow = Slow()
    remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, callbacks=[slow, Release(slow)], **tiny)
    assert len(slow.steps) < 5
    assert slow.steps[-1] == -1
    assert said == ["Slow: it is too slow for this run, so some rounds are not logged (the run goes on)"]


@pytest.mark.parametrize(("name", "title"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow")])
def test_a_missing_package_is_one_sentence(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, title: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as error:
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **{**tiny, "callbacks": [name]})
    assert str(error.value) == f"callbacks=[{name}] needs {title}: pip install 'remuda-rl[{name}]'"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"id": 3}', '{"id": "../../x"}', '{"id": "a b"}', '{"id": ""}', '{"id": "a\\n"}',
     "[" * 9000, '{"id": "' + "a" * 200 + '"}'],
)  # fmt: skip
def test_an_id_file_is_data(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wandb.json"
    path.write_text(text)
    assert tracker.read_id(path, WeightsAndBiases.id_pattern) is None
    tracker.write_id(path, "abc-123")
    assert tracker.read_id(path, WeightsAndBiases.id_pattern) == "abc-123"
    assert tracker.read_id(path, MLflow.id_pattern) is None
    assert tracker.read_id(tmp_path / "nowhere.json", MLflow.id_pattern) is None


def test_the_packages_are_not_imported_before_a_run_starts() -> None:
    check = (
        "import sys, remuda.runs.callbacks.wandb, remuda.runs.callbacks.mlflow\n"
        "print([name for name in ('wandb', 'mlflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_killed_run_leaves_no_process_of_wandb_and_continues(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "remuda", "train", *words, "total_episodes=30000", "callbacks=[wandb]"]
    own = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def has_logged() -> bool:  # wandb writes blocks of 32 KiB; a kill loses the last one
        files = (tmp_path / "wb").glob("wandb/offline-run-*/*.wandb")
        return (out / "wandb.json").exists() and any(path.stat().st_size >= 32 * 1024 for path in files)

    try:
        proc.wait(has_logged, 120)
        others = proc.descendants(own.pid)
        assert any("wandb-core" in other.command for other in others)
    finally:
        own.kill()
        own.wait()
    proc.wait(lambda: not any(other.alive for other in others), 10, lambda: str([o.command for o in others if o.alive]))
    remuda.resume(out, quiet=True, callbacks=[lambda rows: False])
    first, second = offline_runs(tmp_path / "wb")
    assert first.run_id == second.run_id == json.loads((out / "wandb.json").read_text())["id"]
    assert first.history
    assert first.exit_code is None
