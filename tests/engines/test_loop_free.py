"""The free training loop: capacity, publication, and the bound on policy lag."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import (
    FREE_PLACEMENTS,
    FREE_PLANS,
    SUBSTITUTE,
    TRAIN,
    UNEXPLAINED,
    outstanding,
    plan_of,
    prepare,
    run,
    sends,
    shuffled,
)

from remuda.engines.loop import MAX_ROUNDS_AHEAD
from remuda.testing.fakes import PlayedEpisode


@pytest.mark.parametrize(("task", "capacity"), [(1, 5), (2, 8), (3, 6)])
@pytest.mark.parametrize("on_lag", ["wait", "drop"])
def test_collectors_have_work_for_all_their_capacity(task: int, capacity: int, on_lag: str) -> None:
    plan = plan_of(worlds=6, total_episodes=48, on_lag=on_lag, evaluate_every=0)
    trained = run(plan, free=True, task=task, capacity=capacity, workers=2, picks=shuffled(3))
    played = 0
    for call, out in outstanding(trained):
        if call.verb == "recv" and call.purpose is TRAIN:
            assert capacity - task < out <= capacity or out == 48 - played
            played += len(call.episodes)
    assert played == 48


def test_a_version_is_published_as_soon_as_it_is_learned() -> None:
    trained = run(plan_of(episodes_per_update=2, total_episodes=8), free=True, capacity=2)
    assert [[own.version for own in played] for played in trained.trainers.history] == [[0, 0], [0, 1], [1, 2], [2, 3]]
    late = run(plan_of(episodes_per_update=2, total_episodes=8), free=True, capacity=2, delays=(4, 4, 4, 4))
    assert sum(late.trainers.lags.values()) == sum(trained.trainers.lags.values())
    assert max(late.trainers.lags) > max(trained.trainers.lags)


def test_no_more_than_a_few_rounds_wait_to_be_learned() -> None:
    plan = plan_of(episodes_per_update=2, total_episodes=60)
    slow = prepare(plan, free=True, capacity=3, delays=[1000] * 30)
    highest = 0

    def look(round_: int) -> None:
        nonlocal highest
        sent = sum(len(call.episodes) for call in sends(slow))
        highest = max(highest, sent - plan.episodes_after(slow.trainers.version))

    slow.listener.on_collected = look
    slow.run()
    assert highest == 3 + MAX_ROUNDS_AHEAD * 2


@pytest.mark.parametrize("on_lag", ["wait", "drop"])
@UNEXPLAINED
@given(settings=FREE_PLANS, placement=FREE_PLACEMENTS, max_lag=st.integers(0, 4))
def test_the_lag_is_kept_and_every_episode_learned_once(
    on_lag: str, settings: dict[str, Any], placement: dict[str, Any], max_lag: int
) -> None:
    plan = plan_of(on_lag=on_lag, **settings)
    trained = run(plan, free=True, max_lag=max_lag, **placement)
    assert sorted(episode % SUBSTITUTE for episode in trained.played) == list(range(plan.total_episodes))
    assert max(trained.trainers.lags) <= max_lag
    assert on_lag == "drop" or trained.loop.dropped == 0


def test_waiting_takes_what_was_played_with_older_weights_first() -> None:
    """Episode 0 is slow: episode 2, played with version 1, has to wait for it, or 0 would be two versions late."""
    plan = plan_of(worlds=1, total_episodes=4)
    trained = run(plan, free=True, max_lag=1, capacity=3, picks=[1, 1, 0])
    assert [call.episodes for call in trained.collectors.calls if call.verb == "recv"][:3] == [(1,), (2,), (0,)]
    assert trained.trainers.history[:3] == [[PlayedEpisode(1, 0)], [PlayedEpisode(0, 0)], [PlayedEpisode(2, 1)]]


def test_waiting_lets_newer_episodes_pass_as_long_as_older_ones_stay_in_time() -> None:
    """Episode 0 is slow: with max_lag 2 two others may pass it, and no more."""
    plan = plan_of(worlds=1, total_episodes=6)
    trained = run(plan, free=True, max_lag=2, capacity=3, picks=[1, 1, 1, 0])
    order = [played.episode for (played,) in trained.trainers.history]
    assert order[:4] == [1, 2, 0, 3]
    assert max(trained.trainers.lags) == 2


def test_dropping_drops_exactly_the_episodes_that_are_too_late() -> None:
    """Tasks of 2, rounds of 1, max_lag 1: whatever arrives after two rounds that were learned meanwhile is too late."""
    plan = plan_of(worlds=2, episodes_per_update=1, total_episodes=6, on_lag="drop")
    trained = run(plan, free=True, max_lag=1, task=2, capacity=4, picks=[1, 0])
    sent = [call.episodes for call in sends(trained)]
    assert sent == [(0, 1), (2, 3), (4, 5), (0, 1), (0, 1)]
    assert trained.loop.dropped == 4
    learned = [(own.episode, own.version) for own_round in trained.trainers.history for own in own_round]
    assert learned == [(2, 0), (3, 0), (4, 2), (5, 2), (0, 4), (1, 4)]


def test_dropping_keeps_the_episodes_of_a_task_that_are_in_time() -> None:
    plan = plan_of(worlds=3, episodes_per_update=1, total_episodes=3, on_lag="drop")
    trained = run(plan, free=True, max_lag=1, task=3, capacity=3)
    assert [call.episodes for call in sends(trained)] == [(0, 1, 2), (2,)]
    assert trained.loop.dropped == 1
    assert trained.trainers.history == [[PlayedEpisode(0, 0)], [PlayedEpisode(1, 0)], [PlayedEpisode(2, 2)]]


@pytest.mark.parametrize("on_lag", ["wait", "drop"])
def test_a_task_never_spans_more_rounds_than_the_lag_allows_to_learn(on_lag: str) -> None:
    """One process plays all worlds at once: a task of 4 episodes would fill four rounds of 1."""
    plan = plan_of(worlds=4, episodes_per_update=1, total_episodes=12, on_lag=on_lag)
    trained = run(plan, free=True, max_lag=1, task=4, capacity=4, workers=0)
    assert max(trained.trainers.lags) == 1
    assert trained.played == list(range(12))


def test_trainers_that_publish_themselves_are_not_published_for() -> None:
    plan = plan_of(evaluate_every=8)
    trained = run(plan, free=True, capacity=4, self_publishing=True, publications=lambda round_: 2)
    published = [call for call in trained.collectors.calls if call.verb == "publish" and call.purpose is TRAIN]
    assert [call.version for call in published] == [0, 0, 2, 4, 6, 8, 10, 12]  # the loop's first, then the trainers'
    assert trained.listener.evaluations == [(2, 2, (0, 1)), (4, 4, (0, 1)), (6, 6, (0, 1))]
