"""Which orders are tried next, as a function of the results so far; here the results are computed, not trained."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
import pytest

from remuda.core.errors import ConfigError
from remuda.games.cage2.workflow import ORDERS, distinct_orders, kendall_distance
from remuda.studies.workflows.methods import SearchSpace, best_result, propose
from remuda.studies.workflows.options import SearchOptions, TrialResult, WorkflowTrial
from remuda.studies.workflows.posterior import fit_posterior, last_passed
from remuda.studies.workflows.trials import WINDOW, end_reason

SPACE = SearchSpace(distinct_orders(True), True, 100, "distinct")
FULL = SearchSpace(ORDERS, False, 100, "all")
TARGET = "op_server,enterprise,op_host,user,defender"


def options(**values: Any) -> SearchOptions:
    return SearchOptions.read(values, "test")


def result(
    trial: WorkflowTrial, env_return: float, compliance: float = 1.0, episodes: int | None = None
) -> TrialResult:
    return TrialResult(
        trial=trial, episodes=trial.episodes if episodes is None else episodes, compliance=compliance, fixes=9,
        env_return=env_return, env_return_se=0.5, passed=compliance >= 0.9, why="test", collect_s=1, learn_s=1,
        wall_s=2,
    )  # fmt: skip


def played(opts: SearchOptions, space: SearchSpace, world: Callable[[WorkflowTrial], TrialResult]) -> list[TrialResult]:
    """A whole search in which `world` gives the result of each trial."""
    results: list[TrialResult] = []
    while trials := propose(opts, space, results):
        assert [trial.number for trial in trials] == list(range(len(results), len(results) + len(trials)))
        assert 1 <= len(trials) <= opts.side_by_side
        results += [world(trial) for trial in trials]
    assert sum(one.episodes for one in results) <= opts.total_episodes
    return results


def hill(trial: WorkflowTrial) -> TrialResult:
    """The nearer to TARGET, the better the return."""
    return result(trial, -10.0 - 4.0 * kendall_distance(trial.workflow, TARGET, True))


def found(method: str, seed: int, episodes: int = 14_000, side_by_side: int = 1) -> float:
    opts = options(method=method, total_episodes=episodes, trial_episodes=1000, seed=seed, side_by_side=side_by_side)
    chosen = best_result(played(opts, SPACE, hill))
    assert chosen is not None
    return chosen.env_return


@pytest.mark.promise
def test_gp_ucb_finds_better_orders_than_random_search() -> None:
    seeds = range(4)
    gp, at_random = (mean(found(method, seed) for seed in seeds) for method in ("gp-ucb", "random"))
    assert gp > at_random + 3
    assert gp >= -12


@pytest.mark.promise
def test_trials_at_the_same_time_try_different_orders() -> None:
    opts = options(total_episodes=100_000, side_by_side=4, trial_episodes=1000, seed=3)
    results: list[TrialResult] = []
    for _ in range(5):
        trials = propose(opts, SPACE, results)
        assert len({trial.workflow for trial in trials}) == 4
        results += [hill(trial) for trial in trials]
    assert mean(found("gp-ucb", seed, 24_000, side_by_side=4) for seed in range(2)) >= -13


def test_a_method_depends_on_the_results_only() -> None:
    for method in ("gp-ucb", "random", "halving"):
        opts = options(method=method, total_episodes=60_000, trial_episodes=2000, seed=5)
        whole = played(opts, SPACE, hill)
        for cut in (0, 1, 7, len(whole) - 1):
            assert propose(opts, SPACE, whole[:cut])[0] == whole[cut].trial
        assert not propose(opts, SPACE, whole)


def test_random_search_tries_no_order_twice_before_all_were_tried() -> None:
    opts = options(method="random", total_episodes=130 * 100, trial_episodes=100)
    tried = [one.trial.workflow for one in played(opts, SPACE, hill)]
    assert len(tried) == 130
    assert {*tried[:65]} == {*tried[65:]} == {*SPACE.orders}
    assert tried[:65] != tried[65:]
    other = options(method="random", total_episodes=1000, trial_episodes=100, seed=1)
    assert [one.trial.workflow for one in played(other, SPACE, hill)] != tried[:10]


def test_halving_keeps_the_better_half_and_goes_on_from_its_own_weights() -> None:
    opts = options(method="halving", total_episodes=100_000, side_by_side=3)
    results = played(opts, SPACE, hill)
    sizes = [65, 33, 17, 9, 5, 3, 2]
    assert len(results) == sum(sizes)
    first, rungs = 0, []
    for size in sizes:
        rungs.append(results[first : first + size])
        first += size
    assert [rung[0].trial.episodes for rung in rungs] == [200, 400, 800, 1500, 2800, 4700, 7100]
    for before, after in pairwise(rungs):
        kept = sorted(before, key=lambda one: one.env_return, reverse=True)[: len(after)]
        assert sorted(one.env_return for one in after) == sorted(one.env_return for one in kept)
        numbers = {one.trial.workflow: one.trial.number for one in before}
        assert all(one.trial.parent == numbers[one.trial.workflow] for one in after)
    assert {one.trial.workflow for one in rungs[-1]} >= {TARGET}
    assert not any(one.trial.patient for one in results)


def test_halving_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="45500"):
        propose(options(method="halving", total_episodes=1000), SPACE, [])


def test_results_below_the_threshold_are_not_used() -> None:
    best_of_all = WorkflowTrial(number=0, workflow=SPACE.orders[0], episodes=100)
    other = WorkflowTrial(number=1, workflow=SPACE.orders[9], episodes=100)
    results = [result(best_of_all, -1, compliance=0.5), result(other, -50)]
    assert [*last_passed(results)] == [other.workflow]
    chosen = best_result(results)
    assert chosen is not None
    assert chosen.trial == other
    assert best_result(results[:1]) is None
    assert fit_posterior(SPACE.orders, results, foothold_counts=True) is None  # one return is not enough


def test_an_order_that_never_complies_is_not_tried_for_ever() -> None:
    def world(trial: WorkflowTrial) -> TrialResult:
        never_complies = kendall_distance(trial.workflow, TARGET, True) < 2
        return result(trial, hill(trial).env_return, compliance=0.2 if never_complies else 1.0)

    opts = options(total_episodes=25_000, trial_episodes=1000)
    tried = [one.trial.workflow for one in played(opts, SPACE, world)]
    assert max(tried.count(order) for order in tried) <= 6
    assert len({*tried}) > 10


def test_the_posterior_is_certain_of_tried_orders_and_less_so_with_distance() -> None:
    tried = [ORDERS[i] for i in (0, 30, 61, 119)]
    results = [
        result(WorkflowTrial(number=i, workflow=order, episodes=100), -20.0 - 5 * i) for i, order in enumerate(tried)
    ]
    posterior = fit_posterior(ORDERS, results, foothold_counts=False)
    assert posterior is not None
    places = [ORDERS.index(order) for order in tried]
    assert np.allclose(posterior.mean[places], [one.env_return for one in results], atol=4)
    nearest = np.array([min(kendall_distance(order, other, False) for other in tried) for order in ORDERS])
    stds = [posterior.std[nearest == d].mean() for d in range(4)]
    assert stds == sorted(stds)
    assert stds[0] < stds[-1]


def test_trials_begin_with_the_nearest_trained_order() -> None:
    opts = options(method="random", total_episodes=3000, trial_episodes=100, seed=2)
    results = played(opts, FULL, hill)
    assert results[0].trial.parent is None
    for i, one in enumerate(results[1:], 1):
        assert one.trial.parent is not None
        chosen = results[one.trial.parent].trial.workflow
        assert kendall_distance(one.trial.workflow, chosen, False) == min(
            kendall_distance(one.trial.workflow, other.trial.workflow, False) for other in results[:i]
        )


def test_remaining_episodes_are_used_in_whole_rounds() -> None:
    opts = options(method="random", total_episodes=2550, trial_episodes=1000)
    assert [one.trial.episodes for one in played(opts, SPACE, hill)] == [1000, 1000, 500]
    opts = options(method="random", total_episodes=1500, trial_episodes=1000, side_by_side=4)
    assert [one.trial.episodes for one in played(opts, SPACE, hill)] == [300] * 4 + [100] * 3
    short = options(method="random", total_episodes=2000, trial_episodes=1000)
    used = played(short, SPACE, lambda trial: result(trial, -5, episodes=min(600, trial.episodes)))
    assert [one.episodes for one in used] == [600, 600, 600, 200]


def history(compliance: list[float], returns: list[float]) -> list[dict[str, Any]]:
    return [{"compliance": c, "env_return": r} for c, r in zip(compliance, returns, strict=True)]


def test_a_trial_ends_when_it_no_longer_improves() -> None:
    opts, trial = (
        options(patience=5, compliance_threshold=0.9),
        WorkflowTrial(number=0, workflow=TARGET, episodes=10_000),
    )
    rising = [0.02 * i for i in range(60)]
    falling = [-100.0 - i for i in range(60)]
    assert end_reason(history(rising[:45], falling[:45]), trial, opts) is None  # its compliance improves
    assert end_reason(history([0.5] * 40, rising[:40]), trial, opts) == "its compliance no longer improves"
    assert end_reason(history([0.95] * 40, [-100 + i for i in range(40)]), trial, opts) is None  # its return improves
    assert end_reason(history([0.95] * 40, [-30.0] * 40), trial, opts) == "its return no longer improves"
    assert end_reason(history([0.95] * 40, [-30.0] * 40), trial.model_copy(update={"patient": False}), opts) is None
    early = WINDOW + 4
    assert end_reason(history([0.95] * early, [-30.0] * early), trial, opts) is None


def test_one_policy_for_all_orders_is_one_trial() -> None:
    opts = options(method="conditioned", total_episodes=5000)
    (trial,) = propose(opts, SPACE, [])
    assert (trial.workflow, trial.episodes, trial.parent) == ("distinct", 5000, None)
    assert not propose(opts, SPACE, [result(trial, -3)])
