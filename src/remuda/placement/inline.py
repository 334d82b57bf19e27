"""Collecting and learning here, in this process: one world at a time, or all of them on threads."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from remuda.collect import Manner, Player, Seat, Task, room, shares
from remuda.errors import OrderError
from remuda.fragment import Fragment, cut
from remuda.game import Game, GameSpec
from remuda.placement.base import Collectors, Rows, Spent, Trainers, Update
from remuda.threads import thread_pool

THREAD_TURN_S = 0.001
"""A thread is worth its switches if it has at least so much to do in a turn.

Measured, two threads over one on two cores: 0.47 where a turn takes 0.5 ms in all, 0.93 at 1.3 ms, 1.27
at 2.7 ms (CAGE 2, PPO); 0.95 at 0.9 ms, 1.67 at 2.6 ms, 1.76 at 14 ms (Treasurehunt, IQN).
"""
TRIALS = 2
"""Tasks of each size that are played on one thread, to see how long a turn takes."""
MAX_PLAYERS = 64
"""Players kept for reuse; each holds the arrays of its worlds."""


class InlineCollectors(Collectors):
    """Plays a task when asked for its fragments, its worlds split over threads."""

    def __init__(
        self,
        make_game: Callable[[Sequence[int]], Game],
        seats: Sequence[Seat],
        manner: Manner,
        threads: int,
        stop: Callable[[], None],
    ) -> None:
        self.spent = Spent()
        self._make_game = make_game
        self._seats = seats
        self._manner = manner
        self._threads = threads
        self._stop = stop
        self._turn_s: dict[int, list[float]] = {}  # by episodes in the task
        self._counting = Lock()  # of processor time; the data needs none
        self._tasks: deque[Task] = deque()
        self._players: OrderedDict[tuple[int, ...], Player] = OrderedDict()
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

    def recv(self, timeout_s: float) -> Sequence[Fragment]:
        """Play the next task now."""
        if not self._tasks:
            raise OrderError("recv() without a task: call send() first")
        task = self._tasks.popleft()
        began = time.perf_counter()
        players = [self._start(part, thread) for thread, part in enumerate(self._split(task))]
        if len(players) == 1:
            fragments = self._play(players[0], players[0].room())
            trials = self._turn_s.setdefault(len(task.episodes), [])
            if len(trials) < TRIALS:
                trials.append((time.perf_counter() - began) / max(fragments[0].turns, 1))
        else:
            fragments = self._play_together(task, players)
        self.spent.wall += time.perf_counter() - began
        return fragments

    def _split(self, task: Task) -> list[Task]:
        """Balanced parts of neighbouring worlds, one per thread that is worth it."""
        return [
            Task(task.episodes[a:b], task.purpose, task.exploration)
            for a, b in shares(len(task.episodes), self._useful_threads(len(task.episodes)))
        ]

    def _useful_threads(self, episodes: int) -> int:
        """As many threads as have enough to do; what is played does not depend on it."""
        trials = self._turn_s.get(episodes, [])
        if len(trials) < TRIALS:
            return 1
        return max(1, min(self._threads, int(min(trials) / THREAD_TURN_S)))

    def _start(self, task: Task, thread: int) -> Player:
        """This thread's player for the task's worlds, kept from last time if there was one."""
        worlds = tuple(episode % self._manner.worlds for episode in task.episodes)
        key = (thread, *worlds)
        if key not in self._players:
            self._players[key] = Player(self._make_game(worlds), self._seats, self._manner)
        self._players.move_to_end(key)
        if len(self._players) > MAX_PLAYERS:
            self._players.popitem(last=False)
        self._players[key].start(task)
        return self._players[key]

    def _play_together(self, task: Task, players: list[Player]) -> list[Fragment]:
        """Every player fills its own columns of fragments that all share."""
        assert self._pool is not None, "start() first"
        spec: GameSpec = players[0].game.spec
        rooms = room(spec, self._seats, self._manner, task)
        jobs, first = [], 0
        for player in players:
            worlds = slice(first, first + player.game.worlds)
            jobs.append(self._pool.submit(self._play, player, [cut(whole, worlds) for whole in rooms]))
            first = worlds.stop
        done = [job.result() for job in jobs]
        turns = max(fragments[0].turns for fragments in done)
        return [cut(whole, slice(None), turns) for whole in rooms]

    def _play(self, player: Player, out: Sequence[Fragment]) -> list[Fragment]:
        began = time.thread_time()
        fragments = player.play(out, self._stop)
        with self._counting:
            self.spent.cpu += time.thread_time() - began
        return fragments

    def publish(self, rows: Rows, version: int) -> None:
        """Load them; all players share the same policies."""
        for part, own in rows.items():
            self._seats[part].policy.load(own, version)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class InlineTrainers(Trainers):
    """Learns when polled, before anything else happens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rounds: deque[tuple[int, list[Sequence[Fragment]]]] = deque()
        self._done: deque[Update] = deque()

    def _queue(self, number: int, deliveries: list[Sequence[Fragment]]) -> None:
        self._rounds.append((number, deliveries))

    def _learn_next(self) -> None:
        number, deliveries = self._rounds.popleft()
        self._done.append(self._learn(number, deliveries))
        self.version = number

    def poll(self, version: int) -> list[Update]:
        """Learn up to `version` now."""
        while self._rounds and self.version < version:
            self._learn_next()
        updates = []
        while self._done and self._done[0].version <= version:
            updates.append(self._done.popleft())
        return updates
