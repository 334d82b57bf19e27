"""Learning in processes: each has a balanced slice of the herd, with its replay buffers and optimisers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import WorkerError
from remuda.core.failures import SkippedUpdates
from remuda.core.fragment import Purpose
from remuda.core.learner import Learner
from remuda.core.rounds import RoundCounter
from remuda.engines.collectors.worker import CollectJob
from remuda.engines.context import LastState
from remuda.engines.interfaces import RoundPiece, Rows, TimeSpent, Trainers, Update, with_prefix
from remuda.engines.trainers.processes import messages
from remuda.engines.trainers.processes.messages import RoundLearned
from remuda.engines.trainers.processes.schedule import ScheduleLog, batches
from remuda.engines.trainers.processes.worker import LearnJob
from remuda.engines.trainers.slices import split, state_of
from remuda.learners.herd import make_learner
from remuda.transport.heartbeat import WorkerExit
from remuda.transport.shared_memory import recv_arrays, send_arrays
from remuda.transport.slots import SlotToken
from remuda.transport.weights import WeightReader
from remuda.transport.worker_pool import Worker, WorkerPool

ROUND_LIMIT_S = 3600.0
"""Longest wait without any message from a worker; one that hangs is found sooner, by its heartbeats."""
PieceKey = tuple[SlotToken, tuple[int, int]]
"""A slot and the range of its worlds: one piece of one round."""


class ProcessTrainers(Trainers):
    """Sends every piece of a round to all learner processes, and releases its slot when the last has taken it."""

    def __init__(
        self, job: CollectJob, learners: int, worker_pool: WorkerPool, folder: Path, last_state: LastState
    ) -> None:
        """`job` is the collectors', whose slots and weights the learners share; `folder` is the run's."""
        plan, spec, parts, device = job.plan, job.spec, job.parts, job.device
        slot_array, store = job.slot_array, job.stores[Purpose.TRAIN]
        super().__init__(plan)
        self.parts, self.worker_pool, self.store = parts, worker_pool, store
        self.slices = split(parts, learners)  # per process
        self._reader = WeightReader(store)
        self._spec, self._device = spec, device
        self._first_rows = self._inspect_learners(None)
        self._workers = [
            worker_pool.add_worker(
                f"learn-{i}",
                LearnJob(plan, parts, spec, device, slices, slot_array, store, job.session_objects),
                self._on_message,
                self._on_worker_lost,
            )
            for i, slices in enumerate(self.slices)
        ]
        self._pieces: dict[PieceKey, RoundPiece] = {}  # not yet taken by all
        self._taken_at: dict[PieceKey, dict[int, list[int]]] = {}  # by worker: versions of its slices when it took it
        self._schedule = ScheduleLog(folder) if plan.log_schedule else None
        self._last_state = last_state
        self._episodes_taken: dict[int, int] = {}  # by worker
        self._rounds_learned: dict[int, int] = {}  # by worker
        self._lost_updates: list[SkippedUpdates] = []  # not reported yet
        self._reports: dict[int, dict[int, RoundLearned]] = {}  # by round, by worker
        self._done: list[Update] = []  # not returned yet
        self._states: dict[int, dict[str, NDArray[Any]]] | None = None  # by worker, while they are being saved
        self._restored: Mapping[str, NDArray[Any]] | None = None  # what the processes start with
        self._versions = [0]  # published after so many rounds
        self._started = False

    def _make_learner(self, index: int) -> Learner:
        """The learner of a whole part, as it is before the first round."""
        part = self.parts[index]
        return make_learner(part, self.plan, self._spec, self._device, (0, part.agents))

    def _inspect_learners(self, state: Mapping[str, NDArray[Any]] | None) -> Rows:
        """Make each learner here, note its steps, memory and kind, and discard it; returns their rows.

        The processes make their own, later. One part at a time, so that only one learner's memory is needed.
        """
        rows: dict[int, NDArray[np.float32]] = {}
        self._steps: dict[int, int] = {}
        self._bytes = 0
        self._publishers: list[tuple[bool, int]] = []  # of each part: whether it is incremental, and its first agent
        for index, part in enumerate(self.parts):
            if not part.learns:
                continue
            learner = self._make_learner(index)
            if state is not None:
                learner.restore(with_prefix(state, f"{index}/"))
            rows[index] = learner.rows()
            self._bytes += learner.memory_bytes()
            self._steps.update(zip(learner.context.agent_numbers.tolist(), learner.steps.tolist(), strict=True))
            self._publishers.append((learner.incremental, learner.context.herd_first))
            learner.close()
        return rows

    def start(self) -> None:
        """Send the processes their state, if there is one."""
        self._started = True
        self._rounds_learned = {worker.index: self.version for worker in self._workers}
        self._episodes_taken = {worker.index: self.plan.episodes_after(self.version) for worker in self._workers}
        if self._schedule is not None:
            if self.version == 0:
                self._schedule.begin(self.slices)
            elif self.plan.free_running:  # how often its learners had published is not known
                self._schedule.discard()
            else:
                self._schedule.rewind(self.version)
        state, self._restored = self._restored, None
        if state is not None:
            for worker, slices in zip(self._workers, self.slices, strict=True):
                message = messages.RestoreState(self.version, self.version)
                self._restore_worker(worker, message, state_of(slices, state))

    def _restore_worker(self, worker: Worker, message: messages.RestoreState, state: dict[str, NDArray[Any]]) -> None:
        assert worker.connection is not None
        assert worker.process is not None
        with suppress(OSError):  # it is gone: the pool finds out, and `_on_worker_lost` sends again
            send_arrays(worker.connection, state, worker.process.pid or 0, message)

    def versions_after(self, rounds: int) -> int:
        """Versions published after so many rounds: learners publish several times a round.

        The sums are kept, since the loop asks with every delivery.
        """
        while len(self._versions) <= rounds:
            number = len(self._versions)
            published = [len(batches(self.plan, kind, number, agent)) for kind, agent in self._publishers]
            self._versions.append(self._versions[-1] + max(published, default=1))
        return self._versions[rounds]

    def _add(self, piece: RoundPiece) -> None:
        key = self._key(piece)
        self._pieces[key], self._taken_at[key] = piece, {}

    @staticmethod
    def _key(piece: RoundPiece) -> PieceKey:
        assert piece.delivery.token is not None, "learner processes read from slots"
        return piece.delivery.token, (piece.worlds.start, piece.worlds.stop)

    def _complete(self, number: int) -> None:
        """Send a round only when it is complete: so learners never hold a part of a round when they are saved."""
        for worker in self._workers:
            for piece in self._pieces.values():
                if piece.round == number:
                    self._send_piece(worker, piece)
            self._update_busy(worker)

    def _send_piece(self, worker: Worker, piece: RoundPiece) -> None:
        token, worlds = self._key(piece)
        task, turns = piece.delivery.task, piece.delivery.fragments[0].turns
        self.worker_pool.send(worker, messages.TakeFragments(token, task, turns, worlds, piece.round))

    def _on_message(self, worker: Worker, message: Any) -> None:
        if isinstance(message, messages.FragmentsTaken):
            self._on_taken(worker, message)
        elif isinstance(message, RoundLearned):
            worker.peak_bytes = max(worker.peak_bytes, message.peak_bytes)
            self._reports.setdefault(message.round, {})[worker.index] = message
            self._rounds_learned[worker.index] = message.round
            while len(self._reports.get(self.version + 1, {})) == len(self._workers):
                self._finish_round(self._reports.pop(self.version + 1))
        elif isinstance(message, messages.StateFollows):
            assert worker.connection is not None
            assert self._states is not None
            # If the arrays do not arrive the worker is gone or hangs. The pool replaces it, and asks the next one.
            with suppress(OSError, EOFError, TimeoutError):
                self._states[worker.index] = recv_arrays(worker.connection)
        self._update_busy(worker)

    def _on_taken(self, worker: Worker, message: messages.FragmentsTaken) -> None:
        """A process has taken a piece: when all have, its slot is released."""
        key = (message.token, message.worlds)
        taken_at = self._taken_at[key]
        taken_at[worker.index] = message.versions
        self._episodes_taken[worker.index] += message.worlds[1] - message.worlds[0]
        if len(taken_at) == len(self._workers):
            piece = self._pieces.pop(key)
            del self._taken_at[key]
            if self._schedule is not None:
                self._schedule.add(piece, [taken_at[worker.index] for worker in self._workers])
            piece.release()

    def _untaken(self, worker: Worker) -> list[RoundPiece]:
        """The pieces that a process was sent and has not taken yet."""
        return [
            piece
            for key, piece in self._pieces.items()
            if piece.round <= self.taken and worker.index not in self._taken_at[key]
        ]

    def _update_busy(self, worker: Worker) -> None:
        """A process is waited for while it has pieces to take, a complete round to learn, or its state to send."""
        saving = self._states is not None and worker.index not in self._states
        learning = self._rounds_learned[worker.index] < self.taken
        worker.busy = saving or learning or bool(self._untaken(worker))

    def _finish_round(self, reports: dict[int, RoundLearned]) -> None:
        """All slices have learned a round: combine their reports."""
        self.version += 1
        metrics: dict[int, dict[str, list[float]]] = {}
        spent = TimeSpent()
        for worker, slices in zip(self._workers, self.slices, strict=True):
            report = reports[worker.index]
            steps = iter(report.steps)
            for (part, first, last), values in zip(slices, report.metrics, strict=True):
                for name, column in values.items():
                    metrics.setdefault(part, {}).setdefault(name, []).extend(column)
                for agent in range(first, last):
                    self._steps[self.parts[part].herd_first + agent] = next(steps)
            self.lags.update(report.lags)
            spent.add(report.spent)
            self.learners_waited_s += report.waited_s
        arrays = {part: {name: np.array(column) for name, column in named.items()} for part, named in metrics.items()}
        skipped_updates = [skipped for report in reports.values() for skipped in report.skipped_updates]
        lost_updates, self._lost_updates = self._lost_updates, []
        self._done.append(Update(self.version, None, arrays, spent, [*lost_updates, *skipped_updates]))

    def _on_worker_lost(self, worker: Worker, worker_exit: WorkerExit) -> None:
        """Let the replacement go on from the last checkpoint: what its agents learned since then is lost, and reported.

        The episodes that the lost process had taken are not sent again: others have released their slots. The
        replacement only moves its clocks on over them.
        """
        if not self._started:
            return  # it gets its state with the others, in `start`
        plan, taken = self.plan, self._episodes_taken[worker.index]
        rounds = next(number for number in range(self.taken + 1, -1, -1) if plan.episodes_after(number) <= taken)
        saved, state, _ = self._last_state()
        slices = self.slices[self._workers.index(worker)]
        for part, first, last in slices:
            agents = (self.parts[part].herd_first + first, self.parts[part].herd_first + last)
            updates = plan.updates_due(taken, agents[0]) - plan.updates_due(plan.episodes_after(saved), agents[0])
            self._lost_updates.append(SkippedUpdates(agents, updates, f"{worker.name} {worker_exit}"))
        unreported = self._rounds_learned[worker.index] < rounds
        message = messages.RestoreState(saved, rounds, taken - plan.episodes_after(rounds), unreported)
        self._restore_worker(worker, message, state_of(slices, state))
        for piece in self._untaken(worker):
            self._send_piece(worker, piece)
        if self._states is not None and worker.index not in self._states:
            self.worker_pool.send(worker, messages.SendState())
        self._update_busy(worker)
        if self._schedule is not None:
            self._schedule.discard()  # a replay would make the updates that were lost here

    def poll(self, version: int) -> list[Update]:
        """Returns the updates not returned yet, having waited until all slices have learned up to `version`."""
        began = time.perf_counter()
        while self.version < min(version, self.taken):
            self._wait(f"round {self.version + 1} was not learned")
        self.waited_s += time.perf_counter() - began
        done, self._done = self._done, []
        return done

    def _wait(self, problem: str) -> None:
        """Wait for a message. Not interruptible: the loop stops only between rounds, with all learners in step."""
        if not self.worker_pool.step(ROUND_LIMIT_S, stoppable=False):
            raise WorkerError(f"{problem} within {ROUND_LIMIT_S:.0f} s")

    def rows(self) -> Rows:
        """The newest rows that are published."""
        if not self._started:
            return self._first_rows
        self._reader.refresh()
        return {part: rows.copy() for part, rows in self._reader.rows.items()}

    def steps(self) -> dict[int, int]:
        """Gradient steps made, as last reported."""
        return self._steps

    def memory_bytes(self) -> int:
        """Bytes that all learners hold."""
        return self._bytes

    def state(self) -> dict[str, NDArray[Any]]:
        """Ask all processes for their state, and join the slices; before the start it is what they will start with."""
        if not self._started:
            return self._first_state() if self._restored is None else dict(self._restored)
        states: dict[int, dict[str, NDArray[Any]]] = {}
        self._states = states
        for worker in self._workers:
            worker.busy = True
            self.worker_pool.send(worker, messages.SendState())
        while len(states) < len(self._workers):
            self._wait("a learner did not send its state")
        self._states = None
        if self._schedule is not None:
            self._schedule.mark_saved(self.version)
        columns: dict[str, list[NDArray[Any]]] = {}
        for worker, slices in zip(self._workers, self.slices, strict=True):
            for name, array in states[worker.index].items():
                index, _, rest = name.partition("/")
                columns.setdefault(f"{slices[int(index)][0]}/{rest}", []).append(array)
        return {name: np.concatenate(arrays) for name, arrays in columns.items()}

    def _first_state(self) -> dict[str, NDArray[Any]]:
        return {
            f"{index}/{name}": array
            for index, part in enumerate(self.parts)
            if part.learns
            for name, array in self._make_learner(index).state().items()
        }

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`; the processes get their state when they have started."""
        self.version, self._received = version, RoundCounter(self.plan, version)
        self._first_rows = self._inspect_learners(state)
        self._restored = dict(state)

    def close(self) -> None:
        """End the processes."""
        self.worker_pool.close()
