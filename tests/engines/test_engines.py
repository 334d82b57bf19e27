"""The switches of `parallel`, `engine: auto`, the number of workers, and engines that cannot run here."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

import remuda
from remuda.core import machine
from remuda.core.errors import ConfigError, UsageError
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.core.yamlfile import read_assignments
from remuda.engines import build, choose, context
from remuda.engines import table as engines
from remuda.engines.turn_cost import measure_turn
from remuda.learners.iqn.learner import IQN
from remuda.runs.settings import make_plan, spec_of
from remuda.testing.broken_games import BROKEN
from remuda.transport import processes

ALL_SWITCHES = (
    "{enabled: true, parallel_actions: true, parallel_training: true, async_learning: true, train_interval: 4, "
    "num_workers: null, use_threads: false}"
)
SWITCHES = ("use_threads", "async_learning", "parallel_training")
COMBINATIONS = [dict(zip(SWITCHES, values, strict=True)) for values in product((True, False), repeat=3)]
ONE_WORLD_AT_A_TIME: dict[str, Any] = {
    "game": "remuda.testing:BUSY", "turns": 6, "work": 0, "worlds": 2, "total_episodes": 4, "evaluate_episodes": 2,
    "layer": 8, "quantiles": 4, "acting_quantiles": 4, "frames": 1, "batch_size": 4, "replay_size": 64,
    "deterministic": True, "device": "cpu", "pictures": False,
}  # fmt: skip
"""A plan with a game that plays one world at a time."""


def plan_of(**settings: Any) -> Plan:
    return make_plan({"game": "treasurehunt", "worlds": 5, **settings})


def console_lines(run: remuda.Run, text: str) -> list[str]:
    """Lines of the console log that contain a text."""
    return [line for line in (run.path / "console.log").read_text().splitlines() if text in line]


def fingerprint(run: remuda.Run) -> str:
    return str(run.result["weights_sha256"])


@pytest.mark.parametrize("switches", COMBINATIONS, ids=str)
def test_the_engine_works_as_the_switches_say(switches: dict[str, bool]) -> None:
    engine = engines.ENGINES[plan_of(parallel=switches).engine]
    assert engine.processes == (not switches["use_threads"])
    assert engine.free == switches["async_learning"]
    learns_in_processes = not switches["use_threads"] and switches["async_learning"] and switches["parallel_training"]
    assert ("processes" in engine.trainers) == learns_in_processes
    assert engine.name != "sequential"


@pytest.mark.parametrize("switches", COMBINATIONS, ids=str)
def test_switches_that_are_not_enabled_mean_the_sequential_engine(switches: dict[str, bool]) -> None:
    assert plan_of(parallel={**switches, "enabled": False}).engine == "sequential"


def test_switches_that_are_left_out_have_defaults() -> None:
    full = yaml.safe_load(ALL_SWITCHES)
    assert plan_of(parallel={}) == plan_of(parallel={**full, "train_interval": 1}, worlds=5).model_copy(
        update={"episodes_per_update": None}
    )


def test_the_switches_become_settings_of_the_plan() -> None:
    given = {"parallel_actions": False, "train_interval": 4, "num_workers": 3, "parallel_training": False}
    settings = {"parallel_actions": False, "episodes_per_update": 20, "n_workers": 3, "engine": "executor"}
    assert plan_of(parallel=given) == plan_of(**settings)
    assert plan_of(parallel={**given, "enabled": False}) == plan_of(
        **{**settings, "engine": "sequential", "n_workers": None}
    )


def test_a_file_an_argument_and_a_keyword_mean_the_same(tmp_path: Path, cli: Any, words: list[str]) -> None:
    by_keyword = plan_of(parallel=yaml.safe_load(ALL_SWITCHES))
    assert (
        make_plan({"game": "treasurehunt", "worlds": 5, **read_assignments([f"parallel={ALL_SWITCHES}"])}) == by_keyword
    )
    assert by_keyword.engine == "actor-learner"
    switches = "{enabled: true, use_threads: true, train_interval: 2, parallel-actions: false}"
    (tmp_path / "plan.yaml").write_text(f"parallel: {switches}\n")
    outcomes = [
        cli("train", *words, "--config", tmp_path / "plan.yaml", "--out", "file"),
        cli("train", *words, f"parallel={switches}", "--out", "argument"),
        cli("train", *words, "--parallel", switches, "--out", "flag"),
    ]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    assert remuda.Run("file").plan == remuda.Run("argument").plan == remuda.Run("flag").plan
    plan = remuda.Run("file").plan
    assert (plan.engine, plan.parallel_actions, plan.episodes_per_update) == ("threads", False, 6)
    for outcome in outcomes:
        lines = [line for line in outcome.err.splitlines() if line.startswith("parallel: {enabled: true, use_threads")]
        assert len(lines) == 1
        assert "→ engine threads (" in lines[0]


def test_the_saved_plan_can_be_given_again(trained: Any) -> None:
    """The switches are translated, not stored: a config never contains the same setting twice."""
    run = trained(parallel={"use_threads": True, "async_learning": False})
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert "parallel" not in config
    assert "train_interval" not in config
    assert make_plan(config) == run.plan


@pytest.mark.parametrize("change", [{}, {"parallel_actions": False, "train_interval": 2}], ids=str)
def test_switches_change_the_engine_and_not_the_result(trained: Any, change: dict[str, Any]) -> None:
    settings = {"parallel_actions": False, "episodes_per_update": 6} if change else {}
    sequential = fingerprint(trained(engine="sequential", **settings))
    off = trained(parallel={"enabled": False, **change})
    assert off.plan.engine == "sequential"
    assert fingerprint(off) == sequential
    for switches in COMBINATIONS:
        if engines.ENGINES[plan_of(parallel=switches).engine].deterministic:
            run = trained(parallel={**switches, "num_workers": 2, **change})
            assert fingerprint(run) == sequential, run.plan.engine


def test_switches_not_enabled_are_exactly_sequential_also_without_deterministic(trained: Any) -> None:
    off = trained(parallel={"enabled": False, "num_workers": 7}, deterministic=False)
    assert fingerprint(off) == fingerprint(trained(engine="sequential", deterministic=False))
    assert console_lines(off, "workers on") == []


def test_switches_whose_engine_is_not_deterministic_are_refused_with_deterministic(train: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"actor-learner cannot promise deterministic=true.*parallel_training: false"):
        train(parallel={})
    assert not (tmp_path / "run").exists()


def test_actors_and_learners_train(train: Any) -> None:
    run = train(parallel={"num_workers": 2}, deterministic=False)
    assert run.result["finished"]
    assert run.result["engine"] == "actor-learner"
    assert (
        len(console_lines(run, "parallel: {num_workers: 2} → engine actor-learner (2 collecting and 1 learning pro"))
        == 1
    )


def test_train_interval_counts_epochs() -> None:
    assert plan_of(train_interval=4).episodes_per_update == 20
    assert make_plan({"game": "treasurehunt", "train-interval": 2}).episodes_per_update == 32
    assert make_plan({"preset": "workflow_rl", "train_interval": 3}).episodes_per_update == 300
    assert make_plan({"preset": "workflow_rl", "parallel": {"train_interval": 2}}).episodes_per_update == 200
    assert make_plan({"preset": "workflow_rl", "parallel": {}}).episodes_per_update == 100


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"parallel": {}, "engine": "sync"}, "parallel and engine"),
        ({"parallel": {"enabled": False}, "engine": "sequential"}, "parallel and engine"),
        ({"parallel": {}, "n_workers": 2}, "parallel and n_workers"),
        ({"parallel": {"num_workers": 2}, "n-workers": 2}, "parallel and n_workers"),
        ({"parallel": {}, "n_learners": 2}, "parallel and n_learners"),
        ({"parallel": {}, "learners": 2}, "parallel and n_learners"),
        ({"parallel": {}, "train_interval": 2}, "parallel and train_interval"),
        ({"parallel": {"train_interval": 2}, "train_interval": 2}, "parallel and train_interval"),
        ({"parallel": {"train_interval": 2}, "episodes_per_update": 9}, "train_interval and episodes_per_update"),
        ({"parallel": {"parallel_actions": True}, "parallel_actions": False}, "parallel and parallel_actions"),
        ({"train_interval": 2, "episodes_per_update": 32}, "train_interval and episodes_per_update"),
        ({"learners": 2, "n_learners": 2}, "learners and n_learners"),
        ({"learners": "auto", "n_learners": 2}, "learners and n_learners"),
    ],
    ids=str,
)
def test_the_same_setting_twice_is_refused(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan_of(**settings)
    assert str(refusal.value) == f"{names} say the same thing twice: give one of them"


def test_settings_that_the_switches_leave_out_can_be_given_beside_them() -> None:
    plan = plan_of(parallel={"enabled": False}, parallel_actions=False, episodes_per_update=7)
    assert (plan.parallel_actions, plan.episodes_per_update) == (False, 7)
    assert plan_of(parallel=None, engine="sync").engine == "sync"
    assert plan_of(parallel={}, learners="auto") == plan_of(parallel={})


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"parallel": {"use_thread": True}}, "unknown option of parallel 'use_thread': did you mean 'use_threads'?"),
        ({"parallel": {"n_workers": 2}}, "did you mean 'num_workers'?"),
        ({"parallel": {3: 4}}, "unknown option of parallel '3'"),
        ({"parallel": {"enabled": "perhaps"}}, "enabled='perhaps' (parallel) should be"),
        ({"parallel": {"num_workers": 0}}, "num_workers=0 (parallel) should be greater"),
        ({"parallel": {"num_workers": 5000}}, "num_workers=5000 (parallel) should be less"),
        ({"parallel": {"train_interval": 0}}, "train_interval=0 (parallel) should be greater"),
        ({"parallel": True}, "parallel=True should be a mapping"),
        ({"parallel": [1]}, "parallel=[1] should be a mapping"),
        ({"paralel": {}}, "did you mean 'parallel'?"),
        ({"train_intervals": 3}, "did you mean 'train_interval'?"),
        ({"train_interval": 0}, "train_interval=0 should be a whole number"),
        ({"train_interval": 1.5}, "train_interval=1.5 should be a whole number"),
        ({"learners": 0}, "n_learners=0"),
        ({"learners": -1}, "n_learners=-1"),
        ({"learners": True}, "learners=True should be a mapping"),
        ({"learners": 1.5}, "learners=1.5 should be a mapping"),
        ({"learners": "many"}, "learners='many' should be a mapping"),
    ],
    ids=str,
)
def test_bad_switches_are_refused_in_one_line(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan_of(**settings)
    assert match in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_learners_may_be_a_number_or_a_mapping() -> None:
    assert plan_of(learners=3) == plan_of(n_learners=3)
    assert plan_of(learners="auto") == plan_of()
    assert plan_of(learners={0: "random"}).learners == {"0": "random"}


def test_the_settings_given_are_not_changed() -> None:
    settings = {"game": "treasurehunt", "parallel": {"train_interval": 2}}
    make_plan(settings)
    assert settings == {"game": "treasurehunt", "parallel": {"train_interval": 2}}


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
        ({"engine": "executor", "n_workers": 2, "n_learners": 9}, []),
    ],
    ids=str,
)
def test_more_workers_than_cores_cause_a_warning(
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


def test_auto_chooses_vectorized_where_the_game_plays_many_worlds_at_once(
    trained: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        choose, "processes_unavailable", lambda request: pytest.fail("a trial process was started for nothing")
    )
    run = train(engine="auto")
    assert yaml.safe_load((run.path / "config.yaml").read_text())["engine"] == "vectorized"
    assert len(console_lines(run, "engine: auto (the game plays many worlds at once) → engine vectorized (")) == 1
    assert fingerprint(run) == fingerprint(trained(engine="vectorized"))


@pytest.fixture
def processes_always_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as long."""
    monkeypatch.setattr(choose, "PROCESSES_PAY_S", 0.0)


