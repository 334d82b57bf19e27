"""Studies: every run once, side by side, the same as alone, whatever interrupts them."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import remuda
from remuda.core.errors import ConfigError, RunError
from remuda.studies.design import Design, StudyOptions, read_design
from remuda.studies.state import StudyState
from remuda.studies.study import open_study, resume_study

LIMIT_S = 120.0


@pytest.fixture
def file(tmp_path: Path, tiny: dict[str, Any]) -> Callable[..., Path]:
    """Write a study file of tiny runs."""

    def write(name: str = "small", settings: dict[str, Any] | None = None, **keys: Any) -> Path:
        path = tmp_path / f"{name}.yaml"
        content = {"settings": {"game": "treasurehunt", **tiny, "keep_checkpoints": 2, **(settings or {})}, **keys}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


def weights(folder: Path) -> dict[str, str]:
    """The weights of every finished run of a study."""
    found = {}
    for path in sorted(folder.glob("runs/*/*")):
        run = remuda.Run(path)
        if run.finished:
            found[f"{path.parent.name}/{path.name}"] = run.result["weights_sha256"]
    return found


def names(**keys: Any) -> list[str]:
    options = StudyOptions.read({"settings": {"game": "treasurehunt"}, **keys}, "the study")
    return [run.name for run in Design.of(options).runs]


def test_variants_grid_and_seeds_are_crossed() -> None:
    assert names(seeds=2) == ["treasurehunt/seed-0", "treasurehunt/seed-1"]
    assert names(seeds=[7], grid={"lr": [0.1, 0.2], "worlds": [1]}) == [
        "lr=0.1-worlds=1/seed-7",
        "lr=0.2-worlds=1/seed-7",
    ]
    crossed = names(seeds=1, variants={"a b": {}, "c": {"lag": 1}}, grid={"layer": [8, 9]})
    assert crossed == ["a-b-layer=8/seed-0", "a-b-layer=9/seed-0", "c-layer=8/seed-0", "c-layer=9/seed-0"]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, 1]}, "different seeds"),
        ({"grid": {"lr": []}}, "lr has no values"),
        ({"grid": {"seed": [1]}}, "write seeds"),
        ({"variants": {"a": {"seed": 1}}}, "write seeds"),
        ({"seeds": 10**12}, "has 1,000,000,000,000 runs, more than 10,000"),
        ({"grid": {str(n): [*range(10)] for n in range(50)}}, "give fewer seeds or values of grid"),
        ({"seeds": [0, -1]}, "should be from 0 to"),
        ({"seeds": [2**63]}, "should be from 0 to"),
        ({"name": "../elsewhere"}, "without a slash"),
        ({"name": ".."}, "without a slash"),
        ({"variants": {"a b": {}, "a-b": {}}}, "two variants"),
        ({"variants": {"a": {"worlds": 0}}}, "variant 'a': worlds=0"),
        ({"baseline": "b"}, "no variant"),
        ({"sedes": 3}, "did you mean 'seeds'"),
        ({"metric": "gmes"}, "variant 'treasurehunt': unknown metric 'gmes': did you mean 'gems'"),
        ({"group": "nobody"}, "the game has"),
    ],
)
def test_designs_that_make_no_sense_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(remuda.RemudaError, match=sentence):
        names(**keys)


def test_variants_with_and_without_reward_transforms_compare_by_what_the_game_pays(
    file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both act alike, as nothing is learned: so the game pays both the same, and the team's return is a sum of that."""
    variants = {"individual": {}, "team": {"reward.team": 1}}
    settings = {"learner": "iqn", "lr": 0, "epsilon": 1, "total_episodes": 4, "evaluate_episodes": 4}
    path = file(settings=settings, variants=variants, seeds=1, metric="game_return")
    done = remuda.study(path, out=tmp_path / "out", side_by_side=1)
    shown = capsys.readouterr().err
    assert "warning" not in shown
    assert re.search(r"1/2 individual/seed-0 finished; about \d+ s left", shown)
    individual, team = done.report.variants
    assert individual.values == pytest.approx(team.values, rel=1e-4)
    assert not np.isnan(individual.scores[0].error)
    received = remuda.study(path, out=tmp_path / "out", side_by_side=1, metric="return")
    assert received.report.variants[1].values == pytest.approx(2 * received.report.variants[0].values, rel=1e-4)
    assert "variants differ in reward.*" in capsys.readouterr().err
    assert "metric=game_return" in str(received)


