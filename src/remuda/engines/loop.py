"""The training loop. There is no other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from remuda.core.errors import Stopped, StorageError
from remuda.core.fragment import Fragment, Purpose, copy_fragment
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.engines.interfaces import Collectors, Delivery, FailureHandler, Trainers, Update

RECV_TIMEOUT_S = 3600.0
ROUNDS_AHEAD = 4
"""Rounds that may wait to be learned before those who run free wait too: it bounds memory, not lag."""


class LoopListener(Protocol):
    """Who is told what happens."""

    def collected(self, round_: int, fragments: Sequence[Fragment]) -> None:
        """Episodes of a round (from 1) were played."""

    def learned(self, loop: Loop, update: Update) -> None:
        """A round was learned."""

    def evaluated(self, rounds: int, published: Update, results: Sequence[Sequence[Fragment]]) -> None:
        """The published weights were put to the test."""

    def save(self, loop: Loop) -> None:
        """Write down everything: every whole round is learned, and nobody is learning."""


@dataclass
class Loop:
    """Hand out tasks, receive whatever is ready, give it to the learners, publish what they updated.

    By round, round k is handed out once version k - lag is published, and nothing else is. Free, there
    is always something to play, and whatever arrives first is learned first; see `docs/lag.md`.
    """

    plan: Plan
    collectors: Collectors
    trainers: Trainers
    listener: LoopListener
    failure_log: FailureHandler
    stop: Callable[[], None]
    published: Update
    free: bool = False
    max_lag: int = 0  # versions that may lie between acting and learning where everybody runs free
    rounds: int = 0  # received whole
    settled: int = 0  # rounds after which it was decided whether to evaluate and save
    dropped: int = 0  # episodes that came too late to be learned from
    _sound: bool = False  # everybody has started, and nobody is in the middle of learning
    _saved_at: float = field(default_factory=time.monotonic)
    _out: int = 0  # episodes of training being played
    _next: int = 0  # the next episode to hand out
    _again: deque[int] = field(default_factory=deque)  # episodes to be handed out another time
    _pending: set[int] = field(default_factory=set)  # handed out, and not part of a whole round yet
    _partial: list[int] = field(default_factory=list)  # those of the round under way
    _arrived: deque[Delivery] = field(default_factory=deque)  # played, not yet given to the learners
    _learned: deque[Update] = field(default_factory=deque)  # not yet told to the listener
    _held: deque[Update] = field(default_factory=deque)  # learned, not yet to be acted on

    def run(self) -> None:
        """Train to the end of the plan; whatever is raised, save the last whole round and pass it on."""
        self._next = self.plan.episodes_after(self.rounds) + len(self._again)
        try:
            self.collectors.start()
            self._act_on(self.published)
            self.trainers.start()
            self._sound = True
            while self.rounds < self.plan.rounds:
                self._hand_out_freely() if self.free else self._hand_out_a_round()
                if self._out:
                    self._receive(self._recv())
                self._take()
            self._learn(self.plan.rounds)
            self._publish(self.plan.rounds)
            if not self.finished:
                self._evaluate()
                self.settled = self.rounds
                self.listener.save(self)
        except Exception as error:
            if isinstance(error, Stopped) or (self._sound and not isinstance(error, StorageError)):
                self._settle()
                self.listener.save(self)
            raise
        finally:
            self.collectors.close()
            self.trainers.close()

    @property
    def finished(self) -> bool:
        """Whether every round is learned and the last evaluation is done."""
        return self.settled == self.plan.rounds

    def _hand_out_a_round(self) -> None:
        """Round k is played with version k - lag: publish it, then hand the round out."""
        if self._out:
            return
        version = max(0, self.rounds - self.plan.lag)
        self._learn(version)
        self._publish(version)
        self._attend()
        self._send(self.plan.episodes_after(self.rounds + 1) - self.plan.episodes_after(self.rounds))
        with self._learning():
            self.trainers.work()

    def _hand_out_freely(self) -> None:
        """Publish what is learned, then hand out whatever there is a free hand for."""
        with self._learning():
            self.trainers.work()
        self._learn(self.trainers.version)
        self._publish(self.trainers.version)
        self._attend()
        if not self._send(self._wanted()) and not self._out:
            self._learn(self.trainers.version + 1)  # nobody plays: everything waits for the learners

    def _wanted(self) -> int:
        """How many more episodes may be out: as many as can be played, unless learning is far behind."""
        unlearned = self._next - len(self._again) - self.plan.episodes_after(self.trainers.version)
        size, capacity = self.plan.round_episodes, self.collectors.capacity()
        most = capacity + ROUNDS_AHEAD * size
        if self.plan.on_lag == "wait":
            each = self.trainers.versions_after(self.rounds + 1) - self.trainers.versions_after(self.rounds)
            most = min(most, (self.max_lag // max(each, 1) + 1) * size)
        wanted = min(capacity - self._out, most - unlearned)
        task = min(self.collectors.task_episodes(), self.plan.total_episodes - self._next)
        idle = not self._out and self.trainers.version == self.rounds
        return wanted if wanted >= task else task * idle

    def _receive(self, delivery: Delivery) -> None:
        self._out -= delivery.episodes
        self._arrived.append(delivery)

    def _recv(self) -> Delivery:
        """What is ready first; whatever failed is played again, or another in its place."""
        while True:
            delivery = self.collectors.recv(RECV_TIMEOUT_S)
            if delivery.failure is None:
                self.failure_log.count(delivery.episodes, delivery.invalid_samples)
                return delivery
            task = delivery.task
            episodes = self.failure_log.record(delivery.failure)
            if task.purpose is Purpose.TRAIN:
                self._pending.difference_update(task.episodes)
                self._pending.update(episodes)
            for episode in episodes:
                self.collectors.send(replace(task, episodes=(episode,)))

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """What is raised in here leaves learners in the middle of something: not to be saved."""
        self._sound = False
        yield
        self._sound = True

    def _take(self) -> None:
        """Give the learners what has arrived, as long as nobody still playing comes too late by it."""
        while self._arrived and self._nobody_too_late():
            delivery = self._arrived.popleft()
            if self._is_too_late(delivery):
                self.dropped += delivery.episodes
                self._again.extend(delivery.task.episodes)
                delivery.release()
                continue
            for piece in self.trainers.take(delivery):
                self.listener.collected(piece.round, piece.fragments)
                self._partial += piece.delivery.task.episodes[piece.worlds]
                if piece.round <= self.trainers.taken:
                    self._pending.difference_update(self._partial)
                    self._partial.clear()
            self.rounds = self.trainers.taken

    def _nobody_too_late(self) -> bool:
        oldest = self.collectors.oldest() if self.free and self.plan.on_lag == "wait" else None
        return oldest is None or self.trainers.versions_after(self.rounds + 1) - oldest <= self.max_lag

    def _is_too_late(self, delivery: Delivery) -> bool:
        if not self.free or self.plan.on_lag == "wait":
            return False
        return self.trainers.versions_after(self.rounds) - delivery.oldest > self.max_lag

    def _learn(self, version: int) -> None:
        """Have at least so many rounds learned; by round, what is learned sooner waits until it is its turn."""
        with self._learning():
            self._learned.extend(self.trainers.poll(version))
        while self._learned and (self.free or self._learned[0].version <= version):
            self._held.append(self._learned.popleft())
            self.listener.learned(self, self._held[-1])
            self.failure_log.note_skipped_updates(self._held[-1].skipped_updates)

    def _publish(self, version: int) -> None:
        while self._held and self._held[0].version <= version:
            self._act_on(self._held.popleft())

    def _act_on(self, update: Update) -> None:
        self.published = update
        if update.rows is not None:
            self.collectors.publish(update.rows, self.trainers.versions_after(update.version))

    def _attend(self) -> None:
        """After a round: stop if asked to, evaluate and save if it is time."""
        self.stop()
        if self.settled == self.rounds:
            return
        saving = self._due(self.plan.checkpoint_every) or self._overdue()
        if self._due(self.plan.evaluate_every):
            self._evaluate()
        self.settled = self.rounds
        if saving:
            self._settle()
            self.listener.save(self)
            self._saved_at = time.monotonic()

    def _overdue(self) -> bool:
        return time.monotonic() - self._saved_at >= self.plan.checkpoint_every_s

    def _settle(self) -> None:
        """Have every whole round learned, so that the books and the learners agree."""
        self._learn(self.rounds)
        if self.free:
            self._publish(self.rounds)

    def _due(self, every: int) -> bool:
        """Whether a multiple of `every` episodes was crossed since it was last looked at."""
        before, now = self.plan.episodes_after(self.settled), self.plan.episodes_after(self.rounds)
        return bool(every) and before // every < now // every

    def _evaluate(self) -> None:
        """Put the published weights to the test; what others finish meanwhile is kept for the learners."""
        acting = self.published
        rows = self.trainers.rows() if acting.rows is None else acting.rows
        self.collectors.publish(rows, acting.version, Purpose.EVALUATE)
        missing, first = self.plan.evaluate_episodes, 0
        while first < missing:
            last = min(missing, first + self.collectors.task_episodes())
            self.collectors.send(Task(tuple(range(first, last)), Purpose.EVALUATE, exploration=0.0))
            first = last
        results = []
        while missing:
            delivery = self._recv()
            if delivery.purpose is Purpose.TRAIN:
                self._receive(delivery)
                continue
            missing -= delivery.episodes
            results.append([copy_fragment(fragment) for fragment in delivery.fragments])
            delivery.release()
        results.sort(key=lambda fragments: int(fragments[0].origin.episodes[0]))
        self.listener.evaluated(self.rounds, Update(acting.version, rows), results)

    def _send(self, count: int) -> bool:
        """Hand out up to `count` more episodes in tasks of neighbouring worlds; whether there were any."""
        most, worlds = self.collectors.task_episodes(), self.plan.worlds
        sent = False
        while count > 0:
            if self._again:
                episodes = [self._again.popleft() for _ in range(min(most, count, len(self._again)))]
            else:
                first = self._next
                last = min(self.plan.total_episodes, first + min(most, count), (first // worlds + 1) * worlds)
                episodes, self._next = list(range(first, last)), last
            if not episodes:
                break
            self.collectors.send(Task(tuple(episodes)))
            self._pending.update(episodes)
            self._out, count, sent = self._out + len(episodes), count - len(episodes), True
        return sent

    @property
    def unfinished(self) -> list[int]:
        """Episodes handed out that no whole round has yet: to be played again should we stop here."""
        return sorted(self._pending)

    def resume(self, rounds: int, settled: int, published: Update, unfinished: Sequence[int] = ()) -> None:
        """Go on after `rounds` whole rounds with what was published then."""
        self.rounds = rounds
        self.settled = settled
        self.published = published
        self._again.extend(unfinished)
        self._pending.update(self._again)
        if self.trainers.version > published.version:
            self._held.append(Update(self.trainers.version, self.trainers.rows()))
