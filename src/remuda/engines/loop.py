"""The training loop. Every engine uses this one.

Hand out tasks, receive whatever is finished, give it to the learners, publish what they updated, report, save. Two
ways to wait (`Loop.free`):

- *by round*: round k is handed out once version k - lag of the weights is published, and nothing else is out. The
  result does not depend on which worker is faster.
- *free*: there is always a task out for every collector; whatever arrives first is learned first. `max_lag` bounds the
  policy lag, `on_lag` says what happens instead of exceeding it (`docs/lag.md`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import Field

from remuda.core.errors import ConfigError, LearnerError, Stopped, StorageError
from remuda.core.fragment import Purpose
from remuda.core.plan import Plan
from remuda.core.saved_state import SavedState
from remuda.core.task import Task
from remuda.engines.interfaces import (
    Collectors,
    Delivery,
    FailureHandler,
    LostRounds,
    RoundPiece,
    Trainers,
    Update,
)
from remuda.engines.summary import EpisodeSummary

RECV_TIMEOUT_S = 3600.0
MAX_ROUNDS_AHEAD = 4
"""Rounds that may wait to be learned before free-running collectors pause: it bounds memory, not policy lag."""


class LoopListener(Protocol):
    """Receives what happens in the loop."""

    def collected(self, round_: int, summaries: Sequence[EpisodeSummary]) -> None:
        """Episodes of a round (from 1) were played and given to the learners."""

    def learned(self, loop: Loop, update: Update) -> None:
        """A round was learned."""

    def rewound(self, round_: int) -> None:
        """What was told about rounds after this one is void: they will be played again."""

    def evaluated(self, rounds: int, acting: Update, results: Sequence[Sequence[EpisodeSummary]]) -> None:
        """Evaluation episodes were played with the weights of `acting`."""

    def save(self, loop: Loop) -> None:
        """Save everything: every complete round is learned, and no learner is working."""


class LoopState(SavedState):
    """The part of the state of training that belongs to the loop."""

    rounds: int = Field(0, ge=0)
    settled: int = Field(0, ge=0)
    published: int = Field(0, ge=0)
    unfinished: list[int] = Field(default_factory=list)
    dropped: int = Field(0, ge=0)


@dataclass
class Loop:
    """Trains from where it stands to the end of the plan."""

    plan: Plan
    collectors: Collectors
    trainers: Trainers
    listener: LoopListener
    failure_log: FailureHandler
    stop: Callable[[], None]  # raises Stopped once somebody asked for it
    published: Update
    free: bool = False
    max_lag: int = 0  # largest policy lag where the loop runs free, in versions; see learners/herd.py, tolerated_lag
    rounds: int = 0  # received completely
    settled: int = 0  # rounds after which it was decided whether to evaluate and to save
    dropped: int = 0  # episodes that arrived too late to be learned from
    _reported: int = (
        0  # the newest version the listener was told of: after a rewind, rounds up to it are not told again
    )
    _consistent: bool = False  # collectors and trainers have started, and no learner is in the middle of an update
    _ending: bool = False  # an error ended the run: what is learned is being saved
    _unsaved: bool = False  # the end of the plan is reached and not saved: learners may be lost meanwhile
    _unfinished: dict[int, list[int]] = field(default_factory=dict)  # by rounds of a checkpoint: as in LoopState
    _saved_at: float = field(default_factory=time.monotonic)
    _out: int = 0  # training episodes being played
    _next: int = 0  # the next episode to hand out
    _again: deque[int] = field(default_factory=deque)  # episodes to hand out again
    _pending: set[int] = field(default_factory=set)  # handed out, and not part of a complete round yet
    _partial: list[int] = field(default_factory=list)  # episodes of the round that is not complete yet
    _handed_out: dict[int, int] = field(default_factory=dict)  # episode → version published when it was handed out
    _arrived: deque[Delivery] = field(default_factory=deque)  # played, not yet given to the learners
    _learned: deque[Update] = field(default_factory=deque)  # not yet reported to the listener
    _held: deque[Update] = field(default_factory=deque)  # learned and reported, not yet published

    def run(self) -> None:
        """Train to the end of the plan. On an error or a stop, save the last complete round and re-raise."""
        self._next = self.plan.episodes_after(self.rounds) + len(self._again)
        try:
            self.collectors.start()
            self._publish_update(self.published)
            self.trainers.start()
            self._consistent = True
            while not self._train():
                self._rewind()
        except BaseException as error:
            if isinstance(error, Stopped) or (self._consistent and not self._is_void(error)):
                self._ending = True
                with suppress(LostRounds):  # then the last checkpoint stands
                    self._learn_complete_rounds()
                    self._save()
            raise
        finally:
            self.trainers.close()  # first: they may have to fetch from where collectors are
            self.collectors.close()

    def _is_void(self, error: BaseException) -> bool:
        """Whether nothing is to be saved: it cannot be, or the learners were refused before they had learned at all."""
        if isinstance(error, ConfigError):
            return not any(self.trainers.steps().values())
        return isinstance(error, StorageError)

    def _train(self) -> bool:
        """Train to the end of the plan; returns False if rounds were lost with their learners."""
        try:
            while self.rounds < self.plan.rounds:
                self._send_freely() if self.free else self._send_a_round()
                if self._out:
                    self._store_delivery(self._next_delivery())
                self._take()
            self._finish()
        except LostRounds:
            return False
        return True

    def _rewind(self) -> None:
        """Go back to the last checkpoint and play the rounds since then again; by round the result is the same."""
        version, published = self.trainers.rewind()
        for delivery in self._arrived:
            delivery.release()
        for kept in (self._arrived, self._learned, self._held, self._again, self._partial):
            kept.clear()
        self._handed_out.clear()
        self._again.extend(self._unfinished.get(version, ()))  # free, rounds hold whatever came first
        self._pending = set(self._again)
        self._out, self._next, self.rounds = 0, self.plan.episodes_after(version) + len(self._again), version
        self.listener.rewound(self._reported)
        self._publish_update(published)
        if version > published.version:
            self._held.append(Update(version, self.trainers.rows()))
        self._consistent = True

    @property
    def finished(self) -> bool:
        """Whether every round is learned and the last evaluation is done."""
        return self.settled == self.plan.rounds

    def _finish(self) -> None:
        """Learn what is left, evaluate the final weights and save.

        By round, the version that the next round would be played with stays published: a run that is extended goes on
        with it, as if it had been planned that long.
        """
        self._learn(self.plan.rounds)
        self._publish(self.plan.rounds if self.free else max(0, self.plan.rounds - self.plan.lag))
        if not self.finished:
            self._evaluate(self._held[-1] if self._held else self.published)
            self.settled, self._unsaved = self.rounds, True
        if self._unsaved:
            self._save()
            self._unsaved = False

    def _send_a_round(self) -> None:
        """Publish version k - lag, then hand out round k."""
        if self._out:
            return
        version = max(0, self.rounds - self.plan.lag)
        self._learn(version)
        self._publish(version)
        self._settle()
        self._send(self.plan.episodes_in(self.rounds + 1))
        with self._learning():
            self.trainers.work()

    def _send_freely(self) -> None:
        """Publish what is learned, then hand out tasks for every collector that has capacity."""
        with self._learning():
            self.trainers.work()
        self._learn(self.trainers.version)
        self._publish(self.trainers.version)
        self._settle()
        if not self._send(self._wanted()) and not self._out:
            self._learn(self.trainers.version + 1)  # nothing is being played: wait for the learners

    def _wanted(self) -> int:
        """How many more episodes to hand out: to full capacity, unless learning is far behind.

        With `on_lag: wait` also only as many as can be learned within the bound on policy lag.
        """
        learned, capacity = self.plan.episodes_after(self.trainers.version), self.collectors.capacity()
        limit = capacity + MAX_ROUNDS_AHEAD * self.plan.round_episodes
        if self.plan.on_lag == "wait":
            limit = self._episodes_within_max_lag(learned, limit)
        wanted = min(capacity - self._out, limit - (self._next - len(self._again) - learned))
        task = min(self.collectors.task_episodes(), self.plan.total_episodes - self._next)
        idle = not self._out and self.trainers.version == self.rounds
        return wanted if wanted >= task or idle else 0

    def _episodes_within_max_lag(self, learned: int, limit: int) -> int:
        """The number of episodes after the learned ones, up to `limit`, that can be played with the newest version.

        It is never less than a round.
        """
        size, version = self.plan.round_episodes, self.trainers.versions_after(self.trainers.version)
        limit = min(limit, (self.max_lag + 1) * size)  # a round makes one version or more
        while limit > size and not self._within_max_lag(learned + limit, version):
            limit = max(size, limit - size)
        return limit

    def _within_max_lag(self, count: int, version: int) -> bool:
        """The bound on policy lag: whether episode `count` in the order of learning (from 1) may have this version.

        `_episodes_within_max_lag`, `_may_learn_within_max_lag` and `_drop_stale_episodes` apply it.
        """
        rounds_before = (count - 1) // self.plan.round_episodes
        return self.trainers.versions_after(rounds_before) - version <= self.max_lag

    def _store_delivery(self, delivery: Delivery) -> None:
        self._out -= delivery.episodes
        self._arrived.append(delivery)

    def _next_delivery(self) -> Delivery:
        """The next delivery. Failed tasks are handed out again, or replaced as the failure log decides."""
        while True:
            delivery = self.collectors.recv(RECV_TIMEOUT_S)
            if delivery.failure is None:
                self.failure_log.count(delivery.episodes, delivery.invalid_samples)
                return delivery
            task = delivery.task
            episodes = self.failure_log.record(delivery.failure)
            if task.purpose is Purpose.TRAIN:
                self._forget(task.episodes)
                self._pending.difference_update(task.episodes)
                self._note_handed_out(episodes)
            for episode in episodes:
                self.collectors.send(replace(task, episodes=(episode,)))

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """An error raised in here leaves learners in the middle of an update: their state must not be saved."""
        self._consistent = False
        yield
        self._consistent = True

    def _take(self) -> None:
        """Give arrived deliveries to the learners, oldest weights first, as far as the bound on policy lag allows."""
        self._arrived = deque(sorted(self._arrived, key=lambda delivery: self._handed_out[delivery.task.episodes[0]]))
        while self._arrived and self._may_learn_within_max_lag(self._arrived[0]):
            delivery = self._drop_stale_episodes(self._arrived.popleft())
            pieces = self.trainers.take(delivery) if delivery.episodes else []
            for piece in pieces:
                self._partial += piece.delivery.task.episodes[piece.worlds]
                if piece.round <= self.trainers.taken:
                    self._pending.difference_update(self._partial)
                    self._partial.clear()
            self.rounds = self.trainers.taken
            for piece in pieces:  # last: a listener that raises must not leave the counters between two rounds
                self._report_collected(piece)

    def _report_collected(self, piece: RoundPiece) -> None:
        if piece.round > self._reported:
            self.listener.collected(piece.round, piece.summaries)

    @property
    def _episodes_taken(self) -> int:
        """Episodes given to the learners."""
        return self.plan.episodes_after(self.rounds) + len(self._partial)

    def _may_learn_within_max_lag(self, delivery: Delivery) -> bool:
        """The bound on policy lag, `on_lag: wait`: after this delivery, older episodes must still be learned in time.

        Older deliveries are taken first, so that it is enough to count the episodes of each version.
        """
        if not self.free or self.plan.on_lag == "drop" or self._within_max_lag(self._next, version=0):
            return True
        own, count = self._handed_out[delivery.task.episodes[0]], self._episodes_taken + delivery.episodes
        older = Counter(version for version in self._handed_out.values() if version < own)
        for version in sorted(older):
            count += older[version]
            if not self._within_max_lag(count, version):
                return False
        return True

    def _drop_stale_episodes(self, delivery: Delivery) -> Delivery:
        """The bound on policy lag, `on_lag: drop`: episodes played with weights that are too old are played again."""
        episodes = delivery.task.episodes
        self._forget(episodes)
        if not self.free or self.plan.on_lag == "wait":
            return delivery
        oldest = delivery.oldest
        kept = sum(self._within_max_lag(self._episodes_taken + n, oldest) for n in range(1, len(episodes) + 1))
        if kept == len(episodes):
            return delivery
        self.dropped += len(episodes) - kept
        self._again.extend(episodes[kept:])
        if not kept:
            delivery.release()
        return replace(delivery, task=replace(delivery.task, episodes=episodes[:kept]))

    def _learn(self, version: int) -> None:
        """Wait until `version` is learned. By round, later versions are held back until it is their turn."""
        with self._learning():
            self._learned.extend(self.trainers.poll(version))
        while self._learned and (self.free or self._learned[0].version <= version):
            update = self._learned.popleft()
            self._held.append(update)
            if update.version > self._reported:
                self._reported = update.version
                self.listener.learned(self, update)
                try:
                    self.failure_log.note_skipped_updates(update.skipped_updates)
                except (ConfigError, LearnerError):
                    if not self._ending:  # later rounds may fail as the one did that ended the run
                        raise

    def _publish(self, version: int) -> None:
        while self._held and self._held[0].version <= version:
            self._publish_update(self._held.popleft())

    def _publish_update(self, update: Update) -> None:
        self.published = update
        if update.rows is not None:
            self.collectors.publish(update.rows, self.trainers.versions_after(update.version))

    def _settle(self) -> None:
        """After a round: stop if asked to, evaluate and save if they are due."""
        self.stop()
        if self.settled >= self.rounds:
            return
        saving = self._is_due(self.plan.checkpoint_every) or self._is_overdue()
        if self._is_due(self.plan.evaluation_interval):
            self._evaluate(self.published)
        self.settled = self.rounds
        if saving:
            self._learn_complete_rounds()
            self._save()

    def _save(self) -> None:
        self._unfinished[self.rounds] = sorted(self._pending)
        self.listener.save(self)
        self._saved_at = time.monotonic()

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._saved_at >= self.plan.checkpoint_every_s

    def _learn_complete_rounds(self) -> None:
        """Have every complete round learned, so that counters and learners agree."""
        self._learn(self.rounds)
        if self.free:
            self._publish(self.rounds)

    def _is_due(self, every: int) -> bool:
        """Whether a multiple of `every` episodes was crossed since the last settled round."""
        before, now = self.plan.episodes_after(self.settled), self.plan.episodes_after(self.rounds)
        return bool(every) and before // every < now // every

    def _evaluate(self, acting: Update) -> None:
        """Play evaluation episodes with these weights; training episodes that finish meanwhile are kept."""
        rows = self.trainers.rows() if acting.rows is None else acting.rows
        self.collectors.publish(rows, acting.version, Purpose.EVALUATE)
        missing, first = self.plan.evaluate_episodes, 0
        exploration = 0.0 if self.plan.evaluate_mode == "greedy" else None
        while first < missing:
            last = min(missing, first + self.collectors.task_episodes())
            self.collectors.send(Task(tuple(range(first, last)), Purpose.EVALUATE, exploration))
            first = last
        results = []
        while missing:
            delivery = self._next_delivery()
            if delivery.purpose is Purpose.TRAIN:
                self._store_delivery(delivery)
                continue
            missing -= delivery.episodes
            results.append(delivery.summaries or [EpisodeSummary.of(fragment) for fragment in delivery.fragments])
            delivery.release()
        results.sort(key=lambda summaries: int(summaries[0].origin.episodes[0]))
        self.listener.evaluated(self.rounds, Update(acting.version, rows), results)

    def _send(self, count: int) -> bool:
        """Hand out up to `count` more episodes, in tasks of neighbouring worlds; returns whether there were any."""
        limit, worlds = self.collectors.task_episodes(), self.plan.worlds
        sent = False
        while count > 0:
            if self._again:
                episodes = [self._again.popleft() for _ in range(min(limit, count, len(self._again)))]
            else:
                first = self._next
                last = min(self.plan.total_episodes, first + min(limit, count), (first // worlds + 1) * worlds)
                episodes, self._next = list(range(first, last)), last
            if not episodes:
                break
            self.collectors.send(Task(tuple(episodes)))
            self._note_handed_out(episodes)
            self._out, count, sent = self._out + len(episodes), count - len(episodes), True
        return sent

    def _note_handed_out(self, episodes: Sequence[int]) -> None:
        """Remember episodes that are played with the weights published now, or with newer ones."""
        self._pending.update(episodes)
        self._handed_out.update(dict.fromkeys(episodes, self.trainers.versions_after(self.published.version)))

    def _forget(self, episodes: Sequence[int]) -> None:
        """These episodes are no longer out: they are given to the learners, dropped or failed."""
        for episode in episodes:
            del self._handed_out[episode]

    def state(self) -> LoopState:
        """Where the loop stands. Unfinished episodes are in no complete round: they will be played again."""
        return LoopState(
            rounds=self.rounds,
            settled=self.settled,
            published=self.published.version,
            unfinished=sorted(self._pending),
            dropped=self.dropped,
        )

    def restore(self, state: LoopState, published: Update) -> None:
        """Continue from `state`; `published` are the weights that were published then."""
        self.rounds, self.settled, self.dropped = state.rounds, state.settled, state.dropped
        self._reported = state.rounds
        self.published = published
        self._again.extend(state.unfinished)
        self._pending.update(self._again)
        self._unfinished[self.rounds] = state.unfinished
        if self.trainers.version > published.version:
            self._held.append(Update(self.trainers.version, self.trainers.rows()))
