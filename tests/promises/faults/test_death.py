"""Invariants 5 and 6: nothing is lost and nothing is left behind, whoever dies, and however."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
from drill import END_S, EPISODES, PATIENCE_S, PLAN, Training

import proc
import remuda
from remuda.core.capabilities import has_fork_server
from remuda.core.errors import GameError
from remuda.engines.trainers.processes.trainers import ProcessTrainers
from remuda.runs import training
from remuda.transport import worker_pool
from remuda.transport.processes import start_process
from remuda.transport.worker_pool import WorkerPool

SURE = {"deterministic": True}
ENGINES: dict[str, dict[str, Any]] = {
    "sync": {"engine": "sync", **SURE},
    "executor": {"engine": "executor", **SURE},
    "actor-learner": {"engine": "actor-learner"},
}
SHORT = {"total_episodes": 24}
SELDOM = [pytest.param("sync", marks=pytest.mark.slow), "executor", "actor-learner"]
"""Engines to test where `sync` does what `executor` does."""


@pytest.fixture(autouse=True)
def workers_need_not_import_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports the script that started it: ours would take half a second every time."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@pytest.fixture
def faulty(tmp_path: Path) -> Callable[..., remuda.Run]:
    """Train with worker processes of this process."""

    def train(name: str = "run", quiet: bool = True, callback: Any = None, **changes: Any) -> remuda.Run:
        settings = {**PLAN, **SHORT, **changes}
        return remuda.train(
            "fault_games:FAULTY", out=tmp_path / name, quiet=quiet, callbacks=[callback] if callback else [], **settings
        )

    return train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], remuda.Run]:
    """What a run of so many episodes comes to when nothing happens to it."""
    runs: dict[int, remuda.Run] = {}

    def train(episodes: int) -> remuda.Run:
        if episodes not in runs:
            out = tmp_path_factory.mktemp("undisturbed") / "run"
            settings = {**PLAN, **SURE, "engine": "vectorized", "total_episodes": episodes}
            runs[episodes] = remuda.train("fault_games:FAULTY", out=out, quiet=True, **settings)
        return runs[episodes]

    return train


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Start `remuda train`."""
    started: list[Training] = []

    def start(**changes: Any) -> Training:
        started.append(Training(tmp_path, **changes))
        return started[-1]

    yield start
    for one in started:
        one.end()


def assert_goes_on(one: Training, cli: Any, undisturbed: Any, deterministic: bool) -> None:
    """`remuda resume` ends the run as if nothing had happened."""
    one.brake.unlink()
    outcome = cli("resume", one.out)
    assert outcome.code == 0, outcome.err
    result, whole = remuda.Run(one.out).result, undisturbed(EPISODES).result
    assert result["finished"]
    assert result["episodes"] == EPISODES
    assert result["updates_per_agent"] == whole["updates_per_agent"]
    if deterministic:
        assert result["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    "engine", ["executor", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sync", "actor-learner"))]
)
def test_killing_the_first_process(
    start: Any, cli: Any, undisturbed: Any, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    one: Training = start(**ENGINES[engine])
    one.wait(lambda: len(one.saved) >= 2)
    one.know_everybody()
    if has_fork_server():
        assert list(temporary.iterdir()), "the socket of the fork server is elsewhere"
    one.process.kill()
    one.process.wait()
    one.assert_nothing_is_left()
    assert list(temporary.iterdir()) == []
    assert not (one.out / "result.json").exists()
    assert one.saved[-1] < EPISODES
    assert_goes_on(one, cli, undisturbed, "deterministic" in ENGINES[engine])


@pytest.mark.parametrize("fault", [pytest.param("hang", marks=pytest.mark.slow), "spin"])
def test_killing_the_first_process_while_a_worker_hangs(start: Any, tmp_path: Path, fault: str) -> None:
    """Who hangs does not look whether anybody is left to work for: the kernel has to end it."""
    trap = tmp_path / "trap"
    one: Training = start(**ENGINES["executor"], fault=fault, fault_file=trap)
    one.wait(trap.exists)
    one.know_everybody()
    one.process.kill()
    one.process.wait()
    one.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("number", "engine", "to_all"),
    [
        (signal.SIGINT, "sync", True),  # Ctrl-C reaches everybody in the terminal
        # systemd and Slurm send SIGTERM to every process of a service or job.
        pytest.param(signal.SIGTERM, "actor-learner", True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "executor", True, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "executor", False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "sync", False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "actor-learner", False, marks=pytest.mark.slow),
    ],
)
def test_asking_the_first_process_to_stop(
    start: Any, cli: Any, undisturbed: Any, number: int, engine: str, to_all: bool
) -> None:
    one: Training = start(**ENGINES[engine], checkpoint_every=10 * EPISODES)
    one.wait(lambda: one.rounds >= 2)
    one.know_everybody()
    if to_all:  # the first process last: nobody's learning may have ended before it can save
        for other in one.others:
            os.kill(other.pid, number)
        one.wait(lambda before=one.rounds: one.rounds > before + 1)
        one.know_everybody()
    one.process.send_signal(number)
    assert one.process.wait(PATIENCE_S) == 128 + number, one.err
    one.assert_nothing_is_left()
    assert "Traceback" not in one.err
    assert f"remuda resume {one.out}" in one.err
    result = remuda.Run(one.out).result
    assert not result["finished"]
    assert 8 <= result["episodes"] < EPISODES
    assert one.saved == [result["episodes"]], "what it says it did is what it saved"
    assert_goes_on(one, cli, undisturbed, "deterministic" in ENGINES[engine])


