"""Every game with every learner on every engine: trains, stops, resumes, and ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.engines import ENGINES
from remuda.games import SHIPPED
from remuda.herd import LEARNERS
from remuda.learners.iqn import IQN
from remuda.settings import make_plan

GAMES: dict[str, dict[str, Any]] = {
    "treasurehunt": {"agents": 2, "height": 7, "width": 7, "turns": 9, "spawn": 0.1},
    "cage2": {"steps": 9, "red": "mixed", "green": True},
}
TUNED: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "memory": 200},
    "ppo": {"layers": [16, 8], "frames": 2, "passes": 2, "minibatches": 2},
}
PLAN: dict[str, Any] = {
    "worlds": 3, "total_episodes": 12, "episodes_per_update": 4, "evaluate_episodes": 2, "checkpoint_every": 1,
    "deterministic": True, "pictures": False, "seed": 11,
}  # fmt: skip


def test_nothing_is_left_out() -> None:
    assert set(GAMES) == set(SHIPPED)
    assert set(TUNED) == set(LEARNERS)
    assert set(ENGINES) == {"sequential", "vectorized", "threads", "sync", "executor", "actor-learner"}


def train(out: Path, game: str, learner: str, **settings: Any) -> remuda.Run:
    plan = {**PLAN, **GAMES[game], **TUNED[learner], **settings}
    return remuda.train(game, out=out, quiet=True, learner=learner, **plan)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("learner", TUNED)
@pytest.mark.parametrize("game", GAMES)
def test_engines_agree_and_stopping_changes_nothing(tmp_path: Path, game: str, learner: str, lag: int) -> None:
    one = train(tmp_path / "one", game, learner, engine="sequential", lag=lag).result
    assert one["finished"]
    assert one["episodes"] == 12
    for workers in (1, 2):
        many = train(tmp_path / str(workers), game, learner, engine="vectorized", lag=lag, n_workers=workers).result
        assert many["weights_sha256"] == one["weights_sha256"]
        assert many["updates_per_agent"] == one["updates_per_agent"]
    stopped = train(
        tmp_path / "stopped", game, learner, engine="vectorized", lag=lag, callback=lambda rows: rows[0]["round"] < 2
    )
    assert not stopped.result["finished"]
    again = remuda.resume(stopped.path, engine="sequential", quiet=True).result
    assert again["weights_sha256"] == one["weights_sha256"]


def test_the_preset_is_the_study_without_its_mistakes() -> None:
    plan = make_plan({"preset": "workflow_rl", "total_episodes": 100_000, "red_agent": "B_lineAgent"})
    own = plan.learner_options["ppo"]
    assert (plan.game, plan.round_episodes, plan.total_episodes, plan.options["red"]) == (
        "cage2",
        100,
        100_000,
        "b_line",
    )
    assert (own["layers"], own["passes"], own["minibatches"], own["lr"]) == ([64, 64], 6, 1, 0.002)
    assert (own["gae_lambda"], own["gamma"], own["beta2"], own["activation"]) == (1.0, 0.99, 0.99, "tanh")


def test_a_learner_says_what_lag_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IQN, "max_lag", 0)
    with pytest.raises(remuda.RemudaError, match="lag=1 is more than learner iqn tolerates"):
        make_plan({"game": "treasurehunt", "lag": 1})
