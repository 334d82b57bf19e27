"""The players of a Ray actor: threads or processes, the same fragments, and one that dies costs its task only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import proc
from remuda.core.fragment import Fragment, Purpose
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.ray.players import Players, ProcessPlayers, ThreadPlayers, are_processes, make_players
from remuda.learners.herd import assign, bind_policy
from remuda.runs.settings import make_plan, spec_of
from remuda.transport.heartbeat import Phase

BUSY: dict[str, Any] = {
    "game": "remuda.testing.slow_games:BUSY", "turns": 7, "work": 10, "learner": "ppo", "worlds": 5,
    "actor_cpus": 3, "device": "cpu",
}  # fmt: skip
EPISODES = (5, 6, 7, 8, 9)
VERSION = 4

pytestmark = pytest.mark.promise


def make(plan: Plan, kind: type[Players] | None = None) -> Players:
    spec = spec_of(plan)
    parts = assign(plan, spec)
    bindings = [bind_policy(part, plan, spec, "cpu") for part in parts]
    players = make_players(plan, spec, parts, bindings, "cpu", 5)
    if kind is ThreadPlayers:
        players = ThreadPlayers(plan, spec, bindings)
    dice = np.random.default_rng(1)
    rows = {0: dice.normal(size=bindings[0].policy.rows.shape).astype(np.float32)}
    players.publish(rows, VERSION)
    return players


@pytest.fixture(params=[10])
def processes(request: pytest.FixtureRequest) -> Iterator[ProcessPlayers]:
    with one_thread_each():
        players = make(make_plan({**BUSY, "work": request.param}))
        assert isinstance(players, ProcessPlayers)
        yield players
        players.collectors.close()


def arrays(fragment: Fragment) -> dict[str, Any]:
    own = {field.name: getattr(fragment, field.name) for field in fields(fragment)}
    return {name: value for name, value in {**own, **fragment.extras}.items() if isinstance(value, np.ndarray)}


def test_processes_play_what_threads_play(processes: ProcessPlayers) -> None:
    threads = make(make_plan(BUSY), ThreadPlayers)
    for purpose in (Purpose.TRAIN, Purpose.EVALUATE):
        task = Task(EPISODES, purpose)
        (theirs,), (ours,) = processes.play(task), threads.play(task)
        assert theirs.task == ours.task
        for one, other in zip(theirs.fragments, ours.fragments, strict=True):
            assert one.origin.episodes.tolist() == list(EPISODES)
            assert (one.versions == VERSION).all()
            assert arrays(one).keys() == arrays(other).keys()
            for name, array in arrays(one).items():
                np.testing.assert_array_equal(array, arrays(other)[name], name)
    assert processes.cpu_s > 0


def kill(players: ProcessPlayers, index: int) -> None:
    victim = players.pool.workers[index].process
    assert victim is not None
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)


@pytest.mark.parametrize("processes", [100_000], indirect=True)  # 0.1 s for two worlds
def test_a_player_that_is_killed_is_replaced(processes: ProcessPlayers) -> None:
    """Before it plays nothing is lost; while it plays its task fails, and says who was killed."""
    (before,) = processes.play(Task(EPISODES))
    beats = processes.pool.heartbeats
    proc.wait(lambda: beats.last_beat(1)[0] is Phase.WAITING, 60.0, lambda: "it still plays")
    kill(processes, 1)
    (again,) = processes.play(Task(EPISODES))
    np.testing.assert_array_equal(before.fragments[0].obs, again.fragments[0].obs)
    with ThreadPoolExecutor(1) as other:
        playing = other.submit(processes.play, Task(EPISODES))
        proc.wait(lambda: beats.last_beat(2)[0] is Phase.PLAYING, 60.0, lambda: "it does not play")
        kill(processes, 2)
        failures = [own.failure for own in playing.result()]
    assert [failure.worker for failure in failures if failure] == ["collect-2"]
    (after,) = processes.play(Task(EPISODES))
    np.testing.assert_array_equal(before.fragments[0].obs, after.fragments[0].obs)
    assert [own.restarts for own in processes.pool.workers] == [0, 1, 1]


@pytest.mark.parametrize("settings", [{"actor_cpus": 1.9}, {"actor_gpus": 0.5}, {"game": "treasurehunt", "work": None}])
def test_one_player_a_gpu_and_a_compiled_game_need_no_processes(settings: dict[str, Any]) -> None:
    assert are_processes(make_plan(BUSY))
    plan = {name: value for name, value in {**BUSY, **settings}.items() if value is not None}
    assert not are_processes(make_plan(plan))
