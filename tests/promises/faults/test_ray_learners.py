"""Learners on Ray: the same bits for any number of them, and after any of them is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drill import PATIENCE_S, PLAN, Training

import proc
import remuda
from ray_nodes import RayNodes
from remuda.core.fragment import Purpose
from remuda.core.machine import cores
from remuda.core.task import Task
from remuda.engines.collectors.ray import actor, weights
from remuda.engines.collectors.ray.actor import RolloutActor
from remuda.engines.collectors.ray.cluster import Cluster
from remuda.engines.collectors.ray.remote import RemoteRows
from remuda.engines.collectors.ray.weights import PublishedWeights, WeightReferences
from remuda.engines.trainers.ray import kept_rounds, published_rows
from remuda.engines.trainers.ray.published_rows import PublishedRows
from remuda.engines.trainers.ray.remote_state import RemoteState
from remuda.learners.herd import assign
from remuda.learners.ppo.learner import PPO
from remuda.runs import checkpoint
from remuda.runs.settings import make_plan, spec_of

EPISODES = 24
SHORT: dict[str, Any] = {
    **PLAN, "agents": 5, "total_episodes": EPISODES, "engine": "ray", "n_workers": 1, "n_learners": 2,
    "deterministic": True, "checkpoint_every": 8, "keep_checkpoints": 9, "start_limit_s": 600,
}  # fmt: skip
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {},
    "ppo": {"learner": "ppo", "layers": [8], "minibatches": 2, "passes": 2},
}
PLAN_OF_TESTS = make_plan({"game": "treasurehunt"})
IQN_ONLY = ("layer", "quantiles", "acting_quantiles", "batch_size", "replay_size")
CsvRows = Callable[[remuda.Run], Any]


@pytest.fixture
def train(tmp_path: Path, ray_here: None) -> Callable[..., remuda.Run]:
    """Train with learners in this process's Ray."""

    def train(name: str = "run", callback: Any = None, **changes: Any) -> remuda.Run:
        settings = {**SHORT, **changes}
        if settings.get("learner") == "ppo":
            settings = {name: value for name, value in settings.items() if name not in IQN_ONLY}
        return remuda.train(
            "fault_games:FAULTY", out=tmp_path / name, quiet=True, callbacks=[callback] if callback else [], **settings
        )

    return train


def learner_processes() -> list[int]:
    """The learner actors among our descendants."""
    return sorted(one.pid for one in proc.descendants(os.getpid()) if "LearnerActor" in one.command)


def killer(*rounds: int) -> Callable[[list[dict[str, Any]]], None]:
    """A callback that kills a learner, another one each time, after these rounds."""
    killed: list[int] = []

    def after_a_round(rows: list[dict[str, Any]]) -> None:
        number = int(rows[0]["round"])
        if number in rounds and number not in killed:
            killed.append(number)
            processes = learner_processes()
            os.kill(processes[len(killed) % len(processes)], signal.SIGKILL)

    return after_a_round


def console(run: remuda.Run) -> str:
    return (run.path / "console.log").read_text()


@pytest.mark.parametrize(
    ("learners", "learner", "lag"),
    [
        (2, "iqn", 0),
        *(pytest.param(*own, marks=pytest.mark.slow) for own in [(1, "ppo", 0), (4, "ppo", 1), (4, "iqn", 1)]),
    ],
)
def test_any_number_of_learners_gives_the_bits_of_sequential(
    train: Any, csv_rows: CsvRows, learners: int, learner: str, lag: int
) -> None:
    own = {**LEARNERS[learner], "lag": lag}
    one = train("sequential", engine="sequential", n_learners=None, **own)
    many = train(n_learners=learners, **own)
    assert many.result["weights_sha256"] == one.result["weights_sha256"]
    assert csv_rows(many) == csv_rows(one)
    assert f"ray: {learners} learner" in console(many)
    newest = checkpoint.every(many.path / "checkpoints")[0]
    assert len(list(newest.glob("learner-*.safetensors"))) == learners, "each owner writes its own file"
    theirs, ours = (
        checkpoint.read(newest, "learner"),
        checkpoint.read(one.path / "checkpoints" / newest.name, "learner"),
    )
    assert {name: array.tobytes() for name, array in theirs.items()} == {
        name: array.tobytes() for name, array in ours.items()
    }


@pytest.mark.parametrize(
    ("lag", "kept"),
    [(0, True), *(pytest.param(*own, marks=pytest.mark.slow) for own in [(0, False), (1, True), (1, False)])],
)
def test_learners_that_are_killed_are_placed_again(
    train: Any, csv_rows: CsvRows, monkeypatch: pytest.MonkeyPatch, lag: int, kept: bool
) -> None:
    """From fragments that are kept only the lost learner learns again; without them all go back and play again."""
    if not kept:
        monkeypatch.setattr(kept_rounds, "KEEP_BYTES", 0)
    whole = train("whole", engine="sequential", lag=lag)
    run = train(callback=killer(2, 5), lag=lag, checkpoint_every=12)
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert csv_rows(run) == csv_rows(whole)
    assert run.result["episodes"] == EPISODES
    assert sum(own["restarts"] for own in run.result["processes"] if own["name"].startswith("learner")) == 2
    assert ("all learners go back" in console(run)) or kept
    assert ("placed again from round" in console(run)) or not kept


