"""Learning in this process: the learners themselves, and a round of theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import CheckpointError
from remuda.core.learner import Learner
from remuda.core.plan import Plan
from remuda.core.ranges import split_evenly
from remuda.core.rounds import RoundCounter
from remuda.core.threads import thread_pool
from remuda.core.timeline import span
from remuda.engines.interfaces import RoundPiece, Rows, TimeSpent, Trainers, Update, count_lags, with_prefix

PORTIONS = 4
"""Portions of a round's updates where threads share the slices of a herd: nobody waits longer for one than it takes."""
LearnerReport = tuple[dict[str, NDArray[np.float64]], float]
"""What a learner says of a round, and the processor time it took."""


class LearningRound:
    """A round to be learned, by one learner after another or by several at once, in one go or in portions."""

    def __init__(self, number: int, pieces: list[RoundPiece], updates: int) -> None:
        self.began = time.perf_counter()
        self.number, self.pieces, self.updates = number, pieces, updates
        self.deliveries = [piece.fragments for piece in pieces]

    def portions(self, learner: Learner) -> list[int]:
        """The updates in portions between which another thread may go on with this learner."""
        cut = learner.piecemeal and self.updates > 1
        return [last - first for first, last in split_evenly(self.updates, PORTIONS)] if cut else [self.updates]

    def teach(self, learner: Learner) -> LearnerReport:
        """Have one learner take it and make its updates."""
        spent = self.take(learner) + self.update(learner, self.updates)
        return learner.report(), spent

    def take(self, learner: Learner) -> float:
        """Have one learner take it in; returns the processor time. One that raises goes on without."""
        return self._timed(
            "take",
            learner,
            0,
            lambda: [learner.take(learner.context.select(fragments)) for fragments in self.deliveries],
        )

    def update(self, learner: Learner, count: int) -> float:
        """Have one learner make updates; returns the processor time. One that raises goes on with its weights."""
        return self._timed("update", learner, count, lambda: learner.update(count))

    def _timed(self, name: str, learner: Learner, count: int, work: Callable[[], object]) -> float:
        before = time.thread_time() + learner.helpers_cpu_s
        with learner.skipping_errors(count), span(name):
            work()
        return time.thread_time() + learner.helpers_cpu_s - before


class LocalTrainers(Trainers):
    """Each part of the herd is taught by one learner or by several with a slice each."""

    def __init__(self, plan: Plan, learners: Mapping[int, Sequence[Learner]], threads: int = 1) -> None:
        super().__init__(plan)
        self.learners = learners  # by part of the herd
        self._arrived: dict[int, list[RoundPiece]] = {}  # by round
        self._pool = thread_pool(threads, "learn") if threads > 1 else None

    def _add(self, piece: RoundPiece) -> None:
        self._arrived.setdefault(piece.round, []).append(piece)

    def _round(self, number: int) -> list[RoundPiece]:
        """The pieces of a whole round, in the order of their episodes."""
        return sorted(self._arrived.pop(number), key=lambda piece: piece.delivery.task.episodes[piece.worlds][0])

    def _learn(self, number: int, pieces: list[RoundPiece]) -> Update:
        """Let every learner take round `number` and make its updates."""
        learning_round = LearningRound(number, pieces, self.plan.updates_in(number))
        everyone = [learner for slices in self.learners.values() for learner in slices]
        reports = list(
            self._pool.map(learning_round.teach, everyone) if self._pool else map(learning_round.teach, everyone)
        )
        return self._conclude(learning_round, reports)

    def _conclude(self, learning_round: LearningRound, reports: list[LearnerReport]) -> Update:
        """A round is learned: count how late it was, let its memory go, and put the reports together."""
        for piece, fragments in zip(learning_round.pieces, learning_round.deliveries, strict=True):
            self.lags.update(count_lags(fragments, learning_round.number - 1))
            piece.release()
        spent = TimeSpent(time.perf_counter() - learning_round.began, sum(cpu for _, cpu in reports))
        metrics, first = {}, 0
        skipped_updates = [
            skipped
            for slices in self.learners.values()
            for learner in slices
            for skipped in learner.take_skipped_updates()
        ]
        for part, slices in self.learners.items():
            own = [report for report, _ in reports[first : first + len(slices)]]
            metrics[part] = {name: np.concatenate([report[name] for report in own]) for name in own[0]}
            first += len(slices)
        return Update(learning_round.number, self.rows(), metrics, spent, skipped_updates)

    def close(self) -> None:
        """End the threads and let the learners go."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for slices in self.learners.values():
            for learner in slices:
                learner.close()

    def rows(self) -> Rows:
        """The newest rows."""
        return {part: np.concatenate([learner.rows() for learner in slices]) for part, slices in self.learners.items()}

    def steps(self) -> dict[int, int]:
        """Gradient steps made, per agent that learns."""
        return {
            int(agent): int(steps)
            for slices in self.learners.values()
            for learner in slices
            for agent, steps in zip(learner.context.numbers, learner.steps, strict=True)
        }

    def memory_bytes(self) -> int:
        """Bytes all learners hold."""
        return sum(learner.memory_bytes() for slices in self.learners.values() for learner in slices)

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything the next update depends on, however the herd is sliced: a snapshot."""
        result = {}
        for part, slices in self.learners.items():
            states = [learner.state() for learner in slices]
            for name in states[0]:
                arrays = [state[name] for state in states]
                result[f"{part}/{name}"] = np.concatenate(arrays)  # a copy also of one
        return result

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`."""
        self.version, self._received = version, RoundCounter(self.plan, version)
        for part, slices in self.learners.items():
            own, first = with_prefix(state, f"{part}/"), 0
            if any(len(array) != sum(learner.context.agents for learner in slices) for array in own.values()):
                raise CheckpointError("it is of another number of agents")
            for learner in slices:
                last = first + learner.context.agents
                learner.restore({name: array[first:last] for name, array in own.items()})
                first = last
