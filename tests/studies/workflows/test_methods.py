"""Which orders are tried: functions of what came out so far, tested on landscapes that cost nothing to train."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
import pytest

from remuda.core.errors import ConfigError
from remuda.games.cage2.workflow import ORDERS, distinct_orders, kendall_distance
from remuda.studies.workflows.methods import SearchSpace, best, propose
from remuda.studies.workflows.options import SearchOptions, TrialResult, WorkflowTrial
from remuda.studies.workflows.posterior import believe, reported
from remuda.studies.workflows.trials import WINDOW, verdict

FIELD = SearchSpace(distinct_orders(True), True, 100, "distinct")
FULL = SearchSpace(ORDERS, False, 100, "all")
TARGET = "op_server,enterprise,op_host,user,defender"


def options(**own: Any) -> SearchOptions:
    return SearchOptions.read(own, "test")


def outcome(
    trial: WorkflowTrial, env_return: float, compliance: float = 1.0, episodes: int | None = None
) -> TrialResult:
    return TrialResult(
        trial=trial, episodes=trial.episodes if episodes is None else episodes, compliance=compliance, fixes=9,
        env_return=env_return, env_return_se=0.5, passed=compliance >= 0.9, why="test", collect_s=1, learn_s=1,
        wall_s=2,
    )  # fmt: skip


def played(own: SearchOptions, field: SearchSpace, world: Callable[[WorkflowTrial], TrialResult]) -> list[TrialResult]:
    """A whole search in a made-up world."""
    outcomes: list[TrialResult] = []
    while trials := propose(own, field, outcomes):
        assert [trial.number for trial in trials] == list(range(len(outcomes), len(outcomes) + len(trials)))
        assert 1 <= len(trials) <= own.side_by_side
        outcomes += [world(trial) for trial in trials]
    assert sum(one.episodes for one in outcomes) <= own.total_episodes
    return outcomes


def hill(trial: WorkflowTrial) -> TrialResult:
    """The nearer to TARGET the better."""
    return outcome(trial, -10.0 - 4.0 * kendall_distance(trial.workflow, TARGET, True))


def found(method: str, seed: int, episodes: int = 14_000, side_by_side: int = 1) -> float:
    own = options(method=method, total_episodes=episodes, trial_episodes=1000, seed=seed, side_by_side=side_by_side)
    chosen = best(played(own, FIELD, hill))
    assert chosen is not None
    return chosen.env_return


def test_gp_ucb_climbs_where_lots_only_stumble() -> None:
    seeds = range(4)
    by_belief, by_lot = (mean(found(method, seed) for seed in seeds) for method in ("gp-ucb", "random"))
    assert by_belief > by_lot + 3
    assert by_belief >= -12


def test_trials_side_by_side_look_in_different_places() -> None:
    own = options(total_episodes=100_000, side_by_side=4, trial_episodes=1000, seed=3)
    outcomes: list[TrialResult] = []
    for _ in range(5):
        trials = propose(own, FIELD, outcomes)
        assert len({trial.workflow for trial in trials}) == 4
        outcomes += [hill(trial) for trial in trials]
    assert mean(found("gp-ucb", seed, 24_000, side_by_side=4) for seed in range(2)) >= -13


def test_a_method_knows_nothing_but_the_outcomes() -> None:
    for method in ("gp-ucb", "random", "halving"):
        own = options(method=method, total_episodes=60_000, trial_episodes=2000, seed=5)
        whole = played(own, FIELD, hill)
        for cut in (0, 1, 7, len(whole) - 1):
            assert propose(own, FIELD, whole[:cut])[0] == whole[cut].trial
        assert not propose(own, FIELD, whole)


def test_lots_never_fall_on_an_order_twice_before_all_had_a_turn() -> None:
    own = options(method="random", total_episodes=130 * 100, trial_episodes=100)
    tried = [one.trial.workflow for one in played(own, FIELD, hill)]
    assert len(tried) == 130
    assert {*tried[:65]} == {*tried[65:]} == {*FIELD.orders}
    assert tried[:65] != tried[65:]
    other = options(method="random", total_episodes=1000, trial_episodes=100, seed=1)
    assert [one.trial.workflow for one in played(other, FIELD, hill)] != tried[:10]


def test_halving_keeps_the_better_half_and_goes_on_from_its_own_weights() -> None:
    own = options(method="halving", total_episodes=100_000, side_by_side=3)
    outcomes = played(own, FIELD, hill)
    sizes = [65, 33, 17, 9, 5, 3, 2]
    assert len(outcomes) == sum(sizes)
    first, rungs = 0, []
    for size in sizes:
        rungs.append(outcomes[first : first + size])
        first += size
    assert [rung[0].trial.episodes for rung in rungs] == [200, 400, 800, 1500, 2800, 4700, 7100]
    for before, after in pairwise(rungs):
        kept = sorted(before, key=lambda one: one.env_return, reverse=True)[: len(after)]
        assert sorted(one.env_return for one in after) == sorted(one.env_return for one in kept)
        numbers = {one.trial.workflow: one.trial.number for one in before}
        assert all(one.trial.parent == numbers[one.trial.workflow] for one in after)
    assert {one.trial.workflow for one in rungs[-1]} >= {TARGET}
    assert not any(one.trial.patient for one in outcomes)


def test_halving_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="45500"):
        propose(options(method="halving", total_episodes=1000), FIELD, [])


def test_who_does_not_comply_is_never_reported() -> None:
    best_of_all = WorkflowTrial(number=0, workflow=FIELD.orders[0], episodes=100)
    other = WorkflowTrial(number=1, workflow=FIELD.orders[9], episodes=100)
    outcomes = [outcome(best_of_all, -1, compliance=0.5), outcome(other, -50)]
    assert [*reported(outcomes)] == [other.workflow]
    chosen = best(outcomes)
    assert chosen is not None
    assert chosen.trial == other
    assert best(outcomes[:1]) is None
    assert believe(FIELD.orders, outcomes, foothold_counts=True) is None  # one return is not enough to believe anything


def test_an_order_that_never_complies_does_not_use_up_the_search() -> None:
    def world(trial: WorkflowTrial) -> TrialResult:
        stubborn = kendall_distance(trial.workflow, TARGET, True) < 2
        return outcome(trial, hill(trial).env_return, compliance=0.2 if stubborn else 1.0)

    own = options(total_episodes=25_000, trial_episodes=1000)
    tried = [one.trial.workflow for one in played(own, FIELD, world)]
    assert max(tried.count(order) for order in tried) <= 6
    assert len({*tried}) > 10


def test_belief_is_sure_of_what_was_tried_and_falls_with_distance() -> None:
    tried = [ORDERS[i] for i in (0, 30, 61, 119)]
    outcomes = [
        outcome(WorkflowTrial(number=i, workflow=order, episodes=100), -20.0 - 5 * i) for i, order in enumerate(tried)
    ]
    belief = believe(ORDERS, outcomes, foothold_counts=False)
    assert belief is not None
    places = [ORDERS.index(order) for order in tried]
    assert np.allclose(belief.mean[places], [one.env_return for one in outcomes], atol=4)
    nearest = np.array([min(kendall_distance(order, other, False) for other in tried) for order in ORDERS])
    stds = [belief.std[nearest == d].mean() for d in range(4)]
    assert stds == sorted(stds)
    assert stds[0] < stds[-1]


def test_trials_begin_with_the_nearest_trained_order() -> None:
    own = options(method="random", total_episodes=3000, trial_episodes=100, seed=2)
    outcomes = played(own, FULL, hill)
    assert outcomes[0].trial.parent is None
    for i, one in enumerate(outcomes[1:], 1):
        assert one.trial.parent is not None
        chosen = outcomes[one.trial.parent].trial.workflow
        assert kendall_distance(one.trial.workflow, chosen, False) == min(
            kendall_distance(one.trial.workflow, other.trial.workflow, False) for other in outcomes[:i]
        )


def test_episodes_left_over_are_used_in_whole_rounds() -> None:
    own = options(method="random", total_episodes=2550, trial_episodes=1000)
    assert [one.trial.episodes for one in played(own, FIELD, hill)] == [1000, 1000, 500]
    own = options(method="random", total_episodes=1500, trial_episodes=1000, side_by_side=4)
    assert [one.trial.episodes for one in played(own, FIELD, hill)] == [300] * 4 + [100] * 3
    short = options(method="random", total_episodes=2000, trial_episodes=1000)
    used = played(short, FIELD, lambda trial: outcome(trial, -5, episodes=min(600, trial.episodes)))
    assert [one.episodes for one in used] == [600, 600, 600, 200]


def history(compliance: list[float], returns: list[float]) -> list[dict[str, Any]]:
    return [{"compliance": c, "env_return": r} for c, r in zip(compliance, returns, strict=True)]


def test_a_trial_ends_when_it_gets_no_better() -> None:
    own, trial = (
        options(patience=5, compliance_threshold=0.9),
        WorkflowTrial(number=0, workflow=TARGET, episodes=10_000),
    )
    rising = [0.02 * i for i in range(60)]
    falling = [-100.0 - i for i in range(60)]
    assert verdict(history(rising[:45], falling[:45]), trial, own) is None  # it learns to comply
    assert verdict(history([0.5] * 40, rising[:40]), trial, own) == "its compliance gets no better"
    assert verdict(history([0.95] * 40, [-100 + i for i in range(40)]), trial, own) is None  # and then to defend
    assert verdict(history([0.95] * 40, [-30.0] * 40), trial, own) == "its return gets no better"
    assert verdict(history([0.95] * 40, [-30.0] * 40), trial.model_copy(update={"patient": False}), own) is None
    early = WINDOW + 4
    assert verdict(history([0.95] * early, [-30.0] * early), trial, own) is None


def test_one_policy_for_all_orders_is_one_trial() -> None:
    own = options(method="conditioned", total_episodes=5000)
    (trial,) = propose(own, FIELD, [])
    assert (trial.workflow, trial.episodes, trial.parent) == ("distinct", 5000, None)
    assert not propose(own, FIELD, [outcome(trial, -3)])
