"""A run can be extended: where nothing is scheduled it equals a run planned that long, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.core.errors import ConfigError, RunError

UNSCHEDULED = {"lr": 0.001, "epsilon": 0.2}
PPO: dict[str, Any] = {"learner": "ppo", "layers": [16], "lr": 0.001, "passes": 2, "minibatches": 2}


def without_iqn(tiny: dict[str, Any]) -> dict[str, Any]:
    own = ("layer", "quantiles", "acting_quantiles", "frames", "batch_size", "memory", "replay_size")
    return {name: value for name, value in tiny.items() if name not in own}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("engine", "other"), [("sequential", "vectorized"), ("vectorized", "executor")])
def test_a_finished_run_that_is_extended_equals_a_longer_one(
    trained: Any, train: Any, csv_rows: Any, lag: int, engine: str, other: str
) -> None:
    whole = trained(**UNSCHEDULED, lag=lag, total_episodes=21)
    short = train(**UNSCHEDULED, lag=lag, total_episodes=12, engine=engine)
    assert short.result["finished"]
    longer = remuda.resume(short.path, total_episodes=21, engine=other, n_workers=2, quiet=True)
    assert longer.result["finished"]
    assert longer.result["episodes"] == 21
    assert longer.result["weights_sha256"] == whole.result["weights_sha256"]
    assert csv_rows(longer)["metrics.csv"] == csv_rows(whole)["metrics.csv"]
    assert remuda.Run(short.path).plan.total_episodes == 21
    assert remuda.Run(short.path).plan.engine == engine, "an engine given to resume is for that start only"


def test_ppo_is_extended_to_the_bit(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = {**without_iqn(tiny), **PPO}
    whole = remuda.train("treasurehunt", out=tmp_path / "whole", quiet=True, **{**plan, "total_episodes": 18})
    short = remuda.train("treasurehunt", out=tmp_path / "short", quiet=True, **{**plan, "total_episodes": 9})
    longer = remuda.resume(short.path, total_episodes=18, quiet=True)
    assert longer.result["weights_sha256"] == whole.result["weights_sha256"]


def test_a_stopped_run_is_extended_too(trained: Any, train: Any) -> None:
    whole = trained(**UNSCHEDULED, total_episodes=21)
    stopped = train(callback=lambda rows: rows[0]["round"] < 2, **UNSCHEDULED)
    assert not stopped.result["finished"]
    assert (
        remuda.resume(stopped.path, total_episodes=21, quiet=True).result["weights_sha256"]
        == (whole.result["weights_sha256"])
    )


def test_it_says_what_happens_to_schedules(train: Any) -> None:
    run = train()
    remuda.resume(run.path, total_episodes=15, quiet=True)
    said = (run.path / "console.log").read_text()
    assert "extended from 12 to 15 episodes; from here on epsilon, lr follow their schedules" in said
    plain = train("plain", **UNSCHEDULED)
    remuda.resume(plain.path, total_episodes=15, quiet=True)
    assert "nothing is scheduled, so the result equals" in (plain.path / "console.log").read_text()


def test_a_short_last_round_is_trained_again_as_a_whole_one(trained: Any, train: Any) -> None:
    whole = trained(**UNSCHEDULED, total_episodes=18)
    short = train(**UNSCHEDULED, total_episodes=11)
    longer = remuda.resume(short.path, total_episodes=18, quiet=True)
    assert longer.result["weights_sha256"] == whole.result["weights_sha256"]
    assert "the last round was short, so training continues from episode 9" in (short.path / "console.log").read_text()


def test_what_cannot_be_extended_says_so(train: Any) -> None:
    run = train(keep_checkpoints=1, total_episodes=11)
    with pytest.raises(RunError, match="cannot be extended: its last round had fewer than 3 episodes"):
        remuda.resume(run.path, total_episodes=30, quiet=True)
    assert remuda.Run(run.path).plan.total_episodes == 11, "nothing was changed"
    with pytest.raises(ConfigError, match=r"total_episodes=5: .* has trained 11 episodes already; give more than that"):
        remuda.resume(run.path, total_episodes=5, quiet=True)


def test_a_finished_run_says_how_to_extend_it(train: Any) -> None:
    run = train()
    with pytest.raises(RunError, match="`--total-episodes N` extends it"):
        remuda.resume(run.path, quiet=True)
