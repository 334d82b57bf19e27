"""Runs of the training loop with collectors and trainers in memory."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from remuda.core.errors import Stopped
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Purpose
from remuda.core.plan import Plan
from remuda.engines.interfaces import LostRounds, Rows, Update
from remuda.engines.loop import Loop, LoopState
from remuda.engines.summary import EpisodeSummary
from remuda.testing.fakes import Call, FakeCollectors, FakeTrainers

TRAIN, EVALUATE = Purpose.TRAIN, Purpose.EVALUATE
ANY_LAG = 1 << 30
UNEXPLAINED = settings(phases=[phase for phase in Phase if phase is not Phase.explain])
"""A loop that never ends costs a second per example: Hypothesis may look for a smaller one, but not vary all of it."""
SUBSTITUTE = 1 << 20

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
