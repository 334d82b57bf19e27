"""Engines that cannot run here."""

from __future__ import annotations

import _posixshmem
import errno
import json
import multiprocessing
import os
import signal
import sys
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from engine_runs import ONE_WORLD_AT_A_TIME, fingerprint, refuse

import remuda
from remuda.core import capabilities
from remuda.core.errors import ConfigError, UsageError
from remuda.core.plan import Plan
from remuda.engines import choose
from remuda.engines import table as engines
from remuda.runs.settings import make_plan, spec_of
from remuda.transport import processes

SHARED_MEMORY = (os, "memfd_create") if capabilities.has_memfd() else (_posixshmem, "shm_open")
"""The function that makes shared memory here."""


def test_processes_are_available_here() -> None:
    assert processes.processes_unavailable() is None
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("processes_always_pay")
def test_the_trial_process_passes_the_warm_up_request_to_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial may start the fork server, from which all workers are forked later."""
    seen: dict[str, str] = {}

    def start(self: BaseProcess) -> None:
        seen.update(os.environ)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(BaseProcess, "start", start)
    plan = make_plan({**ONE_WORLD_AT_A_TIME, "engine": "auto"})
    assert choose.choose_engine(plan, spec_of(plan))[0].engine == "sequential"
    assert Plan(**json.loads(seen[processes.WARM_UP_VARIABLE])["plan"]).game == ONE_WORLD_AT_A_TIME["game"]
    assert {name: seen[name] for name in processes.ONE_THREAD} == processes.ONE_THREAD
    assert processes.WARM_UP_VARIABLE not in os.environ


def test_reasons_why_processes_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*SHARED_MEMORY, refuse(errno.EMFILE))
        assert processes.processes_unavailable() == "Too many open files"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "_posixshmem", None)
        assert "no shared memory" in str(processes.processes_unavailable())
    with monkeypatch.context() as patch:
        patch.setattr(BaseProcess, "start", refuse(errno.EAGAIN))
        assert processes.processes_unavailable() == "Resource temporarily unavailable"
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.current_process(), "daemon", True)
        assert "daemonic" in str(processes.processes_unavailable())
    with monkeypatch.context() as patch:
        patch.setattr(processes, "die_with_parent", os.abort)
        assert "exit code -6" in str(processes.processes_unavailable())
    with monkeypatch.context() as patch:
        patch.setattr(processes, "die_with_parent", signal.pause)
        patch.setattr(processes, "Limits", partial(processes.Limits, start=0.1))
        assert "did not end within 0 s" in str(processes.processes_unavailable())
    assert multiprocessing.active_children() == []


PROCESS_ENGINES = [engine.name for engine in engines.ENGINES.values() if engine.processes]


def assert_cannot_run(outcome: Any, engine: str, reason: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert errors == outcome.err.splitlines()[-1:]
    assert f"error: engine={engine} cannot run here: {reason}; " in errors[0]
    assert list(Path().iterdir()) == [], "something was left behind"
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("engine", PROCESS_ENGINES)
def test_an_engine_that_was_named_and_cannot_run_is_refused_in_one_line(
    cli: Any, words: list[str], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    words = [*words, "deterministic=false", "--engine", engine, "--n-workers", "2", "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(BaseProcess, "start", refuse(errno.EAGAIN))
        assert_cannot_run(cli("train", *words), engine, "Resource temporarily unavailable")
    with monkeypatch.context() as patch:
        patch.setattr(*SHARED_MEMORY, refuse(errno.EMFILE))
        assert_cannot_run(cli("train", *words), engine, "Too many open files")
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.current_process(), "daemon", True)
        reason = "this is itself a daemonic process, which may not start others"
        assert_cannot_run(cli("train", *words), engine, reason)
    assert cli("train", *words).code == 0, "the same directory is free for another try"


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), EOFError("unexpected EOF")])
def test_processes_of_an_engine_that_fails_to_start_are_ended(
    cli: Any, words: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    start, started = BaseProcess.start, []

    def start_some(self: BaseProcess) -> None:
        if len(started) == 2:
            raise error
        start(self)
        started.append(self.pid)

    monkeypatch.setattr(BaseProcess, "start", start_some)
    outcome = cli("train", *words, "--engine", "executor", "--n-workers", "3", "--out", "run")
    reason = "Too many open files" if isinstance(error, OSError) else "the fork server could not start a process"
    assert_cannot_run(outcome, "executor", reason if isinstance(error, OSError) else f"{reason}, and ended")
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_run_that_cannot_be_resumed_stays_as_it_was(
    train: Any, trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = train(engine="sequential", callback=lambda rows: rows[0]["round"] < 2)
    with monkeypatch.context() as patch:
        patch.setattr(BaseProcess, "start", refuse(errno.EAGAIN))
        with pytest.raises(ConfigError, match="engine=executor cannot run here"):
            remuda.resume(stopped.path, engine="executor", quiet=True)
    assert fingerprint(remuda.resume(stopped.path, quiet=True)) == fingerprint(trained())


def test_an_error_during_training_is_not_reported_as_a_failed_start(train: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="raised in the callback") as raised:
        train(engine="executor", n_workers=2, callback=raise_in_callback)
    assert raised.type is OSError
    assert (tmp_path / "run" / "config.yaml").exists()


def raise_in_callback(rows: Any) -> bool:
    raise OSError("raised in the callback")


def test_a_plan_that_is_refused_late_leaves_no_directory(train: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_lag"):
        train(engine="threads", max_lag=2**31)
    assert not (tmp_path / "run").exists()
