"""Runs the jobs of a learner on as many threads as it may use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from remuda.core.threads import thread_pool

Job = TypeVar("Job")
Result = TypeVar("Result")


class JobPool:
    """Threads for jobs of one learner. They start with the first jobs that can share them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.cpu_s = 0.0
        """Processor seconds spent in these threads so far."""
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """The results of all jobs in order; one job, or one thread, stays in the calling thread."""
        if self.threads == 1 or len(jobs) <= 1:
            return [work(job) for job in jobs]
        if self._pool is None:
            self._pool = thread_pool(self.threads, "learn")

        def timed(job: Job) -> tuple[Result, float]:
            began = time.thread_time()
            return work(job), time.thread_time() - began

        done = list(self._pool.map(timed, jobs))
        self.cpu_s += sum(cpu for _, cpu in done)
        return [result for result, _ in done]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
