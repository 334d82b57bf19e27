"""The training loop. There is no other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remuda.collect import Task
from remuda.config import Plan
from remuda.errors import Stopped
from remuda.fragment import Fragment, Purpose
from remuda.placement.base import Collectors, Trainers, Update

RECV_TIMEOUT_S = 3600.0


class Listener(Protocol):
    """Who is told what happens."""

    def collected(self, round_: int, fragments: Sequence[Fragment]) -> None:
        """Episodes of a round were played."""

    def learned(self, update: Update) -> None:
        """A round was learned."""

    def evaluated(self, rounds: int, published: Update, results: Sequence[Sequence[Fragment]]) -> None:
        """The published weights were put to the test."""

    def save(self, loop: Loop) -> None:
        """Write down everything: nobody is playing, nobody is learning."""


@dataclass
class Loop:
    """Hand out tasks, receive fragments, give them to the learners, publish what they updated."""

    plan: Plan
    collectors: Collectors
    trainers: Trainers
    listener: Listener
    stop: Callable[[], None]
    published: Update
    rounds: int = 0  # received whole
    attended: int = 0  # rounds after which it was decided whether to evaluate and save
    _out: int = 0  # episodes being played
    _held: deque[Update] = field(default_factory=deque)  # learned, not yet to be acted on

    def run(self) -> None:
        """Train to the end of the plan; on Stopped save the last whole round and pass it on."""
        try:
            self.collectors.start()
            self.collectors.publish(self.published.rows, self.published.version)
            while self.rounds < self.plan.rounds:
                if not self._out:
                    self._begin_round()
                self._receive(self.collectors.recv(RECV_TIMEOUT_S))
            self._publish(self.plan.rounds)
            if not self.finished:
                self._evaluate()
                self.attended = self.rounds
                self.listener.save(self)
        except Stopped:
            self._settle()
            self.listener.save(self)
            raise
        finally:
            self.collectors.close()
            self.trainers.close()

    @property
    def finished(self) -> bool:
        """Whether every round is learned and the last evaluation is done."""
        return self.attended == self.plan.rounds

    def _begin_round(self) -> None:
        """Round k is played with version k - lag: publish it, then hand the round out."""
        self._publish(max(0, self.rounds - self.plan.lag))
        self.stop()
        if self.attended < self.rounds:
            if self._due(self.plan.evaluate_every):
                self._evaluate()
            self.attended = self.rounds
            if self._due(self.plan.checkpoint_every):
                self._settle()
                self.listener.save(self)
        first, last = self.plan.episodes_after(self.rounds), self.plan.episodes_after(self.rounds + 1)
        self._send(range(first, last), self.plan.worlds)
        self._out = last - first

    def _receive(self, fragments: Sequence[Fragment]) -> None:
        self.trainers.take(fragments)
        self.listener.collected(self.rounds, fragments)
        self._out -= len(fragments[0].origin.episodes)
        if not self._out:
            self.rounds += 1

    def _publish(self, version: int) -> None:
        self._learn(version)
        while self._held and self._held[0].version <= version:
            self.published = self._held.popleft()
            self.collectors.publish(self.published.rows, self.published.version)

    def _learn(self, version: int) -> None:
        for update in self.trainers.poll(version):
            self._held.append(update)
            self.listener.learned(update)

    def _settle(self) -> None:
        """Have every whole round learned, so that the books and the learners agree."""
        self._learn(self.rounds)

    def _evaluate(self) -> None:
        episodes = range(self.plan.evaluate_episodes)
        tasks = self._send(episodes, self.plan.worlds, Purpose.EVALUATE)
        results = [self.collectors.recv(RECV_TIMEOUT_S) for _ in range(tasks)]
        self.listener.evaluated(self.rounds, self.published, results)

    def _send(self, episodes: range, worlds: int, purpose: Purpose = Purpose.TRAIN) -> int:
        """Hand out episodes in tasks of neighbouring worlds; returns how many tasks."""
        most = self.collectors.task_episodes()
        exploration = 0.0 if purpose is Purpose.EVALUATE else None
        count, first = 0, episodes.start
        while first < episodes.stop:
            last = min(episodes.stop, first + most, (first // worlds + 1) * worlds)
            self.collectors.send(Task(tuple(range(first, last)), purpose, exploration))
            count, first = count + 1, last
        return count

    def _due(self, every: int) -> bool:
        """Whether the last round crossed a multiple of `every` episodes."""
        if not every:
            return False
        before, now = self.plan.episodes_after(self.rounds - 1), self.plan.episodes_after(self.rounds)
        return before // every < now // every

    def resume(self, rounds: int, attended: int, published: Update) -> None:
        """Go on after `rounds` whole rounds with what was published then."""
        self.rounds = rounds
        self.attended = attended
        self.published = published
        if self.trainers.version > published.version:
            self._held.append(Update(self.trainers.version, self.trainers.rows()))