@pytest.mark.slow
def test_free_the_updates_that_are_lost_are_bounded_counted_and_said(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner dies at episode 12 or later; the last checkpoint has 8 of them or more."""
    monkeypatch.setattr(kept_rounds, "KEEP_BYTES", 0)
    run = train(callback=killer(3), deterministic=False, checkpoint_every=8, total_episodes=80)
    assert run.result["finished"]
    assert run.result["episodes"] == 80
    rounds_out = 4 * run.plan.round_episodes  # learned, and not known of when it died
    assert 0 < run.result["failures"]["updates_skipped"] <= 8 + rounds_out
    assert "updates skipped" in console(run)


def test_weights_that_could_not_be_fetched_are_put_again() -> None:
    """Also if learners were replaced meanwhile, and have put theirs: nobody plays until all are there."""
    calls: list[tuple[int, str, int]] = []
    handles = [SimpleNamespace(index=index, calls=[]) for index in range(3)]
    pool: Any = SimpleNamespace(handles=handles, call=lambda own, *words: calls.append((own.index, *words)))
    published, free = (PublishedRows(pool, 1, by_round, lambda: None) for by_round in (True, False))
    rows = {version: RemoteRows([0], [], [None] * 3, lambda rows: None) for version in (7, 8, 9)}
    for version, own in rows.items():
        published.add(version, own)
        free.add(version, own)
    rows[9].missing.update({0, 2})
    rows[7].missing.add(1)  # acts no more
    assert not published.repair(9)
    assert calls == [(0, "put_rows", 9), (2, "put_rows", 9)]
    rows[8].missing.add(1)
    handles[0].calls.append("learn")
    assert not published.repair(9), "what it returns next may be the rows"
    handles[0].calls.clear()
    assert published.repair(9) == "the weights of round 8 could not be fetched"
    rows[9].missing.clear()
    rows[9].references[:] = ["new"] * 3
    assert not free.repair(9)
    assert (rows[8].references, rows[8].missing) == (["new"] * 3, set()), "free, newer ones act in their place"


@pytest.mark.slow
def test_learners_that_die_while_the_first_checkpoint_is_written(
    train: Any, csv_rows: CsvRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = RemoteState.write, []

    def killing(self: RemoteState, folder: Path, stem: str) -> dict[str, str]:
        calls.append(stem)
        if len(calls) < 3:
            os.kill(learner_processes()[0], signal.SIGKILL)
        return write(self, folder, stem)

    monkeypatch.setattr(RemoteState, "write", killing)
    run = train()
    whole = train("whole", engine="sequential")
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert csv_rows(run) == csv_rows(whole)


def test_a_learner_that_was_stopped_is_missed_when_its_weights_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to do, so only whoever wants its weights notices: it is asked to put them again."""
    ray = LostTransfers()
    rows = RemoteRows([0], None, ["here", "of the stopped one"], lambda rows: None)
    looks: list[set[int]] = []

    def look() -> None:
        looks.append(set(rows.missing))
        own_ray.get = lambda own, timeout: ["these", "those"]
        rows.missing.clear()

    own_ray = SimpleNamespace(
        get=ray.get, exceptions=ray.exceptions, wait=lambda own, num_returns, timeout: (own[:1], own[1:])
    )
    monkeypatch.setattr(published_rows, "require_ray", lambda: own_ray)
    pool: Any = SimpleNamespace(closed=False, poll=lambda timeout_s: None)
    published = PublishedRows(pool, 0, True, look)
    published.add(5, rows)
    assert published.fetch(rows) == ["these", "those"]
    assert looks == [{1}]


class LostTransfers:
    """A Ray that never delivers: `get` ends only if there is a limit."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.waited: list[float] = []

    def get(self, references: Any, timeout: float) -> Any:
        self.waited.append(timeout)
        raise RuntimeError("it is not local yet")


def test_an_actor_waits_for_weights_no_longer_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = LostTransfers()
    for module in (actor, weights):
        monkeypatch.setattr(module, "require_ray", lambda: ray)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # an actor changes it
    spec = spec_of(PLAN_OF_TESTS)
    playing = RolloutActor("actor-0", [], PLAN_OF_TESTS, assign(PLAN_OF_TESTS, spec), spec, "cpu", {}, 1)
    results = [playing.play(Task((0,)), 0, ["lost"], []) for _ in range(3)]
    assert ray.waited == [30.0, 60.0, 120.0]
    assert [own.weights_lost for own in results] == ["it is not local yet"] * 3


def test_weights_that_never_arrive_are_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process puts what it had put; learners put theirs."""
    puts: list[Any] = []

    def put(value: Any) -> str:
        puts.append(value)
        return f"put {len(puts)}"

    ray = SimpleNamespace(get=lambda own, timeout: [puts[int(each.split()[1]) - 1] for each in own], put=put)
    monkeypatch.setattr(weights, "require_ray", lambda: ray)
    published, theirs = PublishedWeights(), RemoteRows([0], None, ["a", "b"], lambda rows: None)
    published.publish({0: np.ones((2, 3), np.float32)}, 3, Purpose.TRAIN)
    published.publish(theirs, 2, Purpose.EVALUATE)
    published.put_again(["put 1"])
    published.put_again(["put 1"])  # a second actor could not fetch the old ones either
    assert published.newest(Purpose.TRAIN) == WeightReferences(3, ["put 2"], None)
    assert puts == [puts[0]] * 2
    assert published.newest(Purpose.EVALUATE).complete
    published.put_again(["a", "b"])
    assert theirs.missing == {0, 1}, "their learners put them"
    assert not published.newest(Purpose.EVALUATE).complete


@pytest.mark.parametrize("workers", [None, 1, 2, 5])
def test_a_cluster_of_our_own_has_places_for_all(workers: int | None) -> None:
    """With `auto` the number of learners is that of this machine's cores, not of the larger cluster that is started."""
    started: dict[str, float] = {}
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda num_cpus, **how: started.update(CPU=num_cpus),
        nodes=lambda: [{"NodeManagerAddress": "127.0.0.1"}],
        cluster_resources=lambda: started,
        shutdown=lambda: None,
    )
    cluster = Cluster(ray, make_plan({"game": "treasurehunt", "n_workers": workers, "n_learners": "auto"}), 1 << 20, 99)
    try:
        wanted = workers or cores()
        assert cluster.actor_capacity() >= wanted
        assert cluster.learner_count() + wanted <= started["CPU"]
    finally:
        cluster.close()


