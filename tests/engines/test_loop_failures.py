"""The training loop when episodes, updates, workers, disks or listeners fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import (
    ANY_LAG,
    EVALUATE,
    TRAIN,
    UNEXPLAINED,
    Failures,
    Training,
    plan_of,
    prepare,
    run,
    sends,
)

from remuda.core.errors import GameError, LearnerError, RemudaError, StorageError, WorkerError
from remuda.core.failures import SkippedUpdates
from remuda.core.fragment import Purpose
from remuda.engines.interfaces import Delivery
from remuda.engines.loop import Loop
from remuda.runs.failure_log import MAX_ATTEMPTS, MIN_FAILURES, FailureLog


@UNEXPLAINED
@given(
    lag=st.integers(0, 1),
    task=st.integers(1, 4),
    failing=st.dictionaries(st.tuples(st.just(TRAIN), st.integers(0, 23)), st.integers(1, 2), max_size=6),
    picks=st.lists(st.integers(0, 9), max_size=20),
)
def test_failures_that_pass_do_not_change_the_result(
    lag: int, task: int, failing: dict[tuple[Purpose, int], int], picks: list[int]
) -> None:
    usual = run(plan_of(lag=lag))
    failures = Failures(attempts=ANY_LAG)
    trained = run(plan_of(lag=lag), task=task, failing=failing, picks=picks, failures=failures)
    assert trained.rows == usual.rows
    assert failures.played == 24 + 2
    assert failures.counts.total() >= sum(failing.values())


@pytest.mark.parametrize("free", [False, True])
def test_the_episodes_of_a_failed_task_are_played_again_alone(free: bool) -> None:
    trained = run(plan_of(), free=free, task=3, capacity=4, failing={(TRAIN, 5): 2})
    with_five = [call.episodes for call in sends(trained) if 5 in call.episodes]
    assert with_five == [(4, 5, 6), (5,), (5,)]
    assert [call.episodes for call in sends(trained)].count((4,)) == 1
    assert trained.played == list(range(24))


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("on_lag", ["wait", "drop"])
def test_an_episode_that_is_given_up_is_replaced(free: bool, on_lag: str, tmp_path: Path) -> None:
    plan = plan_of(on_lag=on_lag)
    log = FailureLog(plan, tmp_path, lambda text: None)
    trained = run(plan, free=free, max_lag=1, task=2, capacity=4, failing={(TRAIN, 5): MAX_ATTEMPTS}, failures=log)
    others = [episode for episode in trained.played if episode not in range(24)]
    assert len(others) == 1
    assert others[0] % 4 == 5 % 4, "another world"
    assert [episode for episode in range(24) if episode not in trained.played] == [5]
    assert log.given_up == [5]
    assert log.played >= 24 + 2


def test_an_evaluation_episode_that_fails_is_played_again(tmp_path: Path) -> None:
    plan = plan_of(evaluate_episodes=3)
    log = FailureLog(plan, tmp_path, lambda text: None)
    trained = run(plan, task=3, failing={(EVALUATE, 1): 1}, failures=log)
    assert trained.listener.evaluations == [(6, 6, (0, 1, 2))]
    assert [call.episodes for call in sends(trained, EVALUATE)] == [(0, 1, 2), (0,), (1,), (2,)]
    assert trained.played == list(range(24))


@pytest.mark.parametrize("free", [False, True])
def test_too_many_failures_end_the_run_after_saving(free: bool, tmp_path: Path) -> None:
    plan = plan_of()
    log = FailureLog(plan, tmp_path, lambda text: None)
    failing = {(TRAIN, episode): MIN_FAILURES for episode in range(8, 12)}
    training = prepare(plan, free=free, task=2, capacity=4, failing=failing, failures=log)
    with pytest.raises(GameError, match="more failures than max_failures"):
        training.run()
    assert log.failures == MIN_FAILURES
    (saved,) = training.listener.saves
    assert saved.state.rounds == len(training.trainers.history) >= 2
    assert training.collectors.closed
    assert training.trainers.closed
    resumed = run(plan, free=free, task=2, capacity=4, state=saved)
    assert len(set(training.played + resumed.played)) == len(training.played + resumed.played) == 24
    assert sorted({episode % 4 for episode in resumed.played}) == [0, 1, 2, 3]


def test_skipped_updates_are_told_and_may_end_the_run(tmp_path: Path) -> None:
    skipped = SkippedUpdates((0, 1), 3, "learning raised ZeroDivisionError", traceback="Traceback …")
    log = FailureLog(plan_of(), tmp_path, lambda text: None)
    training = prepare(plan_of(), skipped={1: [skipped], 3: [skipped], 4: [skipped], 5: [skipped]}, failures=log)
    with pytest.raises(LearnerError, match="round 3 in a row"):
        training.run()
    assert log.updates_skipped == 12
    assert training.listener.saves[-1].state.rounds == 5


def failing_recv(training: Training, error: Exception, after: int) -> None:
    recv = training.collectors.recv

    def receive(timeout_s: float) -> Delivery:
        if len([call for call in training.collectors.calls if call.verb == "recv"]) == after:
            raise error
        return recv(timeout_s)

    training.collectors.recv = receive  # type: ignore[method-assign]


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("error", [WorkerError("all workers died"), ZeroDivisionError("a bug")])
def test_an_error_is_raised_after_the_complete_rounds_are_saved(free: bool, error: Exception) -> None:
    training = prepare(plan_of(), free=free, capacity=4, delays=[9] * 6)
    failing_recv(training, error, after=14)
    with pytest.raises(type(error), match=str(error)):
        training.run()
    (saved,) = training.listener.saves
    assert saved.state.rounds == 3
    assert training.listener.versions == [1, 2, 3]
    assert training.collectors.closed
    assert training.trainers.closed
    resumed = run(plan_of(), free=free, capacity=4, state=saved)
    assert sorted(training.played + resumed.played) == list(range(24))


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
def test_learners_that_raised_are_not_saved(free: bool, lag: int) -> None:
    training = prepare(plan_of(lag=lag, checkpoint_every=8), free=free, errors={4: ZeroDivisionError("in the middle")})
    with pytest.raises(ZeroDivisionError, match="in the middle"):
        training.run()
    assert [saved.state.rounds for saved in training.listener.saves] == [2]
    assert training.collectors.closed
    assert training.trainers.closed


def test_a_disk_that_is_full_is_not_answered_by_saving_again() -> None:
    training, attempts = prepare(plan_of(checkpoint_every=8)), []

    def refuse(loop: Loop) -> None:
        attempts.append(loop.rounds)
        raise StorageError("no space left")

    training.listener.on_save = refuse
    with pytest.raises(StorageError):
        training.run()
    assert attempts == [2]
    assert training.collectors.closed


@pytest.mark.parametrize("side", ["collectors", "trainers"])
def test_nothing_is_saved_if_one_side_cannot_start(side: str) -> None:
    training = prepare(plan_of())

    def start() -> None:
        raise RemudaError("it does not start")

    getattr(training, side).start = start
    with pytest.raises(RemudaError, match="does not start"):
        training.run()
    assert training.listener.saves == []
    assert training.collectors.closed
    assert training.trainers.closed


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("round_", [1, 2, 3])
def test_a_listener_that_raises_leaves_a_state_that_can_be_resumed(free: bool, round_: int) -> None:
    plan = plan_of(episodes_per_update=2, total_episodes=10)
    training = prepare(plan, free=free, task=3, capacity=6)

    def collected(number: int) -> None:
        if number == round_:
            raise ValueError("a callback's mistake")

    training.listener.on_collected = collected
    with pytest.raises(ValueError, match="a callback's mistake"):
        training.run()
    (saved,) = training.listener.saves
    resumed = run(plan, free=free, task=3, capacity=6, state=saved)
    learned = [own.episode for own_round in training.trainers.history + resumed.trainers.history for own in own_round]
    assert sorted(learned) == list(range(10))
