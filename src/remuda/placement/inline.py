"""Collecting and learning here, in this process: one world at a time, or all of them on threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

from remuda.collect import Manner, Player, Players, Seat, Task, room, shares
from remuda.errors import GameError, OrderError
from remuda.faults import Failure, trace_of
from remuda.fragment import Fragment, Purpose, cut
from remuda.game import GameEntry, GameSpec
from remuda.placement.base import Collectors, Delivery, Piece, Rows, Spent, Update
from remuda.placement.local import LocalTrainers
from remuda.telemetry.timeline import span
from remuda.threads import thread_pool

THREAD_TURN_S = 0.001
"""A thread is worth its switches if it has at least so much to do in a turn.

Measured, two threads over one on two cores: 0.47 where a turn takes 0.5 ms in all, 0.93 at 1.3 ms, 1.27
at 2.7 ms (CAGE 2, PPO); 0.95 at 0.9 ms, 1.67 at 2.6 ms, 1.76 at 14 ms (Treasurehunt, IQN).
"""
TRIALS = 2
"""Tasks of each size that are played on one thread, to see how long a turn takes."""
CLEARLY_S = 0.1
"""A turn that takes so long is worth sharing after the first look: no compiling and no cold cache explains it."""


class InlineCollectors(Collectors):
    """Plays a task when asked for its fragments, its worlds split over threads."""

    def __init__(
        self,
        entry: GameEntry,
        spec: GameSpec,
        options: Mapping[str, Any],
        seats: Sequence[Seat],
        manner: Manner,
        threads: int,
        stop: Callable[[], None],
    ) -> None:
        self.spent = Spent()
        self._spec = spec
        self._seats = seats
        self._manner = manner
        self._threads = threads
        self._stop = stop
        self._turn_s: dict[int, list[float]] = {}  # by episodes in the task
        self._counting = Lock()  # of processor time; the data needs none
        self._tasks: deque[Task] = deque()
        self._ready: deque[Delivery] = deque()  # played
        self._players = Players(entry, options, manner, lambda game: Player(game, seats, manner))
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Start the threads, if there is more than one."""
        if self._threads > 1:
            self._pool = thread_pool(self._threads, "collect")

    def task_episodes(self) -> int:
        """One for the readable baseline, all worlds otherwise."""
        return 1 if self._manner.one_by_one else self._manner.worlds

    def send(self, task: Task) -> None:
        """Queue it."""
        self._tasks.append(task)

    def recv(self, timeout_s: float) -> Delivery:
        """Play the next task now, if nothing is left of the last one."""
        if not self._ready:
            if not self._tasks:
                raise OrderError("recv() without a task: call send() first")
            began = time.perf_counter()
            self._ready.extend(self._play_task(self._tasks.popleft()))
            self.spent.wall += time.perf_counter() - began
        return self._ready.popleft()

    def _play_task(self, task: Task) -> list[Delivery]:
        """In one piece, or in several where threads share it and one of them fails."""
        parts = self._split(task)
        if len(parts) > 1:
            return self._play_together(task, parts)
        began = time.perf_counter()
        delivery = self._play(task, 0, room(self._spec, self._seats, self._manner, task))
        trials = self._turn_s.setdefault(len(task.episodes), [])
        if len(trials) < TRIALS and delivery.failure is None:
            trials.append((time.perf_counter() - began) / max(delivery.fragments[0].turns, 1))
        return [delivery]

    def _split(self, task: Task) -> list[Task]:
        """Balanced parts of neighbouring worlds, one per thread that is worth it."""
        return [
            Task(task.episodes[a:b], task.purpose, task.exploration)
            for a, b in shares(len(task.episodes), self._useful_threads(len(task.episodes)))
        ]

    def _useful_threads(self, episodes: int) -> int:
        """As many threads as have enough to do; what is played does not depend on it."""
        trials = self._turn_s.get(episodes, [])
        if len(trials) < TRIALS and not any(turn_s > CLEARLY_S for turn_s in trials):
            return 1
        return max(1, min(self._threads, int(min(trials) / THREAD_TURN_S)))

    def _play_together(self, task: Task, parts: list[Task]) -> list[Delivery]:
        """Every thread fills its own columns of fragments that all share."""
        assert self._pool is not None, "start() first"
        rooms = room(self._spec, self._seats, self._manner, task)
        jobs, first = [], 0
        for thread, part in enumerate(parts):
            worlds = slice(first, first + len(part.episodes))
            jobs.append(self._pool.submit(self._play, part, thread, [cut(whole, worlds) for whole in rooms]))
            first = worlds.stop
        wait(jobs)  # nobody may still be playing when one of them raises
        done = [job.result() for job in jobs]
        if any(delivery.failure for delivery in done):
            return done
        turns = max(delivery.fragments[0].turns for delivery in done)
        flaws = [flaw for delivery in done for flaw in delivery.flaws]
        return [Delivery(task, [cut(whole, slice(None), turns) for whole in rooms], flaws=flaws)]

    def _play(self, task: Task, thread: int, out: Sequence[Fragment]) -> Delivery:
        began = time.thread_time()
        try:
            player = self._players.begin(task, thread)
            with span("collect"):
                fragments = player.play(out, self._stop)
        except GameError as error:
            self._players.forget(task, thread)
            return Delivery(task, (), failure=Failure.of(task, "loop", error.turn, str(error), trace_of(error), out))
        with self._counting:
            self.spent.cpu += time.thread_time() - began
        return Delivery(task, fragments, flaws=player.flaws)

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Load them; all players share the same policies."""
        with span("publish"):
            for part, own in rows.items():
                self._seats[part].policy.load(own, version)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class InlineTrainers(LocalTrainers):
    """Learns when nothing else happens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rounds: deque[tuple[int, list[Piece]]] = deque()
        self._done: list[Update] = []

    def _complete(self, number: int) -> None:
        self._rounds.append((number, self._round(number)))

    def _learn_next(self) -> None:
        number, pieces = self._rounds.popleft()
        self._done.append(self._learn(number, pieces))
        self.version = number

    def work(self) -> None:
        """Learn every whole round now."""
        while self._rounds:
            self._learn_next()

    def poll(self, version: int) -> list[Update]:
        """Learn up to `version` now, if it is not done yet."""
        while self._rounds and self.version < version:
            self._learn_next()
        done, self._done = self._done, []
        return done