class SlowPPO(PPO):
    """Takes its time over every update, with as many parameters as any other."""

    def update(self, count: int) -> None:
        time.sleep(0.05 * self.context.agents)
        super().update(count)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_slices_are_balanced_by_measured_time(train: Any, csv_rows: CsvRows, lag: int) -> None:
    own = {**LEARNERS["ppo"], "learners": {"0-1": f"{__name__}:SlowPPO"}, "agents": 6, "lag": lag, "total_episodes": 40}
    whole = train("whole", engine="sequential", n_learners=None, **own)
    run = train(callback=killer(7), **own)
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert csv_rows(run) == csv_rows(whole)
    first, *_, last = (line for line in console(run).splitlines() if "agents 0 to" in line)
    assert "agents 0 to 2 on" in first
    assert "slices balanced by measured time" in last
    assert "agents 0 to 0 on" in last


@pytest.mark.slow
def test_the_first_process_is_killed_and_resumes_on_another_cluster(tmp_path: Path) -> None:
    plan = {**SHORT, "total_episodes": 160}
    one = Training(tmp_path, **plan)
    try:
        one.wait(lambda: len(one.saved) >= 2)
        one.others |= proc.descendants(one.process.pid)
        one.process.kill()
        one.process.wait()
        proc.wait(lambda: not one.left(), 60.0, lambda: f"left behind: {one.left()}")
    finally:
        one.end()
    one.brake.unlink()
    again = remuda.resume(one.out, n_workers=2, n_learners=4, quiet=True)
    whole = remuda.train(
        "fault_games:FAULTY", out=tmp_path / "whole", quiet=True, **{**plan, "engine": "sequential", "brake": "no"}
    )
    assert again.result["weights_sha256"] == whole.result["weights_sha256"]
    assert "ray: 4 learners" in console(again)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_a_node_dies_with_its_learner(tmp_path: Path, lag: int) -> None:
    """Three learners are spread over three nodes: whichever goes takes one with it."""
    nodes = RayNodes(cpus=2)
    plan = {**SHORT, "total_episodes": 160, "n_learners": 3, "lag": lag}
    one = Training(tmp_path, **plan, address=nodes.address)
    try:
        one.wait(lambda: one.rounds >= 3)
        nodes.tell("remove any")
        rounds = one.rounds
        one.wait(lambda: one.rounds >= rounds + 2)
        one.brake.unlink()
        assert one.process.wait(PATIENCE_S) == 0, one.err
    finally:
        one.end()
        nodes.end()
    run = remuda.Run(one.out, trust=True)
    whole = remuda.train(
        "fault_games:FAULTY", out=tmp_path / "whole", quiet=True, **{**plan, "engine": "sequential", "brake": "no"}
    )
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert run.result["episodes"] == 160
    assert "was lost with its node" in console(run)


@pytest.mark.slow
def test_one_agent_is_told_that_more_learners_do_not_help(train: Any) -> None:
    run = train(agents=1, n_learners=4)
    assert "one agent learns, so one learner does" in console(run)
