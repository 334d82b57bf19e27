"""Every game with every learner on every engine: training, stopping and resuming give the same bits."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.engines.table import ENGINES
from remuda.games.registry import SHIPPED
from remuda.learners.iqn.learner import IQN
from remuda.learners.registry import SHIPPED_LEARNERS
from remuda.runs.settings import make_plan

GAMES: dict[str, dict[str, Any]] = {
    "treasurehunt": {"agents": 2, "height": 7, "width": 7, "turns": 9, "spawn": 0.1},
    "cage2": {"steps": 9, "red": "mixed", "green": True},
    "cleanup": {"turns": 9, "view": 5, "agents": 3, "rules": "meltingpot", "reward": {"inequity_alpha": 5.0}},
    "harvest": {"turns": 9, "view": 5, "agents": 3, "reward": {"team": [1.0, 0.5, 0.0]}},
    "coins": {"turns": 9, "view": 5, "coins": 0.05, "reward": {"svo_weight": 0.5}},
    "matrix": {"turns": 9, "view": 5, "agents": 3, "freeze": 1, "timeout": 2},
    "stag_hunt": {"turns": 9, "view": 5, "agents": 2},
    "tag": {"turns": 9, "view": 5, "agents": 3},
}
SOCIAL = ("cleanup", "harvest", "coins", "matrix", "stag_hunt", "tag")
AWAY = ("cleanup", "matrix", "stag_hunt")
"""Games in which agents are away for some turns, how many depends on what is played."""
LEARNER_OPTIONS: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 200},
    "ppo": {"layers": [16, 8], "frames": 2, "passes": 2, "minibatches": 2, "normalise_observations": True},
}
PLAN: dict[str, Any] = {
    "worlds": 3, "total_episodes": 12, "episodes_per_update": 4, "evaluate_episodes": 2, "checkpoint_every": 1,
    "pictures": False, "seed": 11,
}  # fmt: skip
BY_ROUND = {"sequential", "vectorized", "sync"}
FREE = {"threads", "executor", "actor-learner", "ray"}


def combinations() -> list[Any]:
    """All of game × learner × engine. Those not needed to cover every pair are marked slow."""
    result = []
    axes = (enumerate(ENGINES), enumerate(GAMES), enumerate(LEARNER_OPTIONS))
    for (e, engine), (g, game), (k, learner) in product(*axes):
        elsewhere = engine == "ray" and game != "cage2"  # tests/promises/faults has it
        marks = [] if (e + g + k) % 2 == 0 and not elsewhere else [pytest.mark.slow]
        if not marks and (game, engine) != ("cage2", "ray") and game != "treasurehunt":
            marks = [pytest.mark.promise]
        if game in SOCIAL:  # with one learner each, where worlds are played together and apart
            short = engine == "executor" and (g + k) % 2 == 0
            marks = [pytest.mark.promise if short else pytest.mark.slow]
        result.append(pytest.param(game, learner, engine, marks=marks, id=f"{game}-{learner}-{engine}"))
    return result


def test_the_matrix_has_all_games_learners_and_engines() -> None:
    assert set(GAMES) == set(SHIPPED)
    assert set(LEARNER_OPTIONS) == set(SHIPPED_LEARNERS)
    assert set(ENGINES) == BY_ROUND | FREE
    assert {name for name, engine in ENGINES.items() if engine.free} == FREE


def train(out: Path, game: str, learner: str, callback: Any = None, **settings: Any) -> remuda.Run:
    plan = {**PLAN, **GAMES[game], **LEARNER_OPTIONS[learner], **settings}
    return remuda.train(game, out=out, quiet=True, learner=learner, callbacks=[callback] if callback else [], **plan)


@pytest.fixture(scope="module")
def sequential_result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the sequential engine, trained once per plan."""
    results: dict[tuple[str, str, int], dict[str, Any]] = {}

    def result(game: str, learner: str, lag: int = 0) -> dict[str, Any]:
        if (game, learner, lag) not in results:
            out = tmp_path_factory.mktemp("sequential_result") / "run"
            run = train(out, game, learner, engine="sequential", lag=lag, deterministic=True)
            results[game, learner, lag] = run.result
        return results[game, learner, lag]

    return result


