"""The training loop, with collectors and trainers in memory: every rule of it in milliseconds."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from remuda.core.errors import GameError, LearnerError, RemudaError, Stopped, StorageError, WorkerError
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Purpose
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.engines import loop as loop_module
from remuda.engines.interfaces import Delivery, LostRounds, Rows, Update
from remuda.engines.loop import MAX_ROUNDS_AHEAD, Loop, LoopState
from remuda.engines.summary import EpisodeSummary
from remuda.runs.failure_log import MAX_ATTEMPTS, MIN_FAILURES, FailureLog
from remuda.testing.fakes import Call, FakeCollectors, FakeTrainers, PlayedEpisode

TRAIN, EVALUATE = Purpose.TRAIN, Purpose.EVALUATE
ANY_LAG = 1 << 30
UNEXPLAINED = settings(phases=[phase for phase in Phase if phase is not Phase.explain])
"""A loop that never ends costs a second per example: Hypothesis may look for a smaller one, but not vary all of it."""
SUBSTITUTE = 1 << 20


def plan_of(**settings: Any) -> Plan:
    usual = {"worlds": 4, "total_episodes": 24, "evaluate_episodes": 2, "checkpoint_every": 10_000}
    return Plan(game="fake", **{**usual, **settings})


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds of the loop and the trainers."""

    loop: str  # JSON
    learners: dict[str, NDArray[Any]]
    acting: Rows
    clock_s: float  # of the collectors
    lags: Counter[int]

    @property
    def state(self) -> LoopState:
        return LoopState.model_validate_json(self.loop)


@dataclass
class Listener:
    """Keeps everything the loop tells."""

    collected_episodes: dict[int, list[int]] = field(default_factory=dict)  # by round
    versions: list[int] = field(default_factory=list)  # learned
    evaluations: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)  # rounds, version, episodes
    saves: list[Saved] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)  # what was told of which round or version
    on_collected: Callable[[int], None] = lambda round_: None
    on_learned: Callable[[int], None] = lambda version: None
    on_save: Callable[[Loop], None] = lambda loop: None

    def collected(self, round_: int, summaries: Sequence[EpisodeSummary]) -> None:
        self.collected_episodes.setdefault(round_, []).extend(summaries[0].origin.episodes.tolist())
        self.events.append(("collected", round_))
        self.on_collected(round_)

    def learned(self, loop: Loop, update: Update) -> None:
        self.versions.append(update.version)
        self.events.append(("learned", update.version))
        self.on_learned(update.version)

    def rewound(self, round_: int) -> None:
        self.collected_episodes = {n: own for n, own in self.collected_episodes.items() if n <= round_}
        self.events.append(("rewound", round_))

    def evaluated(self, rounds: int, acting: Update, results: Sequence[Sequence[EpisodeSummary]]) -> None:
        assert acting.rows is not None
        assert all(own.oldest == acting.version for (own,) in results), "played with other weights"
        episodes = np.concatenate([own.origin.episodes for (own,) in results])
        self.evaluations.append((rounds, acting.version, tuple(episodes.tolist())))

    def save(self, loop: Loop) -> None:
        self.on_save(loop)
        assert loop.trainers.version == loop.rounds, "a complete round is not learned"
        rows = loop.published.rows if loop.published.version != loop.rounds else loop.trainers.rows()
        assert rows is not None
        self.saves.append(
            Saved(
                json.dumps(loop.state().model_dump(mode="json")),
                loop.trainers.state(),
                rows,
                loop.collectors.counters().wall_s,
                loop.trainers.lags.copy(),
            )
        )


@dataclass
class Failures:
    """Plays every failed episode again; after `attempts` failures another one stands in for it."""

    attempts: int = 3
    played: int = 0
    skipped: list[SkippedUpdates] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)

    def count(self, episodes: int, invalid_samples: object) -> None:
        self.played += episodes

    def record(self, failure: TaskFailure) -> list[int]:
        self.counts.update(failure.task.episodes)
        return [e + SUBSTITUTE * (self.counts[e] == self.attempts) for e in failure.task.episodes]

    def note_skipped_updates(self, skipped_updates: Sequence[SkippedUpdates]) -> None:
        self.skipped += skipped_updates


class StopAfter:
    """Raises Stopped in the given call, of the loop's or of the collectors'."""

    def __init__(self, calls: int | None = None) -> None:
        self.calls, self.made = calls, 0

    def __call__(self) -> None:
        self.made += 1
        if self.calls is not None and self.made > self.calls:
            raise Stopped("asked to")


@dataclass
class Training:
    """A loop of fakes, and everything around it."""

    loop: Loop
    collectors: FakeCollectors
    trainers: FakeTrainers
    listener: Listener

    def run(self) -> Training:
        """Train to the end."""
        self.loop.run()
        assert self.loop.finished
        assert self.collectors.unreleased == 0
        return self

    def stopped(self) -> bool:
        """Train until somebody stops it; returns whether somebody did."""
        try:
            self.run()
        except Stopped:
            return True
        return False

    @property
    def rows(self) -> list[list[float]]:
        """The final weights."""
        return self.trainers.rows()[0].tolist()

    @property
    def played(self) -> list[int]:
        """The episodes learned, in order."""
        return sorted(played.episode for round_ in self.trainers.history for played in round_)


