"""Trials of a study as Ray actors: the weights of single runs, whatever dies meanwhile, and nothing run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import remuda
from ray_nodes import RayNodes
from remuda.studies.study import open_study

LIMIT_S = 240.0


@pytest.fixture
def file(tmp_path: Path, tiny: dict[str, Any]) -> Callable[..., Path]:
    """Write a study file of tiny runs."""

    def write(settings: dict[str, Any] | None = None, **keys: Any) -> Path:
        path = tmp_path / "small.yaml"
        content = {"settings": {"game": "treasurehunt", **tiny, "keep_checkpoints": 2, **(settings or {})}, **keys}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


def weights(folder: Path) -> dict[str, str]:
    """The weights of every finished run."""
    runs = {str(path.relative_to(folder / "runs")): remuda.Run(path) for path in sorted(folder.glob("runs/*/*"))}
    return {name: run.result["weights_sha256"] for name, run in runs.items() if run.finished}


def process_of(run: Path) -> int | None:
    """The process that has a table of the run open."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(file.readlink() == run / "metrics.csv" for file in (process / "fd").iterdir()):
                return int(process.name)
    return None


def host_of(run: Path) -> psutil.Process:
    """The Ray actor whose process has the run."""
    found = process_of(run)
    assert found is not None
    return next(own for own in psutil.Process(found).parents() if "TrialHost" in " ".join(own.cmdline()))


@pytest.mark.promise
def test_runs_on_a_cluster_are_those_of_single_runs_and_one_that_fails_ends_no_other(
    file: Callable[..., Path], tmp_path: Path, tiny: dict[str, Any], ray_here: None, cli: Any
) -> None:
    """Three runs in two actors, one of which cannot be trained."""
    bad = {"warm_start": str(tmp_path / "nothing")}
    path = file(variants={"good": {}, "bad": bad}, seeds=2, side_by_side=2, on="ray")
    done = cli("study", path, "--out", "out", "--json")  # a relative directory
    assert done.code == 1, done.err
    result = json.loads(done.out)
    assert sorted(result["failures"]) == ["bad/seed-0", "bad/seed-1"]
    assert "is not a run" in result["failures"]["bad/seed-0"]
    out = Path("out").absolute()
    assert "Traceback" in (out / "errors" / "bad-seed-0.txt").read_text()
    for seed in (0, 1):
        alone = remuda.train("treasurehunt", out=tmp_path / f"alone-{seed}", quiet=True, **{**tiny, "seed": seed})
        assert weights(out)[f"good/seed-{seed}"] == alone.result["weights_sha256"]
    assert not [*out.glob(".seen-*")]


@pytest.mark.promise
def test_a_sweep_on_a_cluster_finds_what_it_finds_here(tmp_path: Path, tiny: dict[str, Any], ray_here: None) -> None:
    settings = {**tiny, "lr": "log(1e-4, 1e-2)", "trials": 3, "batch": 2, "evaluate_every": 3}
    here = remuda.sweep("treasurehunt", tmp_path / "here", quiet=True, side_by_side=1, **settings)
    there = remuda.sweep("treasurehunt", tmp_path / "there", quiet=True, on="ray", **settings)
    assert there.state.trials == here.state.trials


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    made = RayNodes()
    yield made
    made.end()


@pytest.mark.slow
def test_whatever_dies_on_a_cluster_the_study_ends_as_if_nothing_had(
    file: Callable[..., Path], tmp_path: Path, nodes: RayNodes
) -> None:
    """Killed with -9: the process of a trial, the actor that hosts one, a node with its trial, and the study itself."""
    path = file(settings={"total_episodes": 1500}, grid={"lr": [0.001, 0.002]}, seeds=2)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert remuda.study(path, out=whole, side_by_side=1, quiet=True).finished
    command = [sys.executable, "-m", "remuda", "study", path, "--out", out, "--on", f"ray:{nodes.address}"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)

    def saved(run: Path) -> bool:
        return process_of(run) is not None and bool([*run.glob("checkpoints/[0-9]*")])

    def kill(pid: int, run: Path, process: subprocess.Popen[str]) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_for(process, lambda: process_of(run) != pid)

    with start() as process:
        runs = under_way(process, out, 3)
        wait_for(process, lambda: all(saved(run) for run in runs))
        trial = process_of(runs[0])
        assert trial is not None
        kill(trial, runs[0], process)
        kill(host_of(runs[1]).pid, runs[1], process)
        nodes.tell("remove any")
        nodes.tell("add")
        wait_for(process, lambda: bool(weights(out)))
        finished = {name: (out / "runs" / name / "result.json").stat().st_mtime_ns for name in weights(out)}
        assert len(finished) < 4, "too quick: nothing is left to be killed"
        process.kill()
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert {name: (out / "runs" / name / "result.json").stat().st_mtime_ns for name in finished} == finished
    assert weights(out) == weights(whole)
    assert open_study(out).finished
    for name in weights(out):
        rounds = remuda.Run(out / "runs" / name).metrics["round"]
        assert sorted(set(rounds)) == sorted(rounds)[::2], f"{name} recorded a round twice"  # two agents


def under_way(process: subprocess.Popen[str], out: Path, count: int) -> list[Path]:
    """The directories of so many runs that are being trained."""
    found: list[Path] = []

    def there() -> bool:
        found[:] = [path.parent for path in out.glob("runs/*/*/metrics.csv") if process_of(path.parent) is not None]
        return len(found) >= count

    wait_for(process, there)
    return found


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < limit
        time.sleep(0.1)
