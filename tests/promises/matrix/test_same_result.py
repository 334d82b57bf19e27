"""Invariant 2: one plan, one result, whatever the engine and however many workers."""

from __future__ import annotations

from typing import Any

import pytest

PLANS: dict[str, dict[str, Any]] = {
    "default": {},
    "lag": {"lag": 1},
    "agents act in turn": {"parallel_actions": False},
    "lag, agents act in turn": {"lag": 1, "parallel_actions": False},
    "one agent": {"agents": 1},
    "five agents": {"agents": 5},
    "five agents, lag": {"agents": 5, "lag": 1},
    "one world": {"worlds": 1, "total_episodes": 6},
    "rounds that do not divide the worlds": {"worlds": 4, "episodes_per_update": 3, "total_episodes": 14},
    "rounds larger than the worlds, lag": {"worlds": 2, "episodes_per_update": 5, "total_episodes": 12, "lag": 1},
    "half an update": {"updates_per_episode": 0.4, "episodes_per_update": 2},
    "two and a half updates": {"updates_per_episode": 2.5, "episodes_per_update": 1},
    "a replay buffer that overflows": {"replay_size": 40, "total_episodes": 18},
    "options that differ per world": {"spawn": [0.05, 0.1, 0.3], "gem": [10.0, 20.0]},
    "values that differ per agent": {"lr": [1e-3, "1e-3:1e-5"], "gamma": [0.9, 0.99], "epsilon": [0.5, "1:0:0.5"]},
    "odd widths": {"layer": 13, "batch_size": 9, "quantiles": 3, "acting_quantiles": 3, "frames": 3},
    "without noise": {"sigma": 0.0},
    "bf16": {"precision": "bf16"},
    "the default network": {
        "height": 21, "width": 21, "turns": 100, "spawn": 0.005, "layer": 250, "quantiles": 12,
        "acting_quantiles": 8, "frames": 5, "batch_size": 64, "replay_size": None, "worlds": 5, "total_episodes": 10,
    },
}  # fmt: skip


def sha(run: Any) -> str:
    return run.result["weights_sha256"]


@pytest.mark.parametrize("name", PLANS)
def test_sequential_and_vectorized_agree_to_the_bit(trained: Any, csv_rows: Any, name: str) -> None:
    plan = PLANS[name]
    one_by_one = trained(**plan, engine="sequential")
    for workers in (1, 2, 5):
        together = trained(**plan, engine="vectorized", n_workers=workers)
        assert sha(together) == sha(one_by_one), f"{workers} workers"
        assert csv_rows(together) == csv_rows(one_by_one), f"{workers} workers"


WAITING_ENGINES = ("threads", "sync", "executor")
FAST_PLANS = (
    "default",
    "lag, agents act in turn",
    "rounds that do not divide the worlds",
    "options that differ per world",
)


def placements() -> list[Any]:
    """Every plan on every engine that can wait by round; all but a few plans are marked slow."""
    return [
        pytest.param(name, engine, marks=[] if name in FAST_PLANS else [pytest.mark.slow], id=f"{engine}, {name}")
        for name in PLANS
        for engine in WAITING_ENGINES
    ]


@pytest.mark.parametrize(("name", "engine"), placements())
def test_engines_that_wait_by_round_agree_to_the_bit(trained: Any, csv_rows: Any, name: str, engine: str) -> None:
    plan = PLANS[name]
    one_by_one = trained(**plan, engine="sequential")
    for workers in (1, 2, 5):
        together = trained(**plan, engine=engine, n_workers=workers)
        assert sha(together) == sha(one_by_one), f"{workers} workers"
        assert csv_rows(together) == csv_rows(one_by_one), f"{workers} workers"


def test_wait_for_of_sync_does_not_change_the_result(trained: Any) -> None:
    assert sha(trained(engine="sync", n_workers=3, wait_for=0.3)) == sha(trained(engine="sequential"))


@pytest.mark.parametrize("lag", [0, 1])
def test_a_mixed_herd_agrees_to_the_bit(trained: Any, csv_rows: Any, lag: int) -> None:
    other = trained(seed=7)
    players = {"0": "iqn", "1": "random", "2": f"frozen:{other.path}/1", "3-4": "iqn"}
    runs = [
        trained(agents=5, learners=players, lag=lag, engine=engine, n_workers=workers)
        for engine, workers in (
            ("sequential", 1),
            ("vectorized", 1),
            ("vectorized", 2),
            ("vectorized", 5),
            ("threads", 2),
            ("sync", 2),
            ("executor", 2),
        )
    ]
    assert len({sha(run) for run in runs}) == 1
    assert all(csv_rows(run) == csv_rows(runs[0]) for run in runs)
    assert runs[0].result["updates_per_agent"] == [12, 0, 0, 12, 12]


def test_training_twice_gives_the_same_weights(trained: Any, train: Any) -> None:
    assert sha(train()) == sha(trained())


def test_plans_that_differ_give_other_weights(trained: Any) -> None:
    hashes = [
        sha(trained(**change))
        for change in ({}, {"seed": 1}, {"lag": 1}, {"parallel_actions": False}, {"precision": "bf16"}, {"worlds": 4})
    ]
    assert len(set(hashes)) == len(hashes)
