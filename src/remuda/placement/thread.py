"""Learning in a thread beside the collecting."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from remuda.errors import RemudaError
from remuda.placement.base import Update
from remuda.placement.local import LocalTrainers
from remuda.telemetry.timeline import span
from remuda.threads import thread_pool

LIMIT_S = 3600.0
"""Longest wait for a round to be learned; a thread that takes longer is taken for hung."""


class ThreadTrainers(LocalTrainers):
    """Learns each round as soon as it is whole; torch and the kernels let go of the GIL meanwhile."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._thread = thread_pool(1, "train")
        self._hung = False
        self._futures: deque[tuple[int, Future[Update]]] = deque()

    def _complete(self, number: int) -> None:
        self._futures.append((number, self._thread.submit(self._learn, number, self._round(number))))

    def poll(self, version: int) -> list[Update]:
        """What is learned, having waited for the thread to reach `version`; whatever it raised is raised here."""
        began = time.perf_counter()
        updates = []
        while self._futures and (self._futures[0][0] <= version or self._futures[0][1].done()):
            number, future = self._futures.popleft()
            try:
                with span("wait"):
                    updates.append(future.result(LIMIT_S))
            except FutureTimeout:
                self._hung = True
                raise RemudaError(f"round {number} was not learned within {LIMIT_S:.0f} s") from None
            self.version = number
        self.waited_s += time.perf_counter() - began
        return updates

    def close(self) -> None:
        """End the thread; one that hangs is left behind."""
        self._thread.shutdown(wait=not self._hung, cancel_futures=True)
        super().close()
