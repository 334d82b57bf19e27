"""Learning in threads beside collecting."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from remuda.core.errors import RemudaError
from remuda.core.learner import Learner
from remuda.core.plan import Plan
from remuda.core.timeline import span
from remuda.engines.interfaces import RoundPiece, Update
from remuda.engines.trainers.local import LearningRound, LocalTrainers

PORTION_LIMIT_S = 3600.0
"""Longest wait for a portion of a round to be learned; a thread that takes longer counts as hung."""


class ThreadTrainers(LocalTrainers):
    """Learns each round as soon as it is complete, a portion at a time; whoever waits in `poll` learns too.

    So all cores are busy, whatever collecting costs beside learning: the thread that collects learns when it has
    nothing to collect. torch and the kernels release the GIL meanwhile.

    One learner is run by at most one thread at a time. `_ready` holds the learners that no thread is running: a thread
    takes one out, runs a portion without holding the lock, and puts it back if portions are left.
    """

    def __init__(self, plan: Plan, learners: Mapping[int, Sequence[Learner]], threads: int = 1) -> None:
        super().__init__(plan, learners)
        self._rounds: deque[tuple[int, list[RoundPiece]]] = deque()  # complete, not begun
        self._learning_round: LearningRound | None = None
        self._ready: deque[int] = deque()  # its learners with portions left that no thread is running
        self._portions_done: list[int] = []  # per learner
        self._cpu_s: list[float] = []  # per learner
        self._learners_done = 0
        self._done: list[Update] = []  # not returned yet
        self._learned = 0  # the newest version that is learned
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()  # guards the fields above; never held while learning
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"train-{i}", daemon=True)
            for i in range(max(1, threads - 1))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def _complete(self, number: int) -> None:
        with self._changed:
            self._rounds.append((number, self._pop_round(number)))
            self._begin_round()

    def _begin_round(self) -> None:
        """Begin the next round unless one is being learned: no learner may learn two at once."""
        if self._learning_round is None and self._rounds:
            number, pieces = self._rounds.popleft()
            self._learning_round = LearningRound(number, pieces, self.plan)
            self._learners_done = 0
            self._portions_done, self._cpu_s = [0] * len(self._all_learners), [0.0] * len(self._all_learners)
            self._ready.extend(range(len(self._all_learners)))
            self._changed.notify_all()

    def _run_thread(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._closed)
                if self._closed:
                    return
                index = self._ready.popleft()
            self._run_portion(index)

    def _run_portion(self, index: int) -> None:
        """Have one learner make its next portion of the round; whoever makes the very last one finishes the round."""
        learning_round, learner = self._learning_round, self._all_learners[index]
        assert learning_round is not None
        portions = learning_round.portions(learner)
        try:
            if self._portions_done[index] == 0:
                self._cpu_s[index] += learning_round.take(learner)
            self._cpu_s[index] += learning_round.update(learner, portions[self._portions_done[index]])
            with self._changed:
                self._portions_done[index] += 1
                if self._portions_done[index] < len(portions):
                    self._ready.append(index)
                    self._changed.notify_all()
                    return
                self._learners_done += 1
                if self._learners_done < len(self._all_learners):
                    return
            # All others are done: only this thread touches the learners until the next round begins.
            reports = [
                (learner.report(), cpu_s) for learner, cpu_s in zip(self._all_learners, self._cpu_s, strict=True)
            ]
            update = self._finish_round(learning_round, reports)
        except BaseException as error:  # it is raised again in `poll`, in the thread of the loop
            self._fail(error)
            return
        with self._changed:
            self._done.append(update)
            self._learned = update.version
            self._learning_round = None
            self._begin_round()
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def poll(self, version: int) -> list[Update]:
        """Returns the updates not returned yet, having helped to learn up to `version`; raises a thread's error."""
        wanted = min(version, self.taken)
        while self._learned < wanted or self._error is not None:
            self._help_or_wait(wanted)
        with self._changed:
            done, self._done = self._done, []
        self.version = done[-1].version if done else self.version
        return done

    def _help_or_wait(self, wanted: int) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            # Asked again, now with the lock: a thread may have learned the round since `poll` looked. It has notified
            # already, so a wait would never end.
            if not self._ready and self._learned < wanted:
                self._wait(self._learned)
            index = self._ready.popleft() if self._ready else None
        if index is not None:
            self._run_portion(index)

    def _wait(self, learned: int) -> None:
        began = time.perf_counter()
        with span("wait"):
            changed = self._changed.wait_for(
                lambda: self._ready or self._learned > learned or self._error, PORTION_LIMIT_S
            )
        self.waited_s += time.perf_counter() - began
        if not changed:
            raise RemudaError(f"a portion of a round was not learned within {PORTION_LIMIT_S:.0f} s")

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`."""
        super().restore(version, state)
        self._learned = version

    def close(self) -> None:
        """End the threads; one that hangs stays behind as a daemon."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PORTION_LIMIT_S if self._error is None else 1.0)
        super().close()
