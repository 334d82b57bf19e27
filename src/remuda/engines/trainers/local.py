"""Learning in this process: the learners, and one round of their work."""

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
from remuda.learners.devices import own_stream

PORTIONS = 4
"""Portions of a round's updates where threads share the learners: no thread waits longer than a portion takes."""
LearnerReport = tuple[dict[str, NDArray[np.float64]], float]
"""A learner's metrics of a round, and the processor time it took."""


class LearningRound:
    """A round to be learned, by one learner after another or by several at once, whole or in portions."""

    def __init__(self, number: int, pieces: list[RoundPiece], plan: Plan) -> None:
        self.began = time.perf_counter()
        self.number, self.pieces, self._plan = number, pieces, plan
        self.fragments = [piece.fragments for piece in pieces]  # per piece, one per group

    def portions(self, learner: Learner) -> list[int]:
        """The round's updates in portions; between two of them another thread may take the learner over."""
        updates = self.updates(learner)
        divisible = learner.incremental and updates > 1
        return [last - first for first, last in split_evenly(updates, PORTIONS)] if divisible else [updates]

    def updates(self, learner: Learner) -> int:
        """Updates that are due in the round for the agents of a learner."""
        return self._plan.updates_in(self.number, learner.context.herd_first)

    def learn(self, learner: Learner) -> LearnerReport:
        """Have one learner take the round's fragments and make all its updates."""
        cpu_s = self.take(learner) + self.update(learner, self.updates(learner))
        return learner.report(), cpu_s

    def take(self, learner: Learner) -> float:
        """Have one learner take the round's fragments; returns the processor time. If it raises, it goes on without."""

        def take_all() -> None:
            for fragments in self.fragments:
                learner.take(learner.context.select(fragments))

        return self._timed("take", learner, 0, take_all)

    def update(self, learner: Learner, count: int) -> float:
        """Have one learner make updates; returns the processor time. If it raises, it keeps its weights."""
        return self._timed("update", learner, count, lambda: learner.update(count))

    def _timed(self, name: str, learner: Learner, count: int, work: Callable[[], None]) -> float:
        before = time.thread_time() + learner.thread_pool_cpu_s
        with learner.skip_on_error(count), span(name), own_stream(learner.context.device):
            work()
        return time.thread_time() + learner.thread_pool_cpu_s - before


class LocalTrainers(Trainers):
    """Each part of the herd has one learner, or several with a slice of its agents each."""

    def __init__(self, plan: Plan, learners: Mapping[int, Sequence[Learner]], threads: int = 1) -> None:
        super().__init__(plan)
        self.learners = learners  # by part of the herd
        self._all_learners = [learner for slices in learners.values() for learner in slices]
        self._pieces: dict[int, list[RoundPiece]] = {}  # by round
        self._pool = thread_pool(threads, "learn") if threads > 1 else None

    def _add(self, piece: RoundPiece) -> None:
        self._pieces.setdefault(piece.round, []).append(piece)

    def _pop_round(self, number: int) -> list[RoundPiece]:
        """Removes the pieces of a complete round; returns them in the order of their episodes.

        Pieces arrive in any order, and learning depends on the order: sorted, the result does not depend on who
        finished first.
        """
        return sorted(self._pieces.pop(number), key=lambda piece: piece.delivery.task.episodes[piece.worlds][0])

    def _learn(self, number: int, pieces: list[RoundPiece]) -> Update:
        """Have every learner take round `number` and make its updates."""
        learning_round = LearningRound(number, pieces, self.plan)
        run = self._pool.map if self._pool else map
        return self._finish_round(learning_round, list(run(learning_round.learn, self._all_learners)))

    def _finish_round(self, learning_round: LearningRound, reports: list[LearnerReport]) -> Update:
        """Count the lag of a round that is learned, release its memory, and combine the reports."""
        for piece, fragments in zip(learning_round.pieces, learning_round.fragments, strict=True):
            self.lags.update(count_lags(fragments, learning_round.number - 1))
            piece.release()
        spent = TimeSpent(time.perf_counter() - learning_round.began, sum(cpu_s for _, cpu_s in reports))
        skipped_updates = [skipped for learner in self._all_learners for skipped in learner.pop_skipped_updates()]
        metrics, first = {}, 0
        for part, slices in self.learners.items():
            of_part = [report for report, _ in reports[first : first + len(slices)]]
            metrics[part] = {name: np.concatenate([report[name] for report in of_part]) for name in of_part[0]}
            first += len(slices)
        return Update(learning_round.number, self.rows(), metrics, spent, skipped_updates)

    def close(self) -> None:
        """End the threads and close the learners."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for learner in self._all_learners:
            learner.close()

    def rows(self) -> Rows:
        """The newest weights; where one learner has the whole part, without another copy."""
        rows = {part: [learner.rows() for learner in slices] for part, slices in self.learners.items()}
        return {part: own[0] if len(own) == 1 else np.concatenate(own) for part, own in rows.items()}

    def steps(self) -> dict[int, int]:
        """Gradient steps made, by herd-wide number of each agent that learns."""
        return {
            int(agent): int(steps)
            for learner in self._all_learners
            for agent, steps in zip(learner.context.agent_numbers, learner.steps, strict=True)
        }

    def memory_bytes(self) -> int:
        """Bytes that all learners hold."""
        return sum(learner.memory_bytes() for learner in self._all_learners)

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything the next update depends on, the same however the herd is sliced; copies."""
        result = {}
        for part, slices in self.learners.items():
            states = [learner.state() for learner in slices]
            for name in states[0]:
                arrays = [state[name] for state in states]
                result[f"{part}/{name}"] = np.concatenate(arrays)  # copies also a single array
        return result

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`."""
        self.version, self._received = version, RoundCounter(self.plan, version)
        for part, slices in self.learners.items():
            of_part, first = with_prefix(state, f"{part}/"), 0
            if any(len(array) != sum(learner.context.agents for learner in slices) for array in of_part.values()):
                raise CheckpointError("it is of another number of agents")
            for learner in slices:
                last = first + learner.context.agents
                learner.restore({name: array[first:last] for name, array in of_part.items()})
                first = last
