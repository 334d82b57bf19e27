"""Invariant 4: stop and resume equals never stopping."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import remuda
from remuda.core.errors import RunError
from remuda.core.fragment import Purpose
from remuda.engines.collectors.inline import InlineCollectors
from remuda.runs.recorder import BackgroundWriter

PLANS: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "sequential, lag": {"engine": "sequential", "lag": 1},
    "vectorized": {"engine": "vectorized", "n_workers": 2},
    "vectorized, lag": {"engine": "vectorized", "n_workers": 2, "lag": 1},
}
TESTED = {"total_episodes": 15, "evaluate_every": 3}
LONG = {"total_episodes": 240, "checkpoint_every": 30, "keep_checkpoints": 3}
PATIENCE_S = 60.0


def stop_at(round_: int) -> Callable[[list[dict[str, Any]]], bool | None]:
    """A callback that ends the run once this round is learned."""
    return lambda rows: False if rows[0]["round"] >= round_ else None


def assert_same(run: remuda.Run, whole: remuda.Run, csv_rows: Any) -> None:
    assert run.result["finished"]
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert run.result["updates_per_agent"] == whole.result["updates_per_agent"]
    assert run.result["agent_steps"] == whole.result["agent_steps"]
    assert csv_rows(run) == csv_rows(whole)


@pytest.mark.parametrize("name", PLANS)
def test_stopping_after_any_round(trained: Any, train: Any, csv_rows: Any, name: str) -> None:
    plan = {**TESTED, **PLANS[name]}
    whole = trained(**plan)
    for round_ in range(1, 5):
        stopped = train(f"stop{round_}", stop_at(round_), **plan)
        assert not stopped.result["finished"]
        assert_same(remuda.resume(stopped.path, quiet=True), whole, csv_rows)


@pytest.mark.parametrize("name", PLANS)
def test_going_on_from_any_checkpoint(trained: Any, copy_of: Any, csv_rows: Any, name: str) -> None:
    whole = trained(**TESTED, **PLANS[name])
    names = [path.name for path in whole.checkpoints()]
    assert names == ["000000015", "000000012", "000000009", "000000006", "000000003"]
    for name in names[1:]:
        again = remuda.resume(copy_of(whole).path, checkpoint_name=name, quiet=True)
        assert_same(again, whole, csv_rows)


@pytest.mark.parametrize("lag", [0, 1])
def test_stopping_again_and_again(trained: Any, train: Any, csv_rows: Any, lag: int) -> None:
    whole = trained(**TESTED, lag=lag)
    run = train(callback=stop_at(1), lag=lag, **TESTED)
    while not run.result["finished"]:
        at = run.result["episodes"] // 3
        run = remuda.resume(run.path, callbacks=[stop_at(at + 1)], quiet=True)
        assert run.result["finished"] or run.result["episodes"] > at * 3, "no progress"
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"engine": "sequential"}, {"engine": "vectorized", "n_workers": 5}),
        ({"engine": "vectorized", "n_workers": 5}, {"engine": "sequential"}),
        ({"engine": "vectorized", "n_workers": 2}, {"n_workers": 1}),
    ],
)
def test_going_on_elsewhere(
    trained: Any, train: Any, csv_rows: Any, lag: int, before: dict[str, Any], after: dict[str, Any]
) -> None:
    whole = trained(agents=3, lag=lag, **TESTED)
    stopped = train(callback=stop_at(2), agents=3, lag=lag, **TESTED, **before)
    assert_same(remuda.resume(stopped.path, quiet=True, **after), whole, csv_rows)


def test_a_memory_that_overflowed_goes_on(trained: Any, train: Any, csv_rows: Any) -> None:
    plan = {"replay_size": 40, "total_episodes": 18}
    stopped = train(callback=stop_at(4), **plan)
    assert_same(remuda.resume(stopped.path, quiet=True), trained(**plan), csv_rows)


def test_a_mixed_herd_goes_on(trained: Any, train: Any, csv_rows: Any) -> None:
    plan = {"agents": 4, "learners": {"1": "random", "2": f"frozen:{trained(seed=7).path}/0"}, "lag": 1}
    stopped = train(callback=stop_at(2), **plan)
    assert_same(remuda.resume(stopped.path, quiet=True), trained(**plan), csv_rows)


def test_stopping_in_the_last_round_still_evaluates(trained: Any, train: Any, csv_rows: Any) -> None:
    """The last evaluation comes after the last round; a run without it is not finished."""
    stopped = train(callback=stop_at(5), **TESTED)
    run = stopped if stopped.result["finished"] else remuda.resume(stopped.path, quiet=True)
    assert_same(run, trained(**TESTED), csv_rows)


def test_dying_before_the_result_is_written(trained: Any, copy_of: Any, csv_rows: Any) -> None:
    whole = trained(**TESTED)
    copy = copy_of(whole)
    (copy.path / "result.json").unlink()
    assert_same(remuda.resume(copy.path, quiet=True), whole, csv_rows)


def test_an_old_result_does_not_make_a_run_finished(trained: Any, train: Any, copy_of: Any, csv_rows: Any) -> None:
    """Stopped once (which leaves a result), then killed after its last checkpoint."""
    whole = trained(**TESTED)
    copy = copy_of(whole)
    stopped = train(callback=stop_at(2), **TESTED)
    (copy.path / "result.json").write_bytes((stopped.path / "result.json").read_bytes())
    assert_same(remuda.resume(copy.path, quiet=True), whole, csv_rows)


def test_tensorboard_shows_each_episode_once(trained: Any, train: Any) -> None:
    """Resuming from an older checkpoint plays rounds again that were already on the board."""
    run = train(**TESTED)
    remuda.resume(run.path, checkpoint_name="000000006", quiet=True)
    store = EventAccumulator(str(run.path / "tensorboard"), {"scalars": 0})
    store.Reload()
    assert [event.step for event in store.Scalars("train/return/foragers0")] == [3, 6, 9, 12, 15]


def test_a_finished_run_says_so(trained: Any) -> None:
    run = trained(**TESTED)
    before = run.result
    with pytest.raises(RunError, match="is finished: all 15 episodes are trained"):
        remuda.resume(run.path, quiet=True)
    assert run.result == before


def test_resume_takes_no_unknown_setting(train: Any) -> None:
    stopped = train(callback=stop_at(2))
    with pytest.raises((remuda.RemudaError, TypeError)):
        remuda.resume(stopped.path, quiet=True, engin="sequential")


def test_a_run_being_trained_is_refused(train: Any, tmp_path: Path) -> None:
    refusals = []

    def meddle(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 3:
            before = (tmp_path / "run" / "metrics.csv").read_bytes()
            with pytest.raises(RunError, match="is being trained by another process") as refusal:
                remuda.resume(tmp_path / "run", quiet=True)
            assert (tmp_path / "run" / "metrics.csv").read_bytes() == before
            refusals.append(refusal)

    assert train(callback=meddle).result["finished"]
    assert len(refusals) == 1


def test_a_run_being_trained_is_refused_before_its_checkpoints_are_read(train: Any, tmp_path: Path) -> None:
    """Training replaces and removes them meanwhile: what is wrong with them is not what is wrong."""

    def meddle(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 3:
            for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*/checkpoint.json"):
                path.rename(path.with_suffix(".away"))
            with pytest.raises(RunError, match="is being trained by another process"):
                remuda.resume(tmp_path / "run", quiet=True)
            for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*/checkpoint.away"):
                path.rename(path.with_suffix(".json"))

    assert train(callback=meddle).result["finished"]


@contextmanager
def training(words: list[str], out: Path) -> Iterator[subprocess.Popen[str]]:
    """`remuda train` in a process of its own; it is gone when the test is over."""
    command = [sys.executable, "-W", "error", "-m", "remuda", "train", *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert process.poll() is None, f"ended early: {process.communicate()[1]}"
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def rounds_in(out: Path) -> int:
    """Rounds in the metrics so far, for a herd of two."""
    path = out / "metrics.csv"
    return (len(path.read_text().splitlines()) - 1) // 2 if path.exists() else 0


def long_words(words: list[str], **changes: Any) -> list[str]:
    return [*words, *(f"{name}={value}" for name, value in {**LONG, **changes}.items())]


def test_an_interrupt_saves_and_says_how_to_go_on(
    words: list[str], trained: Any, csv_rows: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with training(long_words(words), out) as process:
        wait_for(process, lambda: rounds_in(out) >= 12)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert f"remuda resume {out}" in err
    assert "Traceback" not in err
    stopped = remuda.Run(out)
    assert 36 <= stopped.result["episodes"] < LONG["total_episodes"]
    assert f"remuda resume {out}" in (out / "console.log").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "remuda", "resume", str(out)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert_same(stopped, trained(**LONG), csv_rows)


def test_a_second_interrupt_leaves_at_once(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    log = out / "console.log"
    with training(
        long_words(words, engine="vectorized", updates_per_episode=1000, layer=256, checkpoint_every=3), out
    ) as process:
        wait_for(process, lambda: rounds_in(out) == 1)
        time.sleep(0.3)  # into the second round's updates, which take a second or more and do not look up
        process.send_signal(signal.SIGINT)
        wait_for(process, lambda: "stopping" in log.read_text())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert not (out / "result.json").exists()
    assert remuda.Run(out).checkpoint().name == "000000003"


def test_an_interrupt_before_the_first_round_ends(words: list[str], tmp_path: Path) -> None:
    """With pictures: there is nothing to draw yet."""
    out = tmp_path / "run"
    slow = [*words, "turns=1000000", "replay_size=2000000", "worlds=1", "pictures=true"]
    with training(slow, out) as process:
        wait_for(process, lambda: (out / "tensorboard").exists())
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err
    assert process.returncode == 128 + signal.SIGINT
    assert remuda.Run(out).result["episodes"] == 0
    assert remuda.Run(out).checkpoint().name == "000000000"


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("evaluate_every", [0, 3])
def test_dying_at_any_round(
    trained: Any,
    train: Any,
    csv_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    evaluate_every: int,
) -> None:
    """A copy of the directory while it is being trained is what a killed process leaves."""
    monkeypatch.setattr(
        BackgroundWriter, "submit", lambda self, work: work()
    )  # at once, not when the thread gets to it
    plan = {**PLANS[name], "total_episodes": 15, "checkpoint_every": 6, "evaluate_every": evaluate_every}
    whole = trained(**plan)
    train(callback=lambda rows: bool(shutil.copytree(tmp_path / "run", tmp_path / f"dead{rows[0]['round']}")), **plan)
    for round_ in (3, 4, 5):
        assert_same(remuda.resume(tmp_path / f"dead{round_}", quiet=True), whole, csv_rows)


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    words: list[str], trained: Any, csv_rows: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with training(long_words(words, lag=1, evaluate_every=9), out) as process:
        wait_for(process, lambda: rounds_in(out) >= 25)
        process.kill()
        process.wait()
    assert not (out / "result.json").exists()
    assert_same(remuda.resume(out, quiet=True), trained(**LONG, lag=1, evaluate_every=9), csv_rows)


def test_handlers_are_put_back(train: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during = []
    train(callback=lambda rows: during.append(signal.getsignal(signal.SIGINT)))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert during[0] != before[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_like_a_callback(train: Any, trained: Any, csv_rows: Any, number: int) -> None:
    def interrupt(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 2:
            os.kill(os.getpid(), number)

    stopped = train(callback=interrupt)
    assert not stopped.result["finished"]
    assert_same(remuda.resume(stopped.path, quiet=True), trained(), csv_rows)


def test_a_signal_that_is_ignored_stays_ignored(train: Any, trained: Any) -> None:
    """nohup and shells ignore some for the programs they start in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = train(callback=lambda rows: os.kill(os.getpid(), signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.result["weights_sha256"] == trained().result["weights_sha256"]


def test_a_signal_stops_an_evaluation(
    train: Any, trained: Any, csv_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is to take."""
    plain, played = InlineCollectors.recv, []

    def recv(self: InlineCollectors, timeout_s: float) -> Any:
        delivery = plain(self, timeout_s)
        if delivery.purpose is Purpose.EVALUATE:
            played.append(delivery.episodes)
            os.kill(os.getpid(), signal.SIGTERM)
        return delivery

    changes = {"worlds": 1, "total_episodes": 4, "evaluate_episodes": 40}
    monkeypatch.setattr(InlineCollectors, "recv", recv)
    stopped = train(engine="sequential", **changes)
    monkeypatch.undo()
    assert sum(played) < 40
    assert not stopped.result["finished"]
    assert_same(remuda.resume(stopped.path, quiet=True), trained(engine="sequential", **changes), csv_rows)


def test_going_back_leaves_no_later_checkpoint_behind(trained: Any, copy_of: Any, csv_rows: Any) -> None:
    """A stop after going back must not be followed by a resume from the future that was given up."""
    whole = trained(**TESTED)
    run = copy_of(whole)
    remuda.resume(run.path, checkpoint_name="000000003", callbacks=[stop_at(2)], quiet=True)
    assert [path.name for path in run.checkpoints()] == ["000000006", "000000003"]
    assert_same(remuda.resume(run.path, quiet=True), whole, csv_rows)