@pytest.mark.usefixtures("processes_always_pay")
def test_auto_chooses_processes_where_the_game_plays_one_world_at_a_time(tmp_path: Path) -> None:
    run = remuda.train(out=tmp_path / "run", quiet=True, n_workers=2, **ONE_WORLD_AT_A_TIME)
    assert run.plan.engine == run.result["engine"] == "executor"
    (line,) = console_lines(run, "engine: auto (the game plays one world at a time")
    assert "→ engine executor (2 collecting pro" in line


def test_auto_starts_no_processes_for_a_short_run(tmp_path: Path) -> None:
    run = remuda.train(out=tmp_path / "run", quiet=True, **ONE_WORLD_AT_A_TIME)
    assert run.result["engine"] == "vectorized"
    assert len(console_lines(run, "less than starting processes")) == 1


@pytest.mark.usefixtures("processes_always_pay")
def test_the_weights_do_not_depend_on_what_auto_chooses(tmp_path: Path) -> None:
    chosen = remuda.train(out=tmp_path / "chosen", quiet=True, n_workers=2, **ONE_WORLD_AT_A_TIME)
    plain = remuda.train(out=tmp_path / "plain", quiet=True, engine="sequential", **ONE_WORLD_AT_A_TIME)
    assert chosen.result["engine"] == "executor"
    assert fingerprint(chosen) == fingerprint(plain)