@pytest.mark.promise
def test_a_study_grows_and_runs_nothing_twice(file: Callable[..., Path], tmp_path: Path, tiny: dict[str, Any]) -> None:
    out = tmp_path / "out"
    done = remuda.study(file(grid={"lr": [0.001]}, seeds=1), out=out, side_by_side=1, quiet=True)
    assert done.finished
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/**/*") if path.is_file()}
    alone = remuda.train("treasurehunt", out=tmp_path / "alone", quiet=True, **{**tiny, "lr": 0.001, "seed": 0})
    assert weights(out) == {"lr=0.001/seed-0": alone.result["weights_sha256"]}
    # `lag` has its default in the old run: it is one of the new grid.
    done = remuda.study(file(grid={"lr": [0.001], "lag": [0, 1]}, seeds=1), out=out, side_by_side=1, quiet=True)
    assert done.finished
    assert done.folders["lr=0.001-lag=0/seed-0"] == out / "runs" / "lr=0.001" / "seed-0"
    assert sorted(weights(out)) == ["lr=0.001-lag=1/seed-0", "lr=0.001/seed-0"]
    assert {path: path.stat().st_mtime_ns for path in before if path.name != ".lock"} == {
        path: time_ns for path, time_ns in before.items() if path.name != ".lock"
    }
    with pytest.raises(RunError, match="as it is now in total_episodes"):
        remuda.study(file(settings={"total_episodes": 6}, grid={"lr": [0.001]}, seeds=1), out=out, quiet=True)
    with pytest.raises(RunError, match=r"as it is now in options\.reward"):
        remuda.study(file(settings={"reward.team": 1}, grid={"lr": [0.001]}, seeds=1), out=out, quiet=True)


def test_a_study_goes_on_where_auto_chose_the_engine(file: Callable[..., Path], tmp_path: Path) -> None:
    """A run records the engine that was chosen, and that it waits by round: it is still one of the study's."""
    path = file(settings={"deterministic": False}, seeds=1, side_by_side=1)
    assert read_design(path).settings.get("engine", "auto") == "auto"
    assert remuda.study(path, out=tmp_path / "out", quiet=True).finished
    before = result_time(tmp_path / "out", "treasurehunt/seed-0")
    assert resume_study(tmp_path / "out", quiet=True).finished
    assert result_time(tmp_path / "out", "treasurehunt/seed-0") == before


def test_a_run_that_fails_does_not_end_the_others(file: Callable[..., Path], tmp_path: Path, cli: Any) -> None:
    path = file(
        variants={"good": {}, "bad": {"warm_start": str(tmp_path / "nothing")}}, seeds=1, side_by_side=1,
    )  # fmt: skip
    done = cli("study", path, "--out", tmp_path / "out", "--json")
    assert done.code == 1
    result = json.loads(done.out)
    assert list(result["failures"]) == ["bad/seed-0"]
    assert "is not a run" in result["failures"]["bad/seed-0"]
    assert list(weights(tmp_path / "out")) == ["good/seed-0"]
    assert "bad/seed-0 failed: " in done.err
    assert "Traceback" in (tmp_path / "out" / "errors" / "bad-seed-0.txt").read_text()


def test_a_callback_that_ends_a_run_ends_it_for_good(file: Callable[..., Path], tmp_path: Path) -> None:
    path = file(settings={"callbacks": [f"{__name__}:Early"]}, seeds=1, side_by_side=1)
    done = remuda.study(path, out=tmp_path / "out", quiet=True)
    assert done.finished
    (run,) = done.runs()["treasurehunt"]
    assert run.result["episodes"] == 3
    assert resume_study(tmp_path / "out", quiet=True).finished
    assert run.result["episodes"] == 3


class Early(remuda.Callback):
    """Ends a run after its first round."""

    def learned(self, training: Any, rows: Any, system: Any) -> None:
        training.stop("enough")


def test_train_with_seeds_is_a_study(cli: Any, words: list[str]) -> None:
    done = cli("train", *words, "--seeds", 1)
    assert done.code == 0, done.err
    assert "one seed: no interval can be given" in done.out
    made = open_study(Path("studies/treasurehunt-001"))
    assert made.finished
    (run,) = made.runs()["treasurehunt"]
    assert made.report.variants[0].mean.value == pytest.approx(
        np.mean(run.result["evaluation"]["mean_return"]), rel=1e-4
    )
    assert {path.name for path in made.path.glob("*.csv")} == {
        "runs.csv", "variants.csv", "comparisons.csv", "profiles.csv", "curves.csv",
    }  # fmt: skip
    assert cli("train", *words, "--seeds", 2, "--seed", 3).code == 2
    assert cli("resume", "studies/treasurehunt-001").code == 0
    assert cli("resume", "studies/treasurehunt-001", "--engine", "sync").code == 2


@pytest.mark.promise
def test_side_by_side_the_weights_are_those_of_single_runs(
    file: Callable[..., Path], tmp_path: Path, tiny: dict[str, Any]
) -> None:
    done = remuda.study(file(grid={"lr": [0.001, 0.002]}, seeds=2, side_by_side=2), out=tmp_path / "out", quiet=True)
    assert done.finished
    for lr in (0.001, 0.002):
        for seed in (0, 1):
            plan = {**tiny, "lr": lr, "seed": seed}
            alone = remuda.train("treasurehunt", out=tmp_path / f"{lr}-{seed}", quiet=True, **plan)
            assert weights(tmp_path / "out")[f"lr={lr}/seed-{seed}"] == alone.result["weights_sha256"]