def test_closing_the_terminal(start: Any, cli: Any, undisturbed: Any) -> None:
    """A hang-up reaches everybody in the terminal, and nobody can write to it any more; still it is saved."""
    mine, theirs = os.openpty()
    os.set_blocking(mine, False)
    one: Training = start(terminal=theirs, **ENGINES["executor"], checkpoint_every=10 * EPISODES)
    os.close(theirs)

    def far_enough() -> bool:
        with suppress(BlockingIOError):
            os.read(mine, 1 << 20)  # else it would wait for us to read what it says
        return one.rounds >= 2

    one.wait(far_enough)
    one.know_everybody()
    os.close(mine)
    assert one.process.wait(PATIENCE_S) == 128 + signal.SIGHUP
    one.assert_nothing_is_left()
    result = remuda.Run(one.out).result
    assert not result["finished"]
    assert one.saved == [result["episodes"]]
    assert_goes_on(one, cli, undisturbed, deterministic=True)


def assert_no_worker_is_left() -> None:
    """Whoever this process started is gone, but for the two who stay for the next run."""
    stay = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    assert {one.pid for one in proc.descendants(os.getpid())} == stay - {None}  # spawned workers need no fork server


@pytest.mark.parametrize("engine", SELDOM)
def test_stopping_before_the_workers_are_ready(
    faulty: Any, undisturbed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str
) -> None:
    """At the first start nothing is learned yet; at the second, what was learned is not with the workers yet."""

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr(worker_pool, "start_process", start_process)
        return start_process(*args)

    monkeypatch.setattr(worker_pool, "start_process", interrupted)
    run = faulty(**ENGINES[engine])
    assert (run.result["finished"], run.result["episodes"]) == (False, 0)
    assert_no_worker_is_left()
    remuda.resume(run.path, quiet=True, callbacks=[lambda rows: rows[0]["round"] < 3])
    stopped = run.result
    assert 12 <= stopped["episodes"] < SHORT["total_episodes"]
    monkeypatch.setattr(worker_pool, "start_process", interrupted)
    assert remuda.resume(run.path, quiet=True).result["episodes"] == stopped["episodes"]
    assert run.result["weights_sha256"] == stopped["weights_sha256"]
    result, whole = remuda.resume(run.path, quiet=True).result, undisturbed(SHORT["total_episodes"]).result
    assert result["finished"]
    assert result["updates_per_agent"] == whole["updates_per_agent"]
    if engine != "actor-learner":
        assert result["weights_sha256"] == whole["weights_sha256"]


REASONS = {
    "kill": "was killed by SIGKILL (last: playing, turn 6)",
    "segfault": "was killed by SIGSEGV (last: playing, turn 6)",
    "exit": "ended with exit code 3 (last: playing, turn 6)",
}


