"""What runs free can be repeated all the same: its schedule, replayed in one process, gives the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.runs.replay import replay

PLANS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "versions change in mid-episode": {"n_workers": 3, "n_learners": 2, "publish_interval": 1, "sync_interval": 2},
    "learning without pause": {"n_workers": 2, "n_learners": 2, "sync_interval": 1, "free_running": True},
    "episodes played with versions learned since the last one was taken": {
        "worlds": 1, "turns": 200, "memory": 900, "total_episodes": 8, "n_workers": 1, "n_learners": 2,
        "publish_interval": 1, "sync_interval": 1, "free_running": True,
    },
    "a mixed herd": {"agents": 5, "learners": {"0": "iqn", "1": "random", "2-4": "iqn"}, "n_learners": 3},
    "rounds that do not divide the worlds": {"worlds": 4, "episodes_per_update": 3, "total_episodes": 26},
}  # fmt: skip


@pytest.fixture
def logged(train: Any) -> Callable[..., remuda.Run]:
    def run(**changes: Any) -> remuda.Run:
        settings = {"deterministic": False, "total_episodes": 30, **changes}
        finished: remuda.Run = train(engine="actor-learner", log_schedule=True, **settings)
        return finished

    return run


@pytest.mark.parametrize("name", PLANS)
def test_a_schedule_replayed_gives_the_same_weights(logged: Any, name: str) -> None:
    run = logged(**PLANS[name])
    assert run.result["finished"]
    assert replay(run.path) == run.result["weights_sha256"]


@pytest.mark.parametrize("name", ["as it is", "versions change in mid-episode", "rounds that do not divide the worlds"])
def test_a_run_that_was_stopped_and_resumed_too(logged: Any, name: str) -> None:
    """What was logged after the checkpoint is taken back, and logged again as it then went."""
    run = logged(**PLANS[name], callback=lambda rows: rows[0]["round"] < 4)
    assert not run.result["finished"]
    stopped = remuda.resume(run.path, quiet=True, callback=lambda rows: rows[0]["round"] < 6)
    assert not stopped.result["finished"]
    with (run.path / "schedule.jsonl").open("a") as file:
        file.write('{"saved": 1000}\n')  # as if it had died while it wrote a checkpoint
    result = remuda.resume(run.path, quiet=True).result
    assert result["finished"]
    assert result["episodes"] == run.plan.total_episodes
    assert replay(run.path) == result["weights_sha256"]


def test_ppo_too(tmp_path: Path) -> None:
    run = remuda.train(
        "cage2", out=tmp_path / "run", quiet=True, engine="actor-learner", learner="ppo", layers=[16], steps=9,
        worlds=4, total_episodes=24, n_workers=2, sync_interval=2, log_schedule=True, pictures=False,
    )  # fmt: skip
    assert replay(run.path) == run.result["weights_sha256"]


def test_another_schedule_gives_other_weights(logged: Any) -> None:
    run = logged()
    header, first, *rest = (run.path / "schedule.jsonl").read_text().splitlines()
    entry = json.loads(first)
    entry["episodes"] = [episode + 100 for episode in entry["episodes"]]
    (run.path / "schedule.jsonl").write_text("\n".join([header, json.dumps(entry), *rest]))
    assert replay(run.path) != run.result["weights_sha256"]
    entry["versions"][0][1] = [[99, 99]]
    (run.path / "schedule.jsonl").write_text("\n".join([header, json.dumps(entry), *rest]))
    with pytest.raises(remuda.RemudaError, match="plays with a version that nobody has learned"):
        replay(run.path)


def test_the_command_says_whether_it_did(logged: Any, cli: Any) -> None:
    run = logged()
    outcome = cli("replay", run.path)
    assert outcome.code == 0
    assert outcome.out.count(run.result["weights_sha256"]) == 2
    (run.path / "schedule.jsonl").unlink()
    outcome = cli("replay", run.path)
    assert outcome.code == 2
    assert "train with log_schedule=true" in outcome.err
