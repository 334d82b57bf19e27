"""Every engine, with faults at random moments: each planned episode is in the CSV files once, and nothing is left.

The first process is killed and stopped too: then the run is resumed, or goes on when it is woken. Engines
that promise it end with the weights of the run to which nothing happened.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chaos import CALM, FOLDER, LOG, WISHES, Chaos, Fault, landed

import proc
import remuda

HERE = Path(__file__).parent
PATIENCE_S = 900.0
LOOK_S = 0.05
EPISODES = 240
PLAN: dict[str, Any] = {
    "agents": 2, "turns": 12, "worlds": 4, "total_episodes": EPISODES, "n_workers": 2,
    "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256,
    "evaluate_episodes": 4, "checkpoint_every": 8, "keep_checkpoints": 3, "device": "cpu", "pictures": False,
    "max_failures": 1.0, "turn_limit_s": 3.0, "update_limit_s": 3.0,
}  # fmt: skip
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {},
    "ppo": {"learner": "ppo", "layers": "[8]", "minibatches": 2, "passes": 2},
}
IQN_ONLY = ("layer", "quantiles", "acting_quantiles", "batch_size", "replay_size")
SURE = {"deterministic": "true"}
MAIN, WORKER = ["main-kill", "main-stop"], ["worker-kill", "worker-stop"]
GAME = ["main-raise", "main-slow", "worker-raise", "worker-slow"]
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential", **SURE},
    "vectorized": {"engine": "vectorized", **SURE},
    "lagging": {"engine": "vectorized", "lag": 1, **SURE},
    "threads": {"engine": "threads", **SURE},
    "sync": {"engine": "sync", **SURE},
    "executor": {"engine": "executor", **SURE},
    "free executor": {"engine": "executor"},
    "actor-learner": {"engine": "actor-learner", "n_learners": 2, "log_schedule": "true"},
    "ray": {"engine": "ray", **SURE},
    "ray with learners": {"engine": "ray", "n_learners": 2, **SURE},
}
SLOW = ("vectorized", "actor-learner", "ray", "ray with learners")
MANY = {"collect": 12, "hand-over": 6, "update": 6, "publish": 6, "save": 6}
FEW = {"collect": 2, "hand-over": 1, "update": 1, "publish": 1, "save": 1}


def settings(engine: str, learner: str) -> dict[str, Any]:
    plan = {**PLAN, **LEARNERS[learner], **ENGINES[engine]}
    return plan if learner == "iqn" else {name: value for name, value in plan.items() if name not in IQN_ONLY}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], remuda.Run]:
    """What a run comes to when nothing happens to it; by learner and lag."""
    runs: dict[tuple[str, int], remuda.Run] = {}

    def train(learner: str, lag: int) -> remuda.Run:
        if (learner, lag) not in runs:
            plan = {**settings("vectorized", learner), "lag": lag, "deterministic": True}
            if "layers" in plan:
                plan["layers"] = json.loads(plan["layers"])
            out = tmp_path_factory.mktemp("undisturbed") / "run"
            runs[learner, lag] = remuda.train("chaos:CHAOTIC", out=out, quiet=True, **plan)
        return runs[learner, lag]

    return train


class Ordeal:
    """`remuda train` and as many `remuda resume` as it takes."""

    def __init__(self, folder: Path, plan: dict[str, Any], phases: dict[str, int], kinds: list[str]) -> None:
        self.folder, self.out, self.plan = folder, folder / "run", plan
        (folder / WISHES).write_text(json.dumps({"phases": phases, "kinds": kinds}))
        self.starts = 0
        self.everybody: set[proc.Process] = set()

    def survive(self) -> remuda.Run:
        deadline = time.monotonic() + PATIENCE_S
        while self._live(deadline) != 0:
            assert not [one for one in self.everybody if one.alive] or self._wait_for_the_end()
        assert self._wait_for_the_end()
        return remuda.Run(self.out)

    def _wait_for_the_end(self) -> bool:
        proc.wait(lambda: not any(one.alive for one in self.everybody), 30.0, self._left)
        return True

    def _left(self) -> str:
        return f"left behind: {[(one.pid, one.command) for one in self.everybody if one.alive]}"

    def _live(self, deadline: float) -> int:
        """Until the first process ends; it is woken when it is stopped, and ended by us if it takes too long."""
        self.starts += 1
        paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / "stderr").open("a") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "remuda", *self._words()],
                env={**os.environ, "PYTHONPATH": paths, FOLDER: str(self.folder)},
                stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
            )  # fmt: skip
        try:
            while process.poll() is None:
                assert time.monotonic() < deadline, f"too long, {self._story()}"
                self.everybody |= proc.descendants(process.pid)
                if proc.stopped(process.pid):
                    time.sleep(1.0)
                    os.kill(process.pid, signal.SIGCONT)
                time.sleep(LOOK_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode in (0, -signal.SIGKILL), self._story()
        return process.returncode

    def _words(self) -> list[str]:
        if any((self.out / "checkpoints").glob("[0-9]*")):
            return ["resume", str(self.out)]
        shutil.rmtree(self.out, ignore_errors=True)  # killed before there was anything to go on from
        return ["train", "chaos:CHAOTIC", *(f"{k}={v}" for k, v in self.plan.items()), "--out", str(self.out)]

    def _story(self) -> str:
        return f"{self.starts} starts, {Counter(self.landed)}: {(self.folder / 'stderr').read_text()[-3000:]}"

    @property
    def landed(self) -> list[Fault]:
        return landed(self.folder)


def marks(run: remuda.Run) -> float:
    """The marks of all episodes in the CSV files."""
    table, size = run.metrics, run.plan.round_episodes
    total = 0.0
    for number, mark in zip(table["round"], table["mark"], strict=True):
        episodes = run.plan.episodes_after(int(number)) - run.plan.episodes_after(int(number) - 1)
        assert episodes <= size
        total += float(np.rint(mark * episodes))
    return total


def assert_as_if_nothing_had_happened(run: remuda.Run, whole: remuda.Run, csv_rows: Any, deterministic: bool) -> None:
    result = run.result
    assert result["finished"]
    assert result["episodes"] == EPISODES
    assert result["failures"]["episodes_given_up"] == []
    assert sorted(set(run.metrics["round"])) == list(range(1, run.plan.rounds + 1))
    assert len(run.metrics["round"]) == run.plan.rounds * 2, "each round once"
    assert marks(run) == marks(whole), "each episode once"
    if deterministic:
        assert result["weights_sha256"] == whole.result["weights_sha256"]
        assert csv_rows(run) == csv_rows(whole)


def ordeal(
    tmp_path: Path, undisturbed: Any, csv_rows: Any, engine: str, learner: str, phases: dict[str, int]
) -> list[Fault]:
    plan = settings(engine, learner)
    one = Ordeal(tmp_path, plan, phases, [*MAIN, *WORKER, *GAME])
    run = one.survive()
    whole = undisturbed(learner, int(plan.get("lag", 0)))
    assert_as_if_nothing_had_happened(run, whole, csv_rows, "deterministic" in plan)
    faults = one.landed
    print(f"{engine}, {learner}: {one.starts} starts, {len(faults)} faults {dict(Counter(f.phase for f in faults))}")
    assert len(faults) >= sum(phases.values()) / 2, "hardly anything happened: that proves little"
    return faults


@pytest.mark.parametrize(
    "engine",
    ["executor", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_a_little_chaos(tmp_path: Path, undisturbed: Any, csv_rows: Any, engine: str) -> None:
    ordeal(tmp_path, undisturbed, csv_rows, engine, "iqn", FEW)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_chaos(tmp_path: Path, undisturbed: Any, csv_rows: Any, engine: str, learner: str, tally: list[Fault]) -> None:
    tally += ordeal(tmp_path, undisturbed, csv_rows, engine, learner, MANY)


@pytest.fixture(scope="module")
def tally() -> list[Fault]:
    """All faults that landed."""
    return []


@pytest.mark.slow
def test_there_was_enough_of_it(tally: list[Fault]) -> None:
    """Two hundred, ten in each phase, and some of every kind."""
    if not tally:
        pytest.fail("run together with test_chaos, whose faults it counts")
    print(Counter(f"{fault.role}-{fault.kind}" for fault in tally), Counter(fault.phase for fault in tally))
    assert len(tally) >= 200
    phases = Counter(fault.phase for fault in tally)
    assert all(phases[phase] >= 10 for phase in MANY), phases
    assert {f"{fault.role}-{fault.kind}" for fault in tally} >= {*MAIN, *WORKER}


@pytest.mark.parametrize(("before", "after"), [("executor", "vectorized"), ("actor-learner", "executor")])
def test_another_engine_plays_what_is_left(tmp_path: Path, undisturbed: Any, before: str, after: str) -> None:
    """Rounds of free engines hold whatever came first: who goes on must not count on their order."""
    plan = {**settings("free executor", "iqn"), "engine": before, "n_workers": 4, "episodes_per_update": 3}
    plan |= {"turn_limit_s": 120.0, "update_limit_s": 120.0}  # nothing is to happen here
    out = tmp_path / "run"
    stopped = remuda.train("chaos:CHAOTIC", out=out, quiet=True, callbacks=[lambda rows: rows[0]["round"] < 9], **plan)
    assert not stopped.result["finished"]
    run = remuda.resume(out, engine=after, n_workers=2, quiet=True)
    assert run.result["finished"]
    assert marks(run) == marks(undisturbed("iqn", 0))


def test_the_log_knows_what_missed(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("armed 1.1 update kill main\narmed 2.1 save stop worker\nmissed 1.1\n")
    assert landed(tmp_path) == [Fault("save", "stop", "worker")]


def test_faults_wait_for_their_time(tmp_path: Path) -> None:
    """For the soak: nothing to a young process, nothing twice to the same episode, nothing once it is calm."""
    wishes = {"phases": {"collect": 9}, "kinds": ["main-kill", "main-raise"], "after_s": {"main-kill": 1e6}}
    (tmp_path / WISHES).write_text(json.dumps({**wishes, "spacing_s": {"raise": 1e6}}))
    chaos = Chaos(tmp_path)
    tries = range(200)
    assert {chaos.choose("collect", ("kill", "raise")) for _ in tries} == {None, "raise"}
    with pytest.raises(ZeroDivisionError):
        chaos.strike("collect", "raise")
    assert {chaos.choose("collect", ("raise",)) for _ in tries} == {None}, "it may be the same episode"
    (tmp_path / LOG).unlink()
    assert {chaos.choose("collect", ("raise",)) for _ in tries} == {None, "raise"}
    (tmp_path / CALM).touch()
    assert {chaos.choose("collect", ("raise",)) for _ in tries} == {None}
