"""Learners of one's own, DQN and A2C of the examples, on every engine: the same bits, also after a stop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.engines.table import ENGINES

PLAN: dict[str, Any] = {
    "worlds": 3, "total_episodes": 12, "episodes_per_update": 4, "evaluate_episodes": 2, "checkpoint_every": 1,
    "pictures": False, "seed": 11, "agents": 4, "height": 7, "width": 7, "turns": 9, "spawn": 0.1,
    "learner": "dqn:DQN", "learners": {"2-3": "a2c:A2C"}, "DQN.hidden": 12, "a2c:A2C.hidden": 9, "frames": 2,
    "batch_size": 8, "passes": [1, 1, 2, 3], "minibatches": 2, "lr": [0.01, "0.01:0.001", 0.02, "0.02:0"],
    "updates_per_episode": [1.0, 2.5, 1.0, 1.0],
}  # fmt: skip


def train(out: Path, callback: Any = None, **settings: Any) -> remuda.Run:
    callbacks = [callback] if callback else []
    return remuda.train("treasurehunt", out=out, quiet=True, callbacks=callbacks, **{**PLAN, **settings})


def test_a_run_says_at_its_start_how_agents_are_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {**PLAN, "total_episodes": 4, "engine": "vectorized", "a2c:A2C.stack": False, "updates_per_episode": 1.0}
    remuda.train("treasurehunt", out=tmp_path / "run", **plan)
    said = capsys.readouterr().err
    assert re.search(r"dqn:DQN: agents are computed (one by one: torch.func would|stacked by torch.func)", said)
    assert "a2c:A2C: agents are computed one by one: the option stack is false" in said


@pytest.fixture(scope="module")
def sequential_result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = train(tmp_path_factory.mktemp("sequential") / "run", engine="sequential", deterministic=True)
    return run.result


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(own, marks=[pytest.mark.slow] * (own not in ("vectorized", "executor", "actor-learner")))
        for own in ENGINES
    ],
)
def test_they_train_save_and_resume_as_shipped_learners_do(
    tmp_path: Path, sequential_result: dict[str, Any], engine: str
) -> None:
    promised = ENGINES[engine].deterministic
    stopped = train(
        tmp_path / "run", lambda rows: rows[0]["round"] < 2, engine=engine, n_workers=2, deterministic=promised
    )
    assert not stopped.result["finished"]
    again = remuda.resume(stopped.path, quiet=True).result
    for name in ("episodes", "updates_per_agent", "agent_steps", "finished"):
        assert again[name] == sequential_result[name]
    assert again["updates_per_agent"] == [12, 30, 12, 18]
    if promised:
        assert again["weights_sha256"] == sequential_result["weights_sha256"]
