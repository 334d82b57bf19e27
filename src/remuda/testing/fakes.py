"""Collectors and trainers in memory, for tests of the loop: no games, networks, threads or processes.

They pass the same conformance suites as the real ones (`collector_conformance.py`, `trainer_conformance.py`). They are
strict: they notice calls in a wrong order, fragments that are read after their release, and a loop that never ends.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import OrderError
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Fragment, Origin, Purpose, empty_fragment
from remuda.core.game import Group
from remuda.core.plan import Plan
from remuda.core.rounds import RoundCounter
from remuda.core.task import Task
from remuda.engines.interfaces import Collectors, Delivery, RoundPiece, Rows, TimeSpent, Trainers, Update, count_lags

AGENTS = 2
GROUP = Group("fakes", AGENTS, (2,), np.int64, 2)
"""Its observations are the number of the episode, and the version of the weights that acted."""
TURNS = 2
RELEASED = -1
"""What is read from a fragment after its release."""
START = b"fake trainers"
MAX_CALLS = 1000
"""Calls of `recv` or `poll` after which the fakes take the loop for one that never ends."""


class PlayedEpisode(NamedTuple):
    """An episode, and the version of the weights that acted in it."""

    episode: int
    version: int


class Call(NamedTuple):
    """A call of the collectors that did something, for tests that ask in which order things happened."""

    verb: str  # send, recv or publish
    purpose: Purpose
    episodes: tuple[int, ...]  # of send and recv
    version: int  # of the weights that are published; of recv: that acted


@dataclass
class FakeTask:
    """A task that was sent, and the version it is played with, once it is being played."""

    task: Task
    version: int | None = None


def fake_fragment(task: Task, version: int, worlds: int) -> Fragment:
    """The episodes of a task, each with numbers that say which episode it is and which version acted."""
    episodes = np.array(task.episodes, np.int64)
    fragment = empty_fragment(Origin(0, episodes % worlds, episodes, 0, task.purpose), GROUP, TURNS, before=0)
    fragment.obs[..., 0] = episodes[:, None]
    fragment.obs[..., 1] = version
    fragment.rewards[:] = episodes[:, None]
    fragment.alive[:] = True
    fragment.truncated[-1] = True
    fragment.versions[:] = version
    return fragment


class FakeCollectors(Collectors):
    """Plays tasks in any order that a test asks for; each `recv` counts as a second of wall-clock time."""

    def __init__(
        self,
        plan: Plan,
        *,
        task_episodes: int = 1,
        capacity: int | None = None,
        workers: int = 1 << 30,
        picks: Iterable[int] = (),
        failing: Mapping[tuple[Purpose, int], int] | None = None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        """The first `workers` tasks are played at once; with 0, a task is played when it is received.

        `picks` says which task is delivered by each `recv`: the number, modulo their count, of one that is being
        played, in the order of `send`; without more picks the first. `failing` says how often a task with that episode
        fails.
        """
        self.spent = TimeSpent()
        self.plan = plan
        self.calls: list[Call] = []
        self.tasks: list[FakeTask] = []  # sent and not received
        self.unreleased = 0  # deliveries
        self.closed = False
        self.started = False
        self._task_episodes = task_episodes
        self._capacity = task_episodes if capacity is None else capacity
        self._workers = workers
        self._picks = iter(picks)
        self._failing = Counter(failing or {})
        self._stop = stop
        self._versions: dict[Purpose, int] = {}  # published, by purpose
        self._received = 0

    def start(self) -> None:
        """Nothing has to be started."""
        self._check_open()
        self.started = True

    def task_episodes(self) -> int:
        """As the test says."""
        return self._task_episodes

    def capacity(self) -> int:
        """As the test says."""
        return self._capacity

    def send(self, task: Task) -> None:
        """Keep the task; play it with the weights published now if a worker is free."""
        self._check_running()
        if len(task.episodes) > self._task_episodes or not task.episodes:
            raise OrderError(f"{task} has {len(task.episodes)} episodes, not 1 to {self._task_episodes}")
        self.tasks.append(FakeTask(task))
        self.calls.append(Call("send", task.purpose, task.episodes, self._version(task)))
        self._begin(self._workers)

    def recv(self, timeout_s: float) -> Delivery:
        """Return the task that the test picks."""
        self._check_running()
        self._stop()
        self._received += 1
        if self._received > MAX_CALLS:
            raise OrderError(f"recv() was called {MAX_CALLS} times: the loop makes no progress")
        if not self.tasks:
            raise OrderError("recv() without a task: call send() first")
        self._begin(max(1, self._workers))
        playing = [fake for fake in self.tasks if fake.version is not None]
        fake = playing[next(self._picks, 0) % len(playing)]
        self.tasks.remove(fake)
        self._begin(self._workers)
        self.spent.wall += 1.0
        assert fake.version is not None
        self.calls.append(Call("recv", fake.task.purpose, fake.task.episodes, fake.version))
        return self._failure(fake.task) or self._delivery(fake.task, fake.version)

    def _begin(self, workers: int) -> None:
        """Have every free worker begin a task, with the weights published now."""
        for fake in self.tasks[:workers]:
            if fake.version is None:
                fake.version = self._version(fake.task)

    def _version(self, task: Task) -> int:
        purpose = Purpose.TRAIN if task.purpose is Purpose.TRAIN else Purpose.EVALUATE
        if purpose not in self._versions:
            raise OrderError(f"no weights are published for {task}: call publish() first")
        return self._versions[purpose]

    def _failure(self, task: Task) -> Delivery | None:
        for episode in task.episodes:
            if self._failing[task.purpose, episode] > 0:
                self._failing[task.purpose, episode] -= 1
                failure = TaskFailure(task, "fake", 0, f"fake: {task} was told to fail at episode {episode}", "", [])
                return Delivery(task, (), failure=failure)
        return None

    def _delivery(self, task: Task, version: int) -> Delivery:
        fragment = fake_fragment(task, version, self.plan.worlds)
        self.unreleased += 1
        held = [fragment]

        def release() -> None:
            if not held:
                raise OrderError(f"the delivery of {task} was released twice")
            held.clear()
            fragment.obs[:] = fragment.versions[:] = RELEASED
            self.unreleased -= 1

        return Delivery(task, [fragment], release)

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Tasks that begin from now on are played with this version."""
        self._check_running()
        self._versions[purpose] = version
        self.calls.append(Call("publish", purpose, (), version))

    def close(self) -> None:
        """Refuse every other call from now on."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise OrderError("the collectors are closed")

    def _check_running(self) -> None:
        self._check_open()
        if not self.started:
            raise OrderError("the collectors have not started: call start() first")


class FakeTrainers(Trainers):
    """Learns by counting: the weights are a hash of all episodes learned so far and the versions that acted."""

    def __init__(
        self,
        plan: Plan,
        *,
        delays: Iterable[int] = (),
        publications: Callable[[int], int] = lambda round_: 1,
        publish_to: Collectors | None = None,
        skipped: Mapping[int, Sequence[SkippedUpdates]] | None = None,
        errors: Mapping[int, Exception] | None = None,
    ) -> None:
        """`delays` says, for each round, after how many calls of `take` or `poll` it is learned if nobody waits for it.

        `publications` is the number of versions that learning a round makes. With `publish_to` the trainers publish
        their weights themselves, as processes do. `skipped` and `errors` are reported, or raised, in these rounds.
        """
        super().__init__(plan)
        self.history: list[list[PlayedEpisode]] = []  # by round learned here, in the order of episodes
        self.closed = False
        self.started = False
        self._delays = iter(delays)
        self._publications = publications
        self._publish_to = publish_to
        self._skipped, self._errors = dict(skipped or {}), dict(errors or {})
        self._digest = START
        self._pieces: dict[int, list[RoundPiece]] = {}  # by round
        self._complete_rounds: list[tuple[int, int]] = []  # not learned yet: number, calls until it is
        self._done: list[Update] = []  # not returned yet
        self._steps = 0
        self._polled = 0

    def start(self) -> None:
        """Nothing has to be started; trainers that publish themselves do it now."""
        self._check_open()
        self.started = True
        self._publish()

    def take(self, delivery: Delivery) -> list[RoundPiece]:
        """As all trainers; meanwhile rounds taken before are learned."""
        self._check_open()
        if not self.started:
            raise OrderError("the trainers have not started: call start() first")
        self._pass_time()
        return super().take(delivery)

    def _add(self, piece: RoundPiece) -> None:
        self._pieces.setdefault(piece.round, []).append(piece)

    def _complete(self, number: int) -> None:
        self._complete_rounds.append((number, next(self._delays, 0)))

    def _pass_time(self) -> None:
        """Learn the rounds whose time has come. Later rounds wait for earlier ones."""
        self._complete_rounds = [(number, delay - 1) for number, delay in self._complete_rounds]
        while self._complete_rounds and self._complete_rounds[0][1] < 0:
            self._learn_next()

    def _learn_next(self) -> None:
        number, _ = self._complete_rounds.pop(0)
        if number in self._errors:
            raise self._errors[number]
        played = [episode for piece in self._pieces.pop(number) for episode in self._read(piece)]
        self.history.append(sorted(played))
        self._digest = hashlib.sha256(self._digest + repr(self.history[-1]).encode()).digest()
        self._steps += self.plan.updates_in(number)
        self.version = number
        self._publish()
        rows = None if self._publish_to is not None else self.rows()
        metrics = {0: {"episodes": np.full(AGENTS, float(len(played)))}}
        self._done.append(Update(number, rows, metrics, TimeSpent(1.0, 1.0), self._skipped.get(number, ())))

    def _read(self, piece: RoundPiece) -> list[PlayedEpisode]:
        """The episodes of a piece as its observations tell them, and release it."""
        (fragment,) = piece.fragments
        self.lags.update(count_lags([fragment], self.versions_after(piece.round - 1)))
        numbers: NDArray[np.int64] = fragment.obs[0, :, 0]  # (worlds, 2)
        if not np.array_equal(numbers[:, 0], fragment.origin.episodes):
            raise OrderError(f"the delivery of {piece.delivery.task} was released before its last use")
        played = [PlayedEpisode(int(episode), int(version)) for episode, version in numbers]
        piece.release()
        return played

    def _publish(self) -> None:
        if self._publish_to is not None:
            self._publish_to.publish(self.rows(), self.versions_after(self.version))

    def poll(self, version: int) -> list[Update]:
        """Learn up to `version` and whatever is due; a call that has to learn counts as a second of waiting."""
        self._check_open()
        self._polled += 1
        if self._polled > MAX_CALLS:
            raise OrderError(f"poll() was called {MAX_CALLS} times: the loop makes no progress")
        self._pass_time()
        self.waited_s += float(self.version < min(version, self.taken))
        while self._complete_rounds and self.version < version:
            self._learn_next()
        done, self._done = self._done, []
        return done

    def versions_after(self, rounds: int) -> int:
        """The publications of all rounds so far."""
        return sum(self._publications(round_) for round_ in range(1, rounds + 1))

    def close(self) -> None:
        """Refuse to take or learn from now on."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise OrderError("the trainers are closed")

    def rows(self) -> Rows:
        """Another row for every agent and everything learned."""
        digests = [hashlib.sha256(self._digest + bytes([agent])).digest() for agent in range(AGENTS)]
        return {0: np.array([list(digest) for digest in digests], np.float32)}

    def steps(self) -> dict[int, int]:
        """The updates of all rounds learned."""
        return dict.fromkeys(range(AGENTS), self._steps)

    def memory_bytes(self) -> int:
        """The hash."""
        return len(self._digest)

    def state(self) -> dict[str, NDArray[Any]]:
        """The hash and the steps, one row per agent."""
        if self._complete_rounds or self._done:
            raise OrderError("state() with complete rounds that were not polled: call poll() first")
        digest = np.frombuffer(self._digest, np.uint8)
        return {"0/digest": np.tile(digest, (AGENTS, 1)), "0/steps": np.full(AGENTS, self._steps)}

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `version` with what `state` returned."""
        self.version, self._received = version, RoundCounter(self.plan, version)
        self._digest = state["0/digest"][0].tobytes()
        self._steps = int(state["0/steps"][0])
