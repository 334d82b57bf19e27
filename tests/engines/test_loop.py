"""The training loop by round: versions, publication, evaluation and checkpoints, each rule in milliseconds."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import (
    EVALUATE,
    TRAIN,
    UNEXPLAINED,
    lose_rounds,
    outstanding,
    plan_of,
    prepare,
    run,
    sends,
    shuffled,
)

from remuda.core.task import Task
from remuda.engines import loop as loop_module
from remuda.engines.interfaces import LostRounds
from remuda.engines.loop import Loop
from remuda.testing.fakes import FakeCollectors


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("delays", [(), (5, 0, 9, 1)])
def test_round_k_is_played_with_version_k_minus_lag(lag: int, delays: tuple[int, ...]) -> None:
    trained = run(plan_of(lag=lag), task=2, picks=shuffled(1), delays=delays)
    assert len(trained.trainers.history) == 6
    for rounds_before, played in enumerate(trained.trainers.history):
        assert [own.episode for own in played] == list(range(4 * rounds_before, 4 * rounds_before + 4))
        assert {own.version for own in played} == {max(0, rounds_before - lag)}
    assert trained.listener.versions == [1, 2, 3, 4, 5, 6]
    assert trained.trainers.lags.keys() == ({0} if lag == 0 else {0, 1})


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("lost", [(3,), (5,), (4, 5, 5)])
def test_rounds_that_are_lost_are_played_again_and_told_once(lag: int, lost: tuple[int, ...]) -> None:
    plan = plan_of(lag=lag, checkpoint_every=8, evaluate_every=12)
    whole, disturbed = run(plan, task=2), prepare(plan, task=2)
    lose_rounds(disturbed, *lost)
    disturbed.run()
    assert disturbed.rows == whole.rows
    assert disturbed.listener.versions == [1, 2, 3, 4, 5, 6]
    assert disturbed.listener.evaluations == whole.listener.evaluations
    assert {number: sorted(own) for number, own in disturbed.listener.collected_episodes.items()} == {
        number: sorted(own) for number, own in whole.listener.collected_episodes.items()
    }
    assert [event for event in disturbed.listener.events if event[0] == "rewound"]


def test_the_end_is_saved_though_learners_were_lost_while_it_was() -> None:
    plan = plan_of(checkpoint_every=8)
    whole, disturbed = run(plan), prepare(plan)
    lose_rounds(disturbed)
    left = [LostRounds("a learner is gone")]

    def lose_at_the_end(loop: Loop) -> None:
        if left and loop.rounds == plan.rounds:
            raise left.pop()

    disturbed.listener.on_save = lose_at_the_end
    disturbed.run()
    assert not left
    assert disturbed.listener.saves[-1].state.rounds == plan.rounds
    assert disturbed.listener.evaluations == whole.listener.evaluations
    assert disturbed.rows == whole.rows


@pytest.mark.parametrize("lag", [0, 1])
def test_no_round_is_handed_out_before_the_last_one_is_received(lag: int) -> None:
    trained = run(plan_of(lag=lag, episodes_per_update=3), task=2, capacity=99, picks=shuffled(2))
    for call, out in outstanding(trained):
        if call.verb == "send" and call.purpose is TRAIN:
            rounds = {episode // 3 for episode in call.episodes}
            assert rounds == {call.episodes[0] // 3}, "a task of two rounds"
            assert out == call.episodes[0] % 3, "a round was handed out beside another"
            assert call.version == max(0, rounds.pop() - lag)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_version_is_published_once_and_never_early(lag: int) -> None:
    trained = run(plan_of(lag=lag), delays=(0,))
    published = [call.version for call in trained.collectors.calls if call.verb == "publish" and call.purpose is TRAIN]
    assert published == list(range(6 - lag + 1))


@pytest.mark.parametrize("lag", [0, 1])
def test_by_round_what_is_told_when_does_not_depend_on_how_fast_learning_is(lag: int) -> None:
    fast, slow = (run(plan_of(lag=lag, episodes_per_update=1, total_episodes=4), delays=[d] * 4) for d in (0, 99))
    assert fast.listener.events == slow.listener.events
    told = " ".join(f"{what[0]}{number}" for what, number in fast.listener.events)
    assert told == ("c1 l1 c2 l2 c3 l3 c4 l4" if lag == 0 else "c1 c2 l1 c3 l2 c4 l3 l4")


@UNEXPLAINED
@given(
    worlds=st.integers(1, 5),
    size=st.integers(1, 7),
    total=st.integers(1, 20),
    lag=st.integers(0, 1),
    task=st.integers(1, 5),
    workers=st.integers(0, 3),
    picks=st.lists(st.integers(0, 9), max_size=20),
    delays=st.lists(st.integers(0, 4), max_size=8),
)
def test_by_round_the_result_does_not_depend_on_who_is_faster(
    worlds: int, size: int, total: int, lag: int, task: int, workers: int, picks: list[int], delays: list[int]
) -> None:
    plan = plan_of(worlds=worlds, episodes_per_update=size, total_episodes=total, lag=lag)
    usual = run(plan)
    other = run(plan, task=task, workers=workers, picks=picks, delays=delays)
    assert other.rows == usual.rows
    assert other.played == list(range(total))
    assert other.listener.versions == usual.listener.versions == list(range(1, plan.rounds + 1))


def test_tasks_hold_neighbouring_worlds_also_where_rounds_do_not_divide_them() -> None:
    trained = run(plan_of(worlds=4, episodes_per_update=6, total_episodes=17), task=4)
    assert [call.episodes for call in sends(trained)] == [
        (0, 1, 2, 3), (4, 5),
        (6, 7), (8, 9, 10, 11),
        (12, 13, 14, 15), (16,),
    ]  # fmt: skip
    assert [len(played) for played in trained.trainers.history] == [6, 6, 5], "the last round is short"
    assert trained.listener.collected_episodes == {1: [*range(6)], 2: [*range(6, 12)], 3: [*range(12, 17)]}


@pytest.mark.parametrize(("lag", "expected"), [(0, [(2, 2), (4, 4), (6, 6)]), (1, [(2, 1), (4, 3), (6, 6)])])
def test_evaluations_use_the_published_weights_and_at_the_end_the_newest(
    lag: int, expected: list[tuple[int, int]]
) -> None:
    trained = run(plan_of(lag=lag, evaluate_every=8, evaluate_episodes=5), task=2, picks=shuffled(4))
    assert trained.listener.evaluations == [(rounds, version, (0, 1, 2, 3, 4)) for rounds, version in expected]
    assert [call.episodes for call in sends(trained, EVALUATE)] == [(0, 1), (2, 3), (4,)] * 3


@pytest.mark.parametrize("every", [0, 5, 7])
def test_an_evaluation_is_due_when_a_multiple_is_crossed(every: int) -> None:
    trained = run(plan_of(evaluate_every=every, total_episodes=20))
    due = [rounds for rounds in range(1, 5) if every and 4 * (rounds - 1) // every < 4 * rounds // every]
    assert [rounds for rounds, _, _ in trained.listener.evaluations] == [*due, 5]


def test_by_default_evaluations_play_one_episode_for_thirty_of_training() -> None:
    trained = run(plan_of(evaluate_episodes=1, total_episodes=48))
    assert [rounds for rounds, _, _ in trained.listener.evaluations] == [8, 12]


@pytest.mark.parametrize(("mode", "exploration"), [("greedy", 0.0), ("sampled", None)])
def test_evaluations_are_greedy_or_sampled(
    mode: str, exploration: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, send = [], FakeCollectors.send

    def noting(collectors: FakeCollectors, task: Task) -> None:
        sent.append((task.purpose, task.exploration))
        send(collectors, task)

    monkeypatch.setattr(FakeCollectors, "send", noting)
    run(plan_of(evaluate_mode=mode))
    assert {own for purpose, own in sent if purpose is EVALUATE} == {exploration}


def test_training_episodes_that_arrive_during_an_evaluation_are_kept() -> None:
    plan = plan_of(evaluate_every=8, evaluate_episodes=4)
    meanwhile = 0
    for seed in range(10):
        trained = run(plan, free=True, capacity=6, picks=shuffled(seed))
        assert trained.played == list(range(24))
        assert [rounds for rounds, _, _ in trained.listener.evaluations] == [2, 4, 6]
        assert all(episodes == (0, 1, 2, 3) for _, _, episodes in trained.listener.evaluations)
        evaluating = 0
        for call in trained.collectors.calls:
            if call.purpose is EVALUATE:
                evaluating += {"send": 1, "recv": -1, "publish": 0}[call.verb]
            meanwhile += call.verb == "recv" and call.purpose is TRAIN and evaluating > 0
    assert meanwhile > 10, "none arrived"


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
def test_checkpoints_are_saved_when_a_multiple_is_crossed(free: bool, lag: int) -> None:
    trained = run(plan_of(checkpoint_every=10, lag=lag), free=free, delays=[3] * 6)
    assert [saved.state.rounds for saved in trained.listener.saves] == [3, 5, 6]
    assert [saved.state.settled for saved in trained.listener.saves] == [3, 5, 6]
    published = [3, 5, 6] if free else [3 - lag, 5 - lag, 6 - lag]
    assert [saved.state.published for saved in trained.listener.saves] == published


def test_checkpoints_are_saved_when_their_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    training = prepare(plan_of(checkpoint_every_s=60.0))
    now = time.monotonic()
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: now))

    def learned(version: int) -> None:
        nonlocal now
        now += {1: 59.0, 2: 1.0, 3: 59.9, 4: 0.2}.get(version, 0.0)

    training.listener.on_learned = learned
    training.run()
    assert [saved.state.rounds for saved in training.listener.saves] == [2, 4, 6]


def test_every_call_of_save_sees_a_complete_state() -> None:
    """The fake trainers refuse to give their state while a complete round is not learned and polled."""
    for seed in range(5):
        trained = run(
            plan_of(checkpoint_every=1, episodes_per_update=2),
            free=True,
            capacity=9,
            picks=shuffled(seed),
            delays=[9] * 12,
        )
        assert len(trained.listener.saves) > 3
        for saved in trained.listener.saves:
            learned = {own.episode for round_ in trained.trainers.history[: saved.state.rounds] for own in round_}
            assert not learned & set(saved.state.unfinished)