@pytest.mark.parametrize(("game", "learner", "engine"), combinations())
def test_it_trains_saves_and_resumes(
    tmp_path: Path, sequential_result: Any, game: str, learner: str, engine: str
) -> None:
    promised = ENGINES[engine].deterministic
    settings: dict[str, Any] = {"engine": engine, "n_workers": 2, "deterministic": promised}
    last = 2
    if not promised:  # the last of four rounds must not be played before the run stops: it needs version 2
        settings["max_lag"], last = 1, 1
    stopped = train(tmp_path / "run", game, learner, callback=lambda rows: rows[0]["round"] < last, **settings)
    assert not stopped.result["finished"]
    assert 0 < stopped.result["episodes"] < 12
    again = remuda.resume(stopped.path, quiet=True).result
    one = sequential_result(game, learner)
    assert again["finished"]
    assert again["episodes"] == one["episodes"] == 12
    assert again["updates_per_agent"] == one["updates_per_agent"]
    if promised or game not in AWAY:
        assert again["agent_steps"] == one["agent_steps"]
    if promised:
        assert again["weights_sha256"] == one["weights_sha256"]


@pytest.mark.promise
@pytest.mark.parametrize("engine", sorted(FREE))
def test_a_run_that_does_not_wait_makes_the_same_number_of_updates(
    tmp_path: Path, sequential_result: Any, engine: str
) -> None:
    run = train(tmp_path / "run", "treasurehunt", "iqn", engine=engine, n_workers=2)
    one = sequential_result("treasurehunt", "iqn")
    for name in ("episodes", "updates_per_agent", "agent_steps", "finished"):
        assert run.result[name] == one[name]
    assert sum(run.result["lag"]["turns_by_versions"].values()) == one["agent_steps"]


@pytest.mark.parametrize("engine", [name for name, engine in ENGINES.items() if not engine.deterministic])
def test_engines_that_are_not_deterministic_refuse_to_promise_it(tmp_path: Path, engine: str) -> None:
    assert engine == "actor-learner"
    with pytest.raises(remuda.RemudaError, match="engine=actor-learner cannot promise deterministic=true"):
        train(tmp_path / "run", "treasurehunt", "iqn", engine=engine, deterministic=True)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("learner", LEARNER_OPTIONS)
@pytest.mark.parametrize("game", [pytest.param(g, marks=[pytest.mark.slow] * (g in SOCIAL)) for g in GAMES])
def test_vectorized_agrees_and_a_run_can_change_its_engine(
    tmp_path: Path, sequential_result: Any, game: str, learner: str, lag: int
) -> None:
    one = sequential_result(game, learner, lag)
    for workers in (1, 2):
        many = train(
            tmp_path / str(workers), game, learner, engine="vectorized", lag=lag, n_workers=workers, deterministic=True
        ).result
        assert many["weights_sha256"] == one["weights_sha256"]
        assert many["updates_per_agent"] == one["updates_per_agent"]
    stopped = train(
        tmp_path / "stopped", game, learner, engine="vectorized", lag=lag, deterministic=True,
        callback=lambda rows: rows[0]["round"] < 2,
    )  # fmt: skip
    assert not stopped.result["finished"]
    again = remuda.resume(stopped.path, engine="sequential", quiet=True).result
    assert again["weights_sha256"] == one["weights_sha256"]


def test_the_preset_has_the_settings_of_the_study() -> None:
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


def test_a_learner_declares_the_lag_it_tolerates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IQN, "max_lag", 0)
    with pytest.raises(remuda.RemudaError, match="lag=1 is more than learner iqn tolerates"):
        make_plan({"game": "treasurehunt", "lag": 1})