def prepare(
    plan: Plan,
    *,
    free: bool = False,
    max_lag: int = ANY_LAG,
    task: int = 1,
    capacity: int | None = None,
    workers: int = 1 << 30,
    picks: Any = (),
    failing: Any = None,
    stop: StopAfter | None = None,
    failures: Any = None,
    self_publishing: bool = False,
    state: Saved | None = None,
    **trainers: Any,
) -> Training:
    """A loop ready to run, from its beginning or from `state`, put back as `TrainState.restore` does."""
    stop = stop or StopAfter()
    collectors = FakeCollectors(
        plan, task_episodes=task, capacity=capacity, workers=workers, picks=picks, failing=failing, stop=stop
    )
    own = FakeTrainers(plan, publish_to=collectors if self_publishing else None, **trainers)
    listener = Listener()
    loop = Loop(
        plan, collectors, own, listener, failures or Failures(), stop, Update(0, own.rows()), free=free, max_lag=max_lag
    )
    if state is not None:
        own.restore(state.state.rounds, state.learners)
        loop.restore(state.state, Update(state.state.published, state.acting))
        own.lags = state.lags.copy()
        collectors.spent.wall = state.clock_s
    return Training(loop, collectors, own, listener)


def run(plan: Plan, **how: Any) -> Training:
    return prepare(plan, **how).run()


def shuffled(seed: int) -> Iterator[int]:
    """Deliver tasks in a random order."""
    generator = random.Random(seed)
    return (generator.randrange(1 << 20) for _ in count())


def sends(training: Training, purpose: Purpose = TRAIN) -> list[Call]:
    return [call for call in training.collectors.calls if call.verb == "send" and call.purpose is purpose]


def outstanding(training: Training) -> Iterator[tuple[Call, int]]:
    """Each call, and the training episodes that are out before it."""
    out = 0
    for call in training.collectors.calls:
        yield call, out
        if call.purpose is TRAIN:
            out += len(call.episodes) * {"send": 1, "recv": -1, "publish": 0}[call.verb]


def lose_rounds(training: Training, *versions: int) -> None:
    """Have the trainers lose everything since the last save, once at each of these versions."""
    own, poll, left = training.trainers, training.trainers.poll, list(versions)

    def poll_or_lose(version: int) -> list[Update]:
        if left and own.version >= left[0]:
            left.pop(0)
            raise LostRounds("a learner is gone")
        return poll(version)

    def rewind() -> tuple[int, Update]:
        for piece in (piece for pieces in own._pieces.values() for piece in pieces):
            piece.release()
        for kept in (own._pieces, own._complete_rounds, own._done, training.collectors.tasks):
            kept.clear()
        saved = training.listener.saves[-1]
        own.restore(saved.state.rounds, saved.learners)
        return saved.state.rounds, Update(saved.state.published, saved.acting)

    own.poll, own.rewind = poll_or_lose, rewind  # type: ignore[method-assign]


# By round


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


# Free


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
    most = 0

    def look(round_: int) -> None:
        nonlocal most
        sent = sum(len(call.episodes) for call in sends(slow))
        most = max(most, sent - plan.episodes_after(slow.trainers.version))

    slow.listener.on_collected = look
    slow.run()
    assert most == 3 + MAX_ROUNDS_AHEAD * 2


FREE_PLANS = st.fixed_dictionaries(
    {
        "worlds": st.integers(1, 5),
        "episodes_per_update": st.integers(1, 5),
        "total_episodes": st.integers(1, 30),
        "evaluate_every": st.sampled_from([0, 3, 7]),
    }
)
FREE_PLACEMENTS = st.fixed_dictionaries(
    {
        "task": st.integers(1, 5),
        "capacity": st.integers(5, 12),
        "workers": st.integers(0, 4),
        "picks": st.lists(st.integers(0, 9), max_size=30),
        "delays": st.lists(st.integers(0, 6), max_size=12),
        "failing": st.dictionaries(st.tuples(st.just(TRAIN), st.integers(0, 29)), st.integers(1, 2), max_size=2),
        "publications": st.sampled_from([lambda round_: 1, lambda round_: 3, lambda round_: 1 + round_ % 3]),
        "self_publishing": st.booleans(),
    }
)


@UNEXPLAINED
@given(settings=FREE_PLANS, placement=FREE_PLACEMENTS, max_lag=st.integers(0, 4))
def test_waiting_keeps_the_lag_and_learns_every_episode_once(
    settings: dict[str, Any], placement: dict[str, Any], max_lag: int
) -> None:
    plan = plan_of(on_lag="wait", **settings)
    trained = run(plan, free=True, max_lag=max_lag, **placement)
    assert sorted(episode % SUBSTITUTE for episode in trained.played) == list(range(plan.total_episodes))
    assert max(trained.trainers.lags) <= max_lag
    assert trained.loop.dropped == 0


@UNEXPLAINED
@given(settings=FREE_PLANS, placement=FREE_PLACEMENTS, max_lag=st.integers(0, 4))
def test_dropping_keeps_the_lag_and_learns_every_episode_once(
    settings: dict[str, Any], placement: dict[str, Any], max_lag: int
) -> None:
    plan = plan_of(on_lag="drop", **settings)
    trained = run(plan, free=True, max_lag=max_lag, **placement)
    assert sorted(episode % SUBSTITUTE for episode in trained.played) == list(range(plan.total_episodes))
    assert max(trained.trainers.lags) <= max_lag


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


# Failures


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


# Evaluation


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


def test_by_default_evaluations_play_one_episode_for_twenty_of_training() -> None:
    trained = run(plan_of(evaluate_episodes=1, total_episodes=48))
    assert [rounds for rounds, _, _ in trained.listener.evaluations] == [5, 10, 12]


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


# Saving


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


# Stopping and resuming

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


# Errors


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


# Extension


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
