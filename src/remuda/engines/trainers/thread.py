"""Learning in threads beside the collecting."""

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

LIMIT_S = 3600.0
"""Longest wait for a slice of a round to be learned; a thread that takes longer is taken for hung."""


class ThreadTrainers(LocalTrainers):
    """Learns each round as soon as it is whole, a portion of a slice at a time; who waits for it lends a hand.

    So the cores are busy whatever collecting costs beside learning: the thread that collects learns when
    it has nothing to collect. torch and the kernels let go of the GIL meanwhile.
    """

    def __init__(self, plan: Plan, learners: Mapping[int, Sequence[Learner]], threads: int = 1) -> None:
        super().__init__(plan, learners)
        self._everyone = [learner for slices in self.learners.values() for learner in slices]
        self._rounds: deque[tuple[int, list[RoundPiece]]] = deque()  # whole, not begun
        self._learning_round: LearningRound | None = None  # of the round being learned
        self._todo: deque[int] = deque()  # its learners nobody teaches right now
        self._made: list[int] = []  # portions that each learner has made
        self._spent: list[float] = []  # processor time of each
        self._whole = 0  # learners that have made all
        self._done: list[Update] = []
        self._newest = 0  # version that is learned
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()  # of the fields above; never held while learning
        self._threads = [
            threading.Thread(target=self._serve, name=f"train-{i}", daemon=True) for i in range(max(1, threads - 1))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def _complete(self, number: int) -> None:
        with self._changed:
            self._rounds.append((number, self._round(number)))
            self._begin_next()

    def _begin_next(self) -> None:
        """Open the next round, if none is open: no learner may learn two at once."""
        if self._learning_round is None and self._rounds:
            number, pieces = self._rounds.popleft()
            self._learning_round = LearningRound(number, pieces, self.plan.updates_in(number))
            self._whole = 0
            self._made, self._spent = [0] * len(self._everyone), [0.0] * len(self._everyone)
            self._todo.extend(range(len(self._everyone)))
            self._changed.notify_all()

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self._closed)
                if self._closed:
                    return
                index = self._todo.popleft()
            self._teach(index)

    def _teach(self, index: int) -> None:
        """Have one learner make its next portion of the open round; whoever makes the last concludes it."""
        learning_round, learner = self._learning_round, self._everyone[index]
        assert learning_round is not None
        portions = learning_round.portions(learner)
        try:
            if self._made[index] == 0:
                self._spent[index] += learning_round.take(learner)
            self._spent[index] += learning_round.update(learner, portions[self._made[index]])
            with self._changed:
                self._made[index] += 1
                if self._made[index] < len(portions):
                    self._todo.append(index)
                    self._changed.notify_all()
                    return
                self._whole += 1
                if self._whole < len(self._everyone):
                    return
            reports = [(own.report(), spent) for own, spent in zip(self._everyone, self._spent, strict=True)]
            update = self._conclude(learning_round, reports)
        except BaseException as error:
            self._fail(error)
            return
        with self._changed:
            self._done.append(update)
            self._newest = update.version
            self._learning_round = None
            self._begin_next()
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def poll(self, version: int) -> list[Update]:
        """What is learned, having helped until `version` is; whatever a thread raised is raised here."""
        while self._newest < min(version, self.taken) or self._error is not None:
            self._help_or_wait()
        with self._changed:
            done, self._done = self._done, []
        self.version = done[-1].version if done else self.version
        return done

    def _help_or_wait(self) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            if not self._todo:
                self._wait(self._newest)
            index = self._todo.popleft() if self._todo else None
        if index is not None:
            self._teach(index)

    def _wait(self, newest: int) -> None:
        began = time.perf_counter()
        with span("wait"):
            ready = self._changed.wait_for(lambda: self._todo or self._newest > newest or self._error, LIMIT_S)
        self.waited_s += time.perf_counter() - began
        if not ready:
            raise RemudaError(f"a round was not learned within {LIMIT_S:.0f} s")

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`."""
        super().restore(version, state)
        self._newest = version

    def close(self) -> None:
        """End the threads; one that hangs is left behind."""
        with self._changed:
            self._closed = True
            self._todo.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(LIMIT_S if self._error is None else 1.0)
        super().close()