def start(path: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "remuda", "study", str(path), "--out", str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.promise
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_study_that_is_killed_goes_on_as_if_it_had_not_been(
    file: Callable[..., Path], tmp_path: Path, kills: int
) -> None:
    """Killed with -9 at random: a while after its runs have saved something new, or while it starts."""
    path = file(settings={"total_episodes": 90 * kills}, grid={"lr": [0.001, 0.002]}, seeds=2, side_by_side=2)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert remuda.study(path, out=whole, quiet=True).finished
    draw = random.Random(7)
    finished: dict[str, int] = {}
    for kill in range(kills):
        with start(path, out) as process:
            if kill != 2:
                began = time.time_ns()
                wait_for(process, lambda began=began: newest_checkpoint(out) > began)
            time.sleep(draw.uniform(0.0, 1.0))
            assert process.poll() is None, "the study ended before it was killed"
            process.kill()
        wait_until_gone(out)
        assert {name: result_time(out, name) for name in finished} == finished, "a run was run again"
        finished |= {name: result_time(out, name) for name in weights(out)}
    assert len(finished) < 4
    assert resume_study(out, quiet=True).finished
    assert {name: result_time(out, name) for name in finished} == finished, "a run was run again"
    assert results(out) == results(whole)
    for name in weights(out):
        rounds = remuda.Run(out / "runs" / name).metrics["round"]
        assert sorted(set(rounds)) == sorted(rounds)[::2], f"{name} recorded a round twice"  # two agents


def results(out: Path) -> list[dict[str, str]]:
    """Everything in runs.csv that does not depend on the clock."""
    with (out / "runs.csv").open() as table:
        kept = ("variant", "seed", "score", "score_se", "episodes", "agent_steps", "weights_sha256")
        return [{name: row[name] for name in kept} for row in csv.DictReader(table)]


def newest_checkpoint(out: Path) -> int:
    times = [0]
    for path in out.glob("runs/*/*/checkpoints/[0-9]*"):
        with suppress(OSError):  # an older one was removed meanwhile
            times.append(path.stat().st_mtime_ns)
    return max(times)


def result_time(out: Path, name: str) -> int:
    return (out / "runs" / name / "result.json").stat().st_mtime_ns


def wait_until_gone(out: Path) -> None:
    """Until no process has a file of the study open."""
    limit = time.monotonic() + LIMIT_S
    while open_files(out):
        assert time.monotonic() < limit
        time.sleep(0.05)


def open_files(out: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [str(file.readlink()) for file in (process / "fd").iterdir()]
        except OSError:
            continue
        found += [name for name in files if name.startswith(str(out)) and process.name != str(os.getpid())]
    return found


@pytest.mark.promise
def test_a_signal_saves_every_run_and_a_dead_process_is_replaced(file: Callable[..., Path], tmp_path: Path) -> None:
    path = file(settings={"total_episodes": 3000, "checkpoint_every": 3000}, seeds=2, side_by_side=2)
    out = tmp_path / "out"
    with start(path, out) as process:
        tables = [out / "runs" / "treasurehunt" / f"seed-{seed}" / "metrics.csv" for seed in (0, 1)]
        wait_for(process, lambda: all(table.exists() and table.stat().st_size > 500 for table in tables))
        victim = next(pid for pid in children_with(tables[0]))
        os.kill(victim, signal.SIGKILL)
        wait_for(process, lambda: {*children_with(tables[0])} - {victim} != set() and tables[0].stat().st_size > 500)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert f"continue with: remuda resume {out}" in errors
    assert len([*out.glob("runs/*/*/checkpoints/[0-9]*")]) == 2
    assert not open_study(out).finished


def children_with(table: Path) -> list[int]:
    """Processes that have a table open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(file.readlink() == table for file in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_pipe_in_place_of_the_state_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "study.json")
    with pytest.raises(RunError, match=r"study\.json is damaged"):
        StudyState.of(tmp_path)


def test_a_directory_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no study\.yaml"):
        resume_study(tmp_path)
    (tmp_path / "study.json").write_text("[")
    (tmp_path / "study.yaml").write_text("settings: {game: treasurehunt}")
    with pytest.raises(RunError, match="is damaged"):
        resume_study(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        remuda.study(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "benchmarks" / "studies").glob("*.yaml")), ids=lambda path: path.stem
)
def test_our_own_studies_can_be_run(path: Path) -> None:
    design = Design.of(read_design(path))
    assert len(design.options.seed_list) > 1
