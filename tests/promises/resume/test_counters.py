"""Counters go on where they stopped: lag, dropped episodes, failures, processor time, memory, restarts."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest

import remuda
from remuda.core.game import GameEntry
from remuda.testing.odd_games import OddGame, OddOptions, low_bits


class Sometimes(OddGame):
    """Fails in every third episode, in its sixth turn."""

    def begin(self) -> None:
        """As its key decides."""
        if ((self.turn == 5) & (low_bits(self.keys) % 3 == 0)).any():
            raise ZeroDivisionError("an unlucky episode")


SOMETIMES = GameEntry("sometimes", "Fails in some episodes.", OddOptions, Sometimes)


def stop_at(round_: int) -> Any:
    return lambda rows: rows[0]["round"] < round_


@pytest.mark.parametrize("engine", ["vectorized", "executor", "actor-learner"])
def test_the_lag_histogram_covers_the_whole_run(train: Any, engine: str) -> None:
    plan = {"engine": engine, "n_workers": 2, "deterministic": engine != "actor-learner", "lag": int(engine[0] == "v")}
    stopped = train(callback=stop_at(2), **plan)
    before = sum(stopped.result["lag"]["turns_by_versions"].values())
    assert 0 < before == stopped.result["agent_steps"]
    whole = remuda.resume(stopped.path, quiet=True).result
    assert sum(whole["lag"]["turns_by_versions"].values()) == whole["agent_steps"] > before


def test_time_and_memory_go_on(train: Any) -> None:
    run = train(callback=stop_at(2), engine="executor", n_workers=2)
    half = run.result
    whole = remuda.resume(run.path, quiet=True, engine="sequential").result
    assert whole["cpu_s"] > half["cpu_s"] > 0
    assert whole["wall_s"] > half["wall_s"]
    assert whole["peak_memory_bytes"] >= half["peak_memory_bytes"]
    assert {"collect-0", "collect-1"} <= {own["name"] for own in whole["processes"]}
    assert whole["waited_s"]["collectors"] >= half["waited_s"]["collectors"]


def test_restarts_of_workers_are_counted_over_all_starts(train: Any) -> None:
    def kill(rows: list[dict[str, Any]]) -> bool:
        children = [int(pid) for pid in _children("collect")]
        if rows[0]["round"] == 1:
            os.kill(children[0], signal.SIGKILL)
        return rows[0]["round"] < 3

    stopped = train(callback=kill, engine="executor", n_workers=2, total_episodes=30)
    restarts = sum(own["restarts"] for own in stopped.result["processes"])
    assert restarts == 1
    whole = remuda.resume(stopped.path, quiet=True).result
    assert sum(own["restarts"] for own in whole["processes"]) >= 1


def _children(kind: str) -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.name.startswith(kind) and child.pid]


def test_failures_are_counted_over_all_starts(tmp_path: Any) -> None:
    plan: dict[str, Any] = {
        "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 1, "batch_size": 8, "worlds": 3,
        "total_episodes": 24, "evaluate_episodes": 2, "pictures": False, "deterministic": True, "max_failures": 1.0,
        "engine": "vectorized",
    }  # fmt: skip
    game = "test_counters:SOMETIMES"
    whole = remuda.train(game, out=tmp_path / "whole", quiet=True, **plan).result["failures"]
    assert whole["episodes_failed"] > 3
    run = remuda.train(game, out=tmp_path / "run", quiet=True, callbacks=[stop_at(3)], **plan)
    assert 0 < run.result["failures"]["episodes_failed"] < whole["episodes_failed"]
    assert remuda.resume(run.path, quiet=True).result["failures"] == whole


def test_a_checkpoint_of_another_plan_is_refused_by_name(train: Any) -> None:
    run = train(callback=stop_at(2))
    config = run.path / "config.yaml"
    text = config.read_text()
    for old, new, said in (
        ("seed: 0", "seed: 3", "seed=0, not 3"),
        ("spawn: 0.1", "spawn: 0.2", "spawn=0.1, not 0.2"),
        ("gamma: 0.99", "gamma: 0.9", "gamma=0.99, not 0.9"),
        ("updates_per_episode: 1.0", "updates_per_episode: 2.0", "updates_per_episode=1.0, not 2.0"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        with pytest.raises(remuda.RemudaError, match=f"belongs to another plan: it was trained with {said}"):
            remuda.resume(run.path, quiet=True)
    config.write_text(text)
    assert remuda.resume(run.path, quiet=True).result["finished"]
