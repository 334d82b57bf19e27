"""Collecting and learning here, in this process: one world at a time, or all of them on threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

from remuda.core.errors import GameError, OrderError
from remuda.core.failures import TaskFailure, format_traceback
from remuda.core.fragment import Fragment, Purpose, slice_worlds
from remuda.core.game import GameEntry, GameSpec
from remuda.core.policy import PolicyBinding
from remuda.core.ranges import split_evenly
from remuda.core.task import Task
from remuda.core.threads import thread_pool
from remuda.core.timeline import span
from remuda.engines.interfaces import Collectors, Delivery, Rows, TimeSpent
from remuda.rollout.cache import RolloutCache
from remuda.rollout.config import RolloutConfig, empty_fragments
from remuda.rollout.rollout import Rollout

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
        bindings: Sequence[PolicyBinding],
        config: RolloutConfig,
        threads: int,
        stop: Callable[[], None],
    ) -> None:
        self.spent = TimeSpent()
        self._spec = spec
        self._bindings = bindings
        self._config = config
        self._threads = threads
        self._stop = stop
        self._turn_s: dict[int, list[float]] = {}  # by episodes in the task
        self._counting = Lock()  # of processor time; the data needs none
        self._tasks: deque[Task] = deque()
        self._ready: deque[Delivery] = deque()  # played
        self._rollouts = RolloutCache(entry, options, config, lambda game: Rollout(game, bindings, config))
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Start the threads, if there is more than one."""
        if self._threads > 1:
            self._pool = thread_pool(self._threads, "collect")

    def task_episodes(self) -> int:
        """One for the readable baseline, all worlds otherwise."""
        return 1 if self._config.one_by_one else self._config.worlds

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
        delivery = self._play(task, 0, empty_fragments(self._spec, self._bindings, self._config, task))
        trials = self._turn_s.setdefault(len(task.episodes), [])
        if len(trials) < TRIALS and delivery.failure is None:
            trials.append((time.perf_counter() - began) / max(delivery.fragments[0].turns, 1))
        return [delivery]

    def _split(self, task: Task) -> list[Task]:
        """Balanced parts of neighbouring worlds, one per thread that is worth it."""
        return [
            Task(task.episodes[a:b], task.purpose, task.exploration)
            for a, b in split_evenly(len(task.episodes), self._useful_threads(len(task.episodes)))
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
        rooms = empty_fragments(self._spec, self._bindings, self._config, task)
        jobs, first = [], 0
        for thread, part in enumerate(parts):
            worlds = slice(first, first + len(part.episodes))
            jobs.append(self._pool.submit(self._play, part, thread, [slice_worlds(whole, worlds) for whole in rooms]))
            first = worlds.stop
        wait(jobs)  # nobody may still be playing when one of them raises
        done = [job.result() for job in jobs]
        if any(delivery.failure for delivery in done):
            return done
        turns = max(delivery.fragments[0].turns for delivery in done)
        invalid_samples = [invalid_sample for delivery in done for invalid_sample in delivery.invalid_samples]
        return [
            Delivery(
                task, [slice_worlds(whole, slice(None), turns) for whole in rooms], invalid_samples=invalid_samples
            )
        ]

    def _play(self, task: Task, thread: int, out: Sequence[Fragment]) -> Delivery:
        began = time.thread_time()
        try:
            rollout = self._rollouts.begin(task, thread)
            with span("collect"):
                fragments = rollout.play(out, self._stop)
        except GameError as error:
            self._rollouts.forget(task, thread)
            return Delivery(
                task, (), failure=TaskFailure.of(task, "loop", error.turn, str(error), format_traceback(error), out)
            )
        with self._counting:
            self.spent.cpu += time.thread_time() - began
        return Delivery(task, fragments, invalid_samples=rollout.invalid_samples)

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Load them; all players share the same policies."""
        with span("publish"):
            for part, own in rows.items():
                self._bindings[part].policy.load(own, version)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
