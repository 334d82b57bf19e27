"""A herd in which nobody learns (scripted and frozen players only) is played to its end on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.engines.table import ENGINES

PLAN: dict[str, Any] = {
    "agents": 2, "height": 7, "width": 7, "turns": 12, "worlds": 3, "total_episodes": 12, "evaluate_episodes": 3,
    "device": "cpu", "pictures": False, "quiet": True,
}  # fmt: skip
PLACES = [(engine, {}) for engine in ENGINES] + [("vectorized", {"lag": 1, "n_workers": 2})]


@pytest.mark.parametrize(("engine", "changes"), PLACES, ids=str)
def test_every_episode_is_played(tmp_path: Path, engine: str, changes: dict[str, Any]) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", engine=engine, learner="random", **PLAN, **changes)
    assert run.finished
    assert sorted(set(run.metrics["episodes"].tolist())) == [3, 6, 9, 12]
    assert run.result["updates_per_agent"] == [0, 0]


def test_such_a_run_can_be_extended(tmp_path: Path) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", engine="threads", learner="random", **PLAN)
    longer = remuda.resume(run.path, total_episodes=15, quiet=True)
    assert longer.metrics["episodes"][-1] == 15


def test_frozen_players_only(tmp_path: Path, trained: Any) -> None:
    players = f"frozen:{trained().path}"
    run = remuda.train("treasurehunt", out=tmp_path / "run", engine="threads", learner=players, **PLAN)
    assert run.result["weights_sha256"] == trained().result["weights_sha256"]
