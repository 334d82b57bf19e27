"""The training loop stopped at any point, resumed and extended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from loop_runs import (
    EVALUATE,
    FREE_PLACEMENTS,
    FREE_PLANS,
    SUBSTITUTE,
    TRAIN,
    UNEXPLAINED,
    Failures,
    Listener,
    StopAfter,
    Training,
    plan_of,
    prepare,
    run,
    sends,
    shuffled,
)

from remuda.core.plan import Plan
from remuda.engines.loop import LoopState

PLANS = st.fixed_dictionaries(
    {
        "worlds": st.integers(1, 4),
        "episodes_per_update": st.integers(1, 6),
        "total_episodes": st.integers(1, 16),
        "lag": st.integers(0, 1),
        "evaluate_every": st.sampled_from([0, 3, 5]),
        "checkpoint_every": st.sampled_from([2, 10_000]),
    }
)
PLACEMENTS = st.fixed_dictionaries(
    {
        "task": st.integers(1, 4),
        "workers": st.integers(0, 3),
        "picks": st.lists(st.integers(0, 9), max_size=12),
        "delays": st.lists(st.integers(0, 4), max_size=6),
    }
)
STOPS = st.lists(st.integers(0, 25), min_size=1, max_size=4)


def in_parts(
    plan: Plan, placements: Sequence[dict[str, Any]], stops: Sequence[int], **how: Any
) -> tuple[list[Training], Training]:
    """Train with a stop after each of `stops` calls; returns the parts that were stopped, and the last one."""
    parts: list[Training] = []
    state = None
    for number, calls in enumerate([*stops, None]):
        placement = placements[number % len(placements)]
        training = prepare(plan, stop=StopAfter(calls), state=state, **{**placement, **how})
        if not training.stopped():
            return parts, training
        assert training.collectors.closed
        assert training.trainers.closed
        parts.append(training)
        state = training.listener.saves[-1]
    raise AssertionError("nobody stopped the last part")


@UNEXPLAINED
@given(settings=PLANS, placements=st.lists(PLACEMENTS, min_size=1, max_size=3), stops=STOPS)
def test_stopped_anywhere_and_resumed_elsewhere_equals_never_stopping(
    settings: dict[str, Any], placements: list[dict[str, Any]], stops: list[int]
) -> None:
    plan = plan_of(**settings)
    usual = run(plan)
    parts, last = in_parts(plan, placements, stops)
    assert last.rows == usual.rows
    assert last.trainers.steps() == usual.trainers.steps()
    assert last.trainers.lags == usual.trainers.lags
    listeners = [part.listener for part in [*parts, last]]
    assert [version for own in listeners for version in own.versions] == usual.listener.versions
    assert [own for listener in listeners for own in listener.evaluations] == usual.listener.evaluations


def test_stopped_at_every_single_point() -> None:
    plan = plan_of(total_episodes=9, episodes_per_update=2, lag=1, evaluate_every=4)
    usual = run(plan)
    stop = StopAfter()
    run(plan, stop=stop)
    assert stop.made > 15
    for calls in range(stop.made):
        parts, last = in_parts(plan, [{}], [calls])
        assert len(parts) == 1
        assert last.rows == usual.rows, f"stopped after {calls} calls"
        assert parts[0].collectors.spent.wall < last.collectors.spent.wall, "the clock goes on"


@UNEXPLAINED
@given(
    settings=FREE_PLANS,
    placements=st.lists(FREE_PLACEMENTS, min_size=1, max_size=3),
    stops=STOPS,
    on_lag=st.sampled_from(["wait", "drop"]),
    max_lag=st.integers(0, 4),
)
def test_free_runs_learn_every_episode_once_whenever_they_stop(
    settings: dict[str, Any], placements: list[dict[str, Any]], stops: list[int], on_lag: str, max_lag: int
) -> None:
    plan = plan_of(on_lag=on_lag, **settings)
    one_kind = [{**placement, "publications": placements[0]["publications"]} for placement in placements]
    parts, last = in_parts(plan, one_kind, stops, free=True, max_lag=max_lag)
    rounds = [round_ for part in [*parts, last] for round_ in part.trainers.history]
    learned = [own.episode % SUBSTITUTE for round_ in rounds for own in round_]
    assert sorted(learned) == list(range(plan.total_episodes))
    assert [len(round_) for round_ in rounds] == [
        plan.episodes_after(number + 1) - plan.episodes_after(number) for number in range(plan.rounds)
    ]
    assert max(last.trainers.lags) <= max_lag
    versions = [version for part in [*parts, last] for version in part.listener.versions]
    assert versions == list(range(1, plan.rounds + 1))


def test_dropped_episodes_are_counted_on() -> None:
    plan = plan_of(worlds=3, episodes_per_update=1, total_episodes=6, on_lag="drop")
    how: dict[str, Any] = {"free": True, "max_lag": 1, "task": 3, "capacity": 3}
    whole = run(plan, **how)
    stopped = prepare(plan, stop=StopAfter(5), **how)
    assert stopped.stopped()
    assert stopped.loop.dropped == 1
    assert run(plan, state=stopped.listener.saves[-1], **how).loop.dropped == whole.loop.dropped == 2


def test_a_run_that_stopped_free_goes_on_by_round() -> None:
    plan = plan_of(episodes_per_update=5)
    free = prepare(plan, free=True, capacity=7, picks=shuffled(5), stop=StopAfter(20))
    assert free.stopped()
    saved = free.listener.saves[-1]
    assert saved.state.unfinished
    resumed = run(plan, state=saved, task=3)
    learned = [own.episode for round_ in free.trainers.history + resumed.trainers.history for own in round_]
    assert sorted(learned) == list(range(24))


def test_substitutes_survive_a_stop(tmp_path: Path) -> None:
    plan = plan_of()
    usual = run(plan, failing={(TRAIN, 5): 3}, failures=Failures())
    for calls in range(12, 24):
        failures = Failures()
        training = prepare(plan, failing={(TRAIN, 5): 3}, failures=failures, stop=StopAfter(calls))
        assert training.stopped()
        left = 3 - failures.counts[5]
        resumed = run(plan, failing={(TRAIN, 5): left}, failures=failures, state=training.listener.saves[-1])
        assert resumed.rows == usual.rows, f"stopped after {calls} calls"


def test_a_stop_before_the_first_task_is_saved() -> None:
    training = prepare(plan_of(), stop=StopAfter(0))
    assert training.stopped()
    (saved,) = training.listener.saves
    assert saved.state == LoopState()
    assert run(plan_of(), state=saved).rows == run(plan_of()).rows


def test_a_finished_run_is_left_as_it_is() -> None:
    trained = run(plan_of(lag=1, evaluate_every=4))
    again = run(plan_of(lag=1, evaluate_every=4), state=trained.listener.saves[-1])
    assert again.listener == Listener()
    assert again.rows == trained.rows
    assert sends(again) == sends(again, EVALUATE) == []


@UNEXPLAINED
@given(settings=PLANS, more=st.integers(1, 3), placement=PLACEMENTS)
def test_a_run_that_is_extended_equals_one_that_was_planned_so_long(
    settings: dict[str, Any], more: int, placement: dict[str, Any]
) -> None:
    size = settings["episodes_per_update"]
    short = plan_of(**{**settings, "total_episodes": size * (1 + settings["total_episodes"] // size)})
    long = short.model_copy(update={"total_episodes": short.total_episodes + more * size})
    first = run(short, **placement)
    extended = run(long, state=first.listener.saves[-1], **placement)
    whole = run(long)
    assert extended.rows == whole.rows
    assert first.listener.versions + extended.listener.versions == whole.listener.versions
    assert extended.trainers.lags == whole.trainers.lags


def test_a_free_run_can_be_extended() -> None:
    first = run(plan_of(), free=True, max_lag=2, capacity=6, picks=shuffled(6))
    extended = run(
        plan_of(total_episodes=40), free=True, max_lag=2, capacity=6, picks=shuffled(7), state=first.listener.saves[-1]
    )
    assert sorted(first.played + extended.played) == list(range(40))
    assert max(extended.trainers.lags) <= 2
