"""Statistics against scipy, against formulas written a second time, and against simulated studies."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from remuda.studies import statistics

DRAW = np.random.default_rng(4)
X, Y = DRAW.normal(3, 1, 12), DRAW.normal(2, 2, 9)


def test_values_are_those_of_scipy() -> None:
    assert statistics.mean([X]).value == pytest.approx(X.mean())
    assert statistics.interquartile_mean([X]).value == pytest.approx(stats.trim_mean(X, 0.25))
    assert statistics.median([X]).value == pytest.approx(np.median(X))
    assert statistics.mean([X, Y]).value == pytest.approx((X.mean() + Y.mean()) / 2)


def test_intervals_are_near_those_of_scipy() -> None:
    """With many seeds all methods agree to within bootstrap error."""
    many = DRAW.exponential(size=300)
    for ours, theirs in ((statistics.mean, np.mean), (statistics.interquartile_mean, trimmed)):
        found, other = ours([many]), stats.bootstrap((many,), theirs, random_state=1).confidence_interval
        width = other.high - other.low
        assert found.low == pytest.approx(other.low, abs=0.08 * width)
        assert found.high == pytest.approx(other.high, abs=0.08 * width)
    by_t_distribution = stats.ttest_1samp(X, 0).confidence_interval(0.95)
    assert statistics.mean([X]).low == pytest.approx(by_t_distribution.low, abs=0.15)
    assert statistics.mean([X]).high == pytest.approx(by_t_distribution.high, abs=0.15)
    for seeds in (4, 5, 9):
        few = statistics.mean([X[:seeds]])
        assert (few.low, few.high) == pytest.approx(tuple(stats.ttest_1samp(X[:seeds], 0).confidence_interval(0.95)))


def test_strata_are_resampled_one_by_one_as_by_scipy() -> None:
    """Two tasks far apart: scores drawn across them would make intervals ten times as wide."""
    tasks = [DRAW.normal(0, 1, 200), DRAW.normal(50, 3, 150)]
    for ours, one in ((statistics.mean, np.mean), (statistics.interquartile_mean, trimmed)):

        def over_tasks(x: np.ndarray, y: np.ndarray, axis: int = -1, one: Any = one) -> np.ndarray:
            return (one(x, axis=axis) + one(y, axis=axis)) / 2

        found = ours(tasks)
        other = stats.bootstrap(tasks, over_tasks, method="basic", random_state=1).confidence_interval
        width = other.high - other.low
        assert found.value == pytest.approx(over_tasks(*tasks))
        assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.08 * width)


def trimmed(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return stats.trim_mean(x, 0.25, axis=axis)


def test_the_median_lies_between_order_statistics() -> None:
    """scipy's exact interval for ten scores is the second to the ninth; ours is inside it and outside the next."""
    x = np.sort(X[:10])
    exact = stats.quantile_test(x, p=0.5).confidence_interval(0.95)
    ours = statistics.median([x])
    assert (exact.low, exact.high) == (x[1], x[8])
    assert x[1] < ours.low < x[2]
    assert x[7] < ours.high < x[8]


def test_few_seeds_get_no_interval() -> None:
    assert math.isnan(statistics.mean([X[:1]]).low)
    assert math.isnan(statistics.interquartile_mean([X[:4]]).low)
    assert math.isnan(statistics.median([X[:5]]).low)
    assert math.isnan(statistics.compare(X[:1], Y).difference.low)
    same = statistics.mean([np.ones(10)])
    assert (same.low, same.high) == (1.0, 1.0)


def test_comparisons_are_those_of_scipy() -> None:
    found = statistics.compare(X, Y, margin=4.0)
    welch = stats.ttest_ind(X, Y, equal_var=False)
    assert found.p_value == pytest.approx(welch.pvalue)
    assert found.difference.low == pytest.approx(welch.confidence_interval(0.95).low)
    pairs = [float(x > y) + 0.5 * float(x == y) for x, y in product(X, Y)]
    assert found.improvement.value == pytest.approx(np.mean(pairs))
    assert found.improvement.value == pytest.approx(stats.mannwhitneyu(X, Y).statistic / (len(X) * len(Y)))
    assert found.p_improvement == pytest.approx(stats.brunnermunzel(X, Y).pvalue)
    assert found.improvement.low < found.improvement.value < found.improvement.high
    lower = statistics.compare(X, Y, higher_is_better=False)
    assert lower.improvement.value == pytest.approx(1 - found.improvement.value)
    assert lower.improvement.low == pytest.approx(1 - found.improvement.high)


def test_complete_separation_still_has_an_interval() -> None:
    found = statistics.compare(X, X - 100)
    assert (found.improvement.value, found.improvement.high) == (1.0, 1.0)
    assert 0.5 < found.improvement.low < 1
    assert statistics.compare(X - 100, X).improvement.high == pytest.approx(1 - found.improvement.low)
    assert found.p_improvement == pytest.approx(stats.mannwhitneyu(X, X - 100, method="exact").pvalue)


