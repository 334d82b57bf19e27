"""Collecting in this process: one world at a time, or all of them on threads."""

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
from remuda.learners.devices import own_stream
from remuda.rollout.cache import RolloutCache
from remuda.rollout.config import RolloutConfig, empty_fragments
from remuda.rollout.rollout import Rollout

THREAD_TURN_S = 0.001
"""Least work per turn, in seconds, that makes up for the cost of switching to another thread.

Measured, two threads over one on two cores: 0.47 where a turn takes 0.5 ms in all, 0.93 at 1.3 ms, 1.27
at 2.7 ms (CAGE 2, PPO); 0.95 at 0.9 ms, 1.67 at 2.6 ms, 1.76 at 14 ms (Treasurehunt, IQN).
"""
TIMED_TASKS = 2
"""Tasks of each size that are played on one thread, to measure how long a turn takes."""
LONG_TURN_S = 0.1
"""A turn that takes this long is shared after one measurement: neither compiling nor a cold cache explains it."""


class InlineCollectors(Collectors):
    """Plays a task when its delivery is received, its worlds split over threads."""

    def __init__(
        self,
        entry: GameEntry,
        spec: GameSpec,
        options: Mapping[str, Any],
        bindings: Sequence[PolicyBinding],
        config: RolloutConfig,
        threads: int,
        stop: Callable[[], None],
        device: str = "cpu",
    ) -> None:
        self.spent = TimeSpent()
        self._spec = spec
        self._bindings = bindings
        self._config = config
        self._threads = threads
        self._stop = stop
        self._device = device
        self._turn_s: dict[int, list[float]] = {}  # by episodes in the task
        self._cpu_lock = Lock()  # for `spent.cpu` only; threads share no data
        self._tasks: deque[Task] = deque()
        self._ready: deque[Delivery] = deque()
        self._rollouts = RolloutCache(entry, options, config, lambda game: Rollout(game, bindings, config))
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Start the threads, if there is more than one."""
        if self._threads > 1:
            self._pool = thread_pool(self._threads, "collect")

    def task_episodes(self) -> int:
        """One episode for the sequential baseline, all worlds otherwise."""
        return 1 if self._config.one_by_one else self._config.worlds

    def send(self, task: Task) -> None:
        """Queue a task."""
        self._tasks.append(task)

    def recv(self, timeout_s: float) -> Delivery:
        """Returns the next delivery; plays the next task if none is left of the last one."""
        if not self._ready:
            if not self._tasks:
                raise OrderError("recv() without a task: call send() first")
            began = time.perf_counter()
            self._ready.extend(self._play_task(self._tasks.popleft()))
            self.spent.wall += time.perf_counter() - began
        return self._ready.popleft()

    @property
    def has_more(self) -> bool:
        """Whether a delivery is there without playing."""
        return bool(self._ready)

    def _play_task(self, task: Task) -> list[Delivery]:
        """Play a task: one delivery, or one per thread if threads share it and one of them fails."""
        parts = self._split(task)
        if len(parts) > 1:
            return self._play_together(task, parts)
        began = time.perf_counter()
        delivery = self._play(task, 0, empty_fragments(self._spec, self._bindings, self._config, task))
        timed = self._turn_s.setdefault(len(task.episodes), [])
        if len(timed) < TIMED_TASKS and delivery.failure is None:
            timed.append((time.perf_counter() - began) / max(delivery.fragments[0].turns, 1))
        return [delivery]

    def _split(self, task: Task) -> list[Task]:
        """Balanced parts of neighbouring worlds, one per thread that has enough to do."""
        return [
            Task(task.episodes[a:b], task.purpose, task.exploration)
            for a, b in split_evenly(len(task.episodes), self._useful_threads(len(task.episodes)))
        ]

    def _useful_threads(self, episodes: int) -> int:
        """As many threads as have enough to do. The result does not depend on it."""
        timed = self._turn_s.get(episodes, [])
        if len(timed) < TIMED_TASKS and not any(turn_s > LONG_TURN_S for turn_s in timed):
            return 1
        return max(1, min(self._threads, int(min(timed) / THREAD_TURN_S)))

    def _play_together(self, task: Task, parts: list[Task]) -> list[Delivery]:
        """Every thread plays some worlds, into its own columns of fragments that all of them share."""
        assert self._pool is not None, "start() first"
        out = empty_fragments(self._spec, self._bindings, self._config, task)
        jobs, first = [], 0
        for thread, part in enumerate(parts):
            worlds = slice(first, first + len(part.episodes))
            jobs.append(
                self._pool.submit(self._play, part, thread, [slice_worlds(fragment, worlds) for fragment in out])
            )
            first = worlds.stop
        wait(jobs)  # for all: no thread may still be playing when the error of one is handled
        done = [job.result() for job in jobs]
        if any(delivery.failure for delivery in done):
            return done
        turns = max(delivery.fragments[0].turns for delivery in done)
        invalid_samples = [sample for delivery in done for sample in delivery.invalid_samples]
        return [
            Delivery(
                task, [slice_worlds(fragment, slice(None), turns) for fragment in out], invalid_samples=invalid_samples
            )
        ]

    def _play(self, task: Task, thread: int, out: Sequence[Fragment]) -> Delivery:
        began = time.thread_time()
        try:
            rollout = self._rollouts.begin(task, thread)
            with span("collect"), own_stream(self._device):
                fragments = rollout.play(out, self._stop)
        except GameError as error:
            self._rollouts.forget(task, thread)
            return Delivery(
                task, (), failure=TaskFailure.of(task, "loop", error.turn, str(error), format_traceback(error), out)
            )
        with self._cpu_lock:
            self.spent.cpu += time.thread_time() - began
        return Delivery(task, fragments, invalid_samples=rollout.invalid_samples)

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Load the rows; all rollouts share the same policies."""
        with span("publish"):
            for part, part_rows in rows.items():
                self._bindings[part].policy.load(part_rows, version)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