@pytest.mark.parametrize(
    ("engine", "fault"), [("sync", "kill"), ("executor", "kill"), ("sync", "segfault"), ("executor", "exit")]
)
def test_a_collecting_worker_that_dies(
    faulty: Any, undisturbed: Any, csv_rows: Any, capfd: Any, tmp_path: Path, engine: str, fault: str
) -> None:
    """It costs its episode, which is played again; the person is told, and nothing comes out differently."""
    run = faulty(quiet=False, **ENGINES[engine], fault=fault, fault_file=str(tmp_path / "trap"))
    told = re.findall(rf"collect-[01] {re.escape(REASONS[fault])}", capfd.readouterr().err)
    assert len(told) == 1
    assert told[0] in (run.path / "console.log").read_text()
    assert run.result["finished"]
    whole = undisturbed(SHORT["total_episodes"])
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert csv_rows(run) == csv_rows(whole)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[WorkerPool]:
    """The worker pools of trainings in this process, in the order in which they are made."""
    made: list[WorkerPool] = []

    def make(*args: Any, **kwargs: Any) -> WorkerPool:
        made.append(WorkerPool(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(training, "WorkerPool", make)
    return made


def kill_after(round_: int, pools: list[WorkerPool], name: str) -> Callable[[list[dict[str, Any]]], None]:
    """A callback that kills a worker once this round is learned."""

    def callback(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == round_:
            worker = next(worker for worker in pools[-1].workers if worker.name == name)
            assert worker.process is not None
            assert worker.process.pid is not None
            os.kill(worker.process.pid, signal.SIGKILL)

    return callback


@pytest.mark.parametrize("engine", SELDOM)
def test_a_collecting_worker_killed_between_rounds(faulty: Any, undisturbed: Any, pools: Any, engine: str) -> None:
    run = faulty(callback=kill_after(2, pools, "collect-0"), **ENGINES[engine])
    result, whole = run.result, undisturbed(SHORT["total_episodes"]).result
    assert "collect-0 was killed by SIGKILL" in (run.path / "console.log").read_text()
    assert result["finished"]
    assert result["episodes"] == whole["episodes"]
    assert result["updates_per_agent"] == whole["updates_per_agent"]
    if engine != "actor-learner":
        assert result["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize("engine", ["sync", "executor"])
def test_a_collecting_worker_that_hangs(
    faulty: Any, undisturbed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str
) -> None:
    run = faulty(**ENGINES[engine], turn_limit_s=2.0, fault="hang", fault_file=str(tmp_path / "trap"))
    told = (run.path / "console.log").read_text()
    assert re.search(r"sent no heartbeat for \d+ s and was killed \(last: playing, turn 6\)", told)
    assert run.result["weights_sha256"] == undisturbed(SHORT["total_episodes"]).result["weights_sha256"]


def test_a_game_that_kills_whoever_plays_it_is_given_up(faulty: Any) -> None:
    with pytest.raises(GameError, match=r"10 failures .*the first: collect-\d: was killed by SIGKILL in turn 6"):
        faulty(**ENGINES["executor"], fault="kill")
    assert_no_worker_is_left()


@pytest.mark.parametrize("round_", [1, 3])
def test_a_learning_worker_that_dies(faulty: Any, pools: Any, round_: int) -> None:
    """It is replaced and goes on from the last checkpoint; what its agents learned since then is lost, and said."""
    run = faulty(callback=kill_after(round_, pools, "learn-0"), **ENGINES["actor-learner"])
    assert run.result["finished"]
    told = (run.path / "console.log").read_text()
    assert re.search(r"agents? .*\d+ updates skipped, learn-0 was killed by SIGKILL", told)
    assert run.result["failures"]["updates_skipped"] <= 4
    assert [one["restarts"] for one in run.result["processes"] if one["name"] == "learn-0"] == [1]


def test_a_learning_worker_that_dies_before_it_has_its_state(
    faulty: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faulty(callback=lambda rows: rows[0]["round"] < 3, **ENGINES["actor-learner"])
    start = ProcessTrainers.start

    def kill_first(trainers: ProcessTrainers) -> None:
        process = trainers._workers[0].process
        assert process is not None
        process.kill()
        process.join(END_S)
        start(trainers)

    monkeypatch.setattr(ProcessTrainers, "start", kill_first)
    result = remuda.resume(tmp_path / "run", quiet=True).result
    assert result["finished"]
    assert result["failures"]["updates_skipped"] == 0, "the checkpoint it was resumed from is still the newest"


def test_a_learner_waiting_for_the_rest_of_its_round_is_not_taken_for_hung(
    faulty: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A round may take as long as it likes to play: only who is at one turn or one update for long is hung."""
    brake = tmp_path / "brake"
    brake.touch()
    slow = {"brake": str(brake), "pause_s": 0.35, "turns": 8}
    plan = {"worlds": 1, "n_workers": 1, "episodes_per_update": 2, "total_episodes": 2}
    limits = {"turn_limit_s": 1.5, "update_limit_s": 1.5}
    run = faulty(**ENGINES["actor-learner"], **slow, **plan, **limits, callback=lambda rows: brake.unlink())
    assert run.result["finished"]
    assert "no heartbeat" not in (run.path / "console.log").read_text()


@proc.with_fork_server
def test_a_worker_dies_while_the_fork_server_is_stopped(faulty: Any, undisturbed: Any) -> None:
    """It can neither report the death nor start another worker: it is replaced, with all workers."""

    def callback(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 2:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
            (worker, *_) = [child.pid for child in multiprocessing.active_children() if child.name == "collect-1"]
            os.kill(worker, signal.SIGKILL)

    run = faulty(callback=callback, **ENGINES["executor"])
    assert run.result["weights_sha256"] == undisturbed(SHORT["total_episodes"]).result["weights_sha256"]


@proc.with_fork_server
def test_killing_the_fork_server(faulty: Any, undisturbed: Any) -> None:
    """All workers die with it; they are replaced, from a new one."""
    before = forkserver._forkserver._forkserver_pid

    def callback(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 2:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)

    run = faulty(callback=callback, **ENGINES["executor"])
    assert forkserver._forkserver._forkserver_pid != before
    assert run.result["weights_sha256"] == undisturbed(SHORT["total_episodes"]).result["weights_sha256"]
    assert "collect-1" in (run.path / "console.log").read_text()
