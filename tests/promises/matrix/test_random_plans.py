"""Random plans on random engines, stopped and resumed at random: always the weights of the run that was left alone.

`make test-promises` tries a few plans; `make test-slow` tries 200 in ten blocks, on Ray too. A block always has the
same plans: `pytest -m slow tests/promises/matrix/test_random_plans.py -k block-3` runs one of them. With
REMUDA_FIRST_BLOCK=10 there are ten others.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import remuda

GAMES: tuple[dict[str, Any], ...] = (
    {"game": "treasurehunt", "height": 7, "width": 7, "spawn": 0.1},
    {"game": "remuda.testing:GIFTS"},
    {"game": "remuda.testing:MASKED"},
    {"game": "remuda.testing:UNEQUAL"},
    {"game": "gymnasium:CartPole-v1"},
)
IQN = {"layer": 9, "quantiles": 3, "acting_quantiles": 3, "batch_size": 6, "replay_size": 64}
PPO = {"layers": [5], "minibatches": 2, "passes": 2}
LEARNERS: tuple[dict[str, Any], ...] = (
    {"learner": "iqn", **IQN, "frames": 1},
    {"learner": "iqn", **IQN, "frames": 3, "epsilon": "1:0.1:0.5"},
    {"learner": "ppo", **PPO},
    {"learner": "ppo", "layers": [4, 4], "minibatches": 1, "passes": 1, "frames": 2},
    {"learner": "iqn", **IQN, "learners": {"0": "random"}},
)
ENGINES = ("sequential", "vectorized", "threads", "sync", "executor")
ALWAYS: dict[str, Any] = {
    "deterministic": True, "device": "cpu", "pictures": False, "evaluate_episodes": 2, "checkpoint_every": 10**6,
}  # fmt: skip

FIRST_BLOCK = int(os.environ.get("REMUDA_FIRST_BLOCK", "0"))
BLOCKS = range(FIRST_BLOCK, FIRST_BLOCK + 10)
PLANS_OF_A_BLOCK = 21
"""Twenty, and the simplest one, with which hypothesis begins every time."""

plans = st.fixed_dictionaries(
    {
        "of_game": st.sampled_from(GAMES),
        "of_learner": st.sampled_from(LEARNERS),
        "turns": st.integers(4, 9),
        "worlds": st.integers(1, 4),
        "total_episodes": st.integers(5, 14),
        "episodes_per_update": st.one_of(st.none(), st.integers(1, 6)),
        "updates_per_episode": st.sampled_from([0.4, 1.0, 1.5]),
        "lag": st.integers(0, 1),
        "parallel_actions": st.booleans(),
        "evaluate_every": st.sampled_from([0, 4]),
        "seed": st.integers(0, 2**40),
    }
).map(lambda drawn: {**drawn.pop("of_game"), **drawn.pop("of_learner"), **drawn, **ALWAYS})


def chains(engines: Sequence[str]) -> Any:
    """Engines one after another with their workers, and after how many more rounds each is stopped."""
    link = st.tuples(st.sampled_from(engines), st.integers(1, 3), st.integers(1, 4))
    return st.lists(link, min_size=1, max_size=4)


def train_in_stretches(plan: dict[str, Any], chain: Sequence[tuple[str, int, int]], out: Path) -> remuda.Run:
    """The plan, stopped after each link of the chain; the last engine goes on to the end."""
    (engine, workers, rounds), *rest = chain
    run = remuda.train(out=out, quiet=True, engine=engine, n_workers=workers, callbacks=stop_after(rounds), **plan)
    for engine, workers, more in rest:
        if run.finished:
            break
        rounds += more
        run = remuda.resume(out, quiet=True, engine=engine, n_workers=workers, callbacks=stop_after(rounds))
    return run if run.finished else remuda.resume(out, quiet=True)


def stop_after(rounds: int) -> list[Any]:
    return [lambda rows: rows[0]["round"] < rounds]


def assert_same_result(plan: dict[str, Any], chain: Sequence[tuple[str, int, int]], csv_rows: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        whole = remuda.train(out=Path(name) / "whole", quiet=True, engine="vectorized", n_workers=1, **plan)
        run = train_in_stretches(plan, chain, Path(name) / "run")
        assert run.result["weights_sha256"] == whole.result["weights_sha256"]
        assert run.result["updates_per_agent"] == whole.result["updates_per_agent"]
        assert csv_rows(run) == csv_rows(whole)


UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


FEW, MANY = (
    # A plan that fails is shown as it is: making it smaller takes many minutes.
    settings(max_examples=n, database=None, suppress_health_check=UNHURRIED, phases=[Phase.generate])
    for n in (4, PLANS_OF_A_BLOCK)
)


@FEW
@seed(0)
@given(plan=plans, chain=chains(ENGINES))
def test_a_few_plans(csv_rows: Any, plan: dict[str, Any], chain: list[tuple[str, int, int]]) -> None:
    assert_same_result(plan, chain, csv_rows)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"block-{block}")
def test_many_plans(csv_rows: Any, ray_here: None, block: int) -> None:
    tried = set()

    @MANY
    @seed(block)
    @given(plan=plans, chain=chains([*ENGINES, "ray"]))
    def try_plans(plan: dict[str, Any], chain: list[tuple[str, int, int]]) -> None:
        tried.add(repr((plan, chain)))
        assert_same_result(plan, chain, csv_rows)

    try_plans()
    assert len(tried) == PLANS_OF_A_BLOCK