def test_auto_uses_more_workers_than_cores_for_turns_that_wait() -> None:
    plan = make_plan(
        {"game": "remuda.testing.slow_games:SLOW", "worlds": 12, "engine": "auto", "total_episodes": 10**6}
    )
    chosen, why = choose.choose_engine(plan, spec_of(plan))
    assert (chosen.engine, chosen.deterministic) == ("executor", True)
    assert cores() < (chosen.n_workers or 0) <= 12
    assert "mostly waits" in why


def test_a_game_that_raises_while_it_is_measured_is_left_to_training() -> None:
    assert measure_turn(BROKEN["raises"], {}) is None


@pytest.mark.usefixtures("processes_always_pay")
def test_auto_chooses_sequential_where_processes_are_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "processes_unavailable", lambda request: "none are left")
    run = remuda.train(out=tmp_path / "run", quiet=True, engine="auto", **ONE_WORLD_AT_A_TIME)
    assert run.plan.engine == run.result["engine"] == "sequential"
    assert run.result["finished"]
    line = "engine: auto (worker processes cannot be started here: none are left) → engine sequential (1 thread)"
    assert len(console_lines(run, line)) == 1


def test_a_run_can_be_resumed_with_auto(train: Any, trained: Any) -> None:
    stopped = train(engine="sequential", callback=lambda rows: rows[0]["round"] < 2)
    again = remuda.resume(stopped.path, engine="auto", quiet=True)
    assert again.result["engine"] == "vectorized"
    assert fingerprint(again) == fingerprint(trained())


def test_auto_is_listed_and_suggested(cli: Any) -> None:
    assert "auto: " in cli("engines").out
    assert "use_threads" in cli("settings").out
    assert "did you mean 'auto'?" in cli("train", "treasurehunt", "--engine", "atuo").err


def refuse(number: int) -> Callable[..., Any]:
    """A function that fails as a system call does that has run out of something."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


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
        patch.setattr(os, "memfd_create", refuse(errno.EMFILE))
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
        patch.setattr(os, "memfd_create", refuse(errno.EMFILE))
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