def test_equivalence_is_two_one_sided_tests() -> None:
    """The textbook way: equivalent at 5 % where the 90 % interval of the difference lies within the margin."""
    for margin in np.linspace(0.1, 5, 50):
        interval = stats.ttest_ind(X, Y, equal_var=False).confidence_interval(0.90)
        inside = -margin < interval.low and interval.high < margin
        assert (statistics.equivalence(X, Y, float(margin)) < 0.05) == inside


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_step_down_procedure(p_values: list[float]) -> None:
    rejected = [p <= 0.05 for p in statistics.holm(p_values)]
    ordered = sorted(p_values)
    passing = 0
    while passing < len(ordered) and ordered[passing] * (len(ordered) - passing) <= 0.05:
        passing += 1
    assert sum(rejected) == passing


def test_profiles_are_shares_of_runs() -> None:
    thresholds = np.array([X.min(), np.median(X), X.max() + 1])
    found = statistics.profile(X, thresholds)
    assert [own.value for own in found] == [1.0, 0.5, 0.0]
    low, high = stats.binomtest(6, 12).proportion_ci(0.95, "wilson")
    assert (found[1].low, found[1].high) == pytest.approx((low, high))
    assert next(own.value for own in statistics.profile(X, thresholds, higher_is_better=False)) == 1 / 12


def test_the_effect_of_seeds_is_told_from_that_of_evaluation_episodes() -> None:
    seeds, episodes = DRAW.normal(0, 2, 4000), DRAW.normal(0, 1.5, (4000, 9))
    scores = seeds + episodes.mean(axis=1)
    errors = episodes.std(axis=1, ddof=1) / 3
    found = statistics.spread(scores, errors)
    assert found.seeds == pytest.approx(2, rel=0.05)
    assert found.evaluation == pytest.approx(0.5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "draw"),
    [("normal", DRAW.normal), ("exponential", DRAW.exponential)],
)
def test_intervals_cover_in_simulated_studies(name: str, draw: object) -> None:
    """2,000 studies of ten seeds: the 95 % intervals of mean, median and IQM cover in 93 to 97 % of them."""
    one: dict[str, tuple[float, float, float]] = {
        "normal": (0.0, 0.0, 0.0),
        # Quartiles ln(4/3) and ln 4; the mean between them is 1 + (3/4 ln(4/3) - 1/4 ln 4) · 2.
        "exponential": (1.0, math.log(2), 1 + 2 * (0.75 * math.log(4 / 3) - 0.25 * math.log(4))),
    }
    studies = draw(size=(2000, 10))  # type: ignore[operator]
    for statistic, truth in zip(
        (statistics.mean, statistics.median, statistics.interquartile_mean), one[name], strict=True
    ):
        found = [statistic([scores]) for scores in studies]
        assert 0.93 <= np.mean([own.low <= truth <= own.high for own in found]) <= 0.97, statistic.__name__


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [10, 20])
def test_the_interval_of_the_iqm_covers_where_scores_have_two_modes(seeds: int) -> None:
    """As of runs of which three in ten stay on a plateau; and no end of it lies outside of the scores."""
    grid = np.linspace(-10, 130, 200_001)
    shares = 0.3 * stats.norm.cdf(grid, 20, 5) + 0.7 * stats.norm.cdf(grid, 100, 5)
    truth = np.interp(np.linspace(0.25, 0.75, 100_001), shares, grid).mean()
    low, high = DRAW.normal(20, 5, (2000, seeds)), DRAW.normal(100, 5, (2000, seeds))
    studies = np.where(DRAW.random((2000, seeds)) < 0.3, low, high)
    found = [statistics.interquartile_mean([scores]) for scores in studies]
    assert 0.93 <= np.mean([own.low <= truth <= own.high for own in found]) <= 0.97
    assert all(scores.min() <= own.low <= own.high <= scores.max() for own, scores in zip(found, studies, strict=True))


def test_two_modes_do_not_blow_up_the_interval_of_the_iqm() -> None:
    scores = np.array([18.0, 20.0, 23.0, 96.0, 98.0, 99.0, 101.0, 102.0, 104.0, 105.0])
    found = statistics.interquartile_mean([scores])
    assert scores.min() <= found.low < found.value < found.high <= scores.max()


@pytest.mark.slow
def test_intervals_of_comparisons_cover_in_simulated_studies() -> None:
    pairs = DRAW.normal(size=(2000, 2, 10)) * [[[1.0], [2.0]]] + [[[1.0], [0.0]]]
    truth = stats.norm.cdf(1 / math.sqrt(5))
    found = [statistics.compare(x, y, margin=1.0) for x, y in pairs]
    assert 0.93 <= np.mean([own.difference.low <= 1 <= own.difference.high for own in found]) <= 0.97
    assert 0.93 <= np.mean([own.improvement.low <= truth <= own.improvement.high for own in found]) <= 0.97
    assert np.mean([own.p_equivalence < 0.05 for own in found]) < 0.06  # the difference is the margin itself
