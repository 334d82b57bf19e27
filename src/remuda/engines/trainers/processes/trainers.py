"""Learning in processes of its own: each has a balanced slice of the herd, its memory and its optimisers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import WorkerError
from remuda.core.failures import SkippedUpdates
from remuda.core.fragment import Purpose
from remuda.core.learner import Learner
from remuda.engines.collectors.worker import CollectJob
from remuda.engines.context import LastState
from remuda.engines.interfaces import RoundPiece, Rows, TimeSpent, Trainers, Update, with_prefix
from remuda.engines.trainers.processes.messages import (
    AgentSlice,
    FragmentsTaken,
    RestoreState,
    RoundLearned,
    SendState,
    StateFollows,
    TakeFragments,
)
from remuda.engines.trainers.processes.schedule import SCHEDULE, batches, saved_mark, split
from remuda.engines.trainers.processes.worker import LearnJob
from remuda.learners.herd import make_learner
from remuda.transport.heartbeat import WorkerExit
from remuda.transport.shared_memory import recv_arrays, send_arrays
from remuda.transport.slots import SlotToken
from remuda.transport.weights import WeightReader
from remuda.transport.worker_pool import Worker, WorkerPool

LIMIT_S = 3600.0
"""Longest wait for a round to be learned; learners say every few updates that they live."""


class ProcessTrainers(Trainers):
    """Passes every piece on to all learner processes and keeps its slot until the last has copied it."""

    def __init__(
        self, job: CollectJob, learners: int, worker_pool: WorkerPool, folder: Path, last_state: LastState
    ) -> None:
        """`job` is what the collectors do, whose slots and weights the learners share; `folder` is the run's."""
        plan, spec, parts, device = job.plan, job.spec, job.parts, job.device
        slot_array, store = job.slot_array, job.stores[Purpose.TRAIN]
        super().__init__(plan)
        self.parts, self.worker_pool, self.store = parts, worker_pool, store
        self.slices = split(parts, learners)
        self._reader = WeightReader(store)
        self._spec, self._device = spec, device
        self._first = self._try_out(None)
        self._workers = [
            worker_pool.add_worker(
                f"learn-{i}",
                LearnJob(plan, parts, spec, device, own, slot_array, store, job.session_objects),
                self._hear,
                self._lose,
            )
            for i, own in enumerate(self.slices)
        ]
        self._pieces: dict[tuple[SlotToken, tuple[int, int]], tuple[RoundPiece, dict[int, list[int]]]] = {}
        self._schedule = folder / SCHEDULE if plan.log_schedule else None
        self._last_state = last_state
        self._took: dict[int, int] = {}  # by worker: episodes copied
        self._lost: list[SkippedUpdates] = []
        self._reports: dict[int, dict[int, RoundLearned]] = {}  # by round, by worker
        self._done: list[Update] = []
        self._saved: dict[int, dict[str, NDArray[Any]]] = {}
        self._saving = False
        self._given: dict[str, NDArray[Any]] = {}
        self._restored: tuple[int, list[dict[str, NDArray[Any]]]] | None = None
        self._versions = [0]  # published after so many rounds
        self._started = False
        self._learned: dict[int, int] = {}  # rounds, by worker

    def _learner(self, index: int) -> Learner:
        """A whole part's learner as it is in the beginning."""
        part = self.parts[index]
        return make_learner(part, self.plan, self._spec, self._device, (0, part.agents))

    def _try_out(self, state: Mapping[str, NDArray[Any]] | None) -> Rows:
        """The first rows, and the bytes and kinds of the learners, from learners that are then forgotten."""
        rows: Rows = {}
        self._steps: dict[int, int] = {}
        self._bytes, self._piecemeal = 0, False
        for index, part in enumerate(self.parts):
            if not part.learns:
                continue
            learner = self._learner(index)
            if state is not None:
                learner.restore(with_prefix(state, f"{index}/"))
            rows[index] = learner.rows()
            self._bytes += learner.memory_bytes()
            self._steps.update(zip(learner.context.numbers.tolist(), learner.steps.tolist(), strict=True))
            self._piecemeal |= learner.piecemeal
            learner.close()
        return rows

    def start(self) -> None:
        """Give the processes their state, if there is one."""
        self._started, self._given = True, {}
        self._learned = {worker.index: self.version for worker in self._workers}
        self._took = {worker.index: self.plan.episodes_after(self.version) for worker in self._workers}
        if self._schedule is not None and self.version == 0:
            self._schedule.write_text(json.dumps({"slices": self.slices}) + "\n", encoding="utf-8")
        elif self._schedule is not None and not self._rewind(self._schedule):
            self._give_up_schedule()
        if self._restored is not None:
            rounds, states = self._restored
            self._restored = None
            for worker, state in zip(self._workers, states, strict=True):
                self._restore_worker(worker, RestoreState(rounds, rounds), state)

    def _restore_worker(self, worker: Worker, order: RestoreState, state: dict[str, NDArray[Any]]) -> None:
        assert worker.connection is not None
        assert worker.process is not None
        with suppress(OSError):  # if it is gone we hear of that soon enough
            send_arrays(worker.connection, state, worker.process.pid or 0, order)

    def versions_after(self, rounds: int) -> int:
        """Learners publish several times a round; counted once, since the loop asks with every delivery."""
        while len(self._versions) <= rounds:
            made = batches(self.plan, self._piecemeal, len(self._versions))
            self._versions.append(self._versions[-1] + len(made))
        return self._versions[rounds]

    def _add(self, piece: RoundPiece) -> None:
        token = piece.delivery.token
        assert token is not None, "learner processes read from slots"
        self._pieces[token, (piece.worlds.start, piece.worlds.stop)] = (piece, {})

    def _complete(self, number: int) -> None:
        """Only now, so that learners never hold a part of a round when they are saved."""
        for worker in self._workers:
            for piece, _ in self._pieces.values():
                if piece.round == number:
                    self._give(worker, piece)
            self._note_busy(worker)

    def _give(self, worker: Worker, piece: RoundPiece) -> None:
        delivery, worlds = piece.delivery, (piece.worlds.start, piece.worlds.stop)
        assert delivery.token is not None
        turns = delivery.fragments[0].turns
        self.worker_pool.send(worker, TakeFragments(delivery.token, delivery.task, turns, worlds, piece.round))

    def _hear(self, worker: Worker, message: Any) -> None:
        if isinstance(message, FragmentsTaken):
            piece, taken = self._pieces[message.token, message.worlds]
            taken[worker.index] = message.versions
            self._took[worker.index] += message.worlds[1] - message.worlds[0]
            if len(taken) == len(self._workers):
                del self._pieces[message.token, message.worlds]
                self._log(piece, [taken[worker.index] for worker in self._workers])
                piece.release()
        elif isinstance(message, RoundLearned):
            worker.peak_bytes = max(worker.peak_bytes, message.peak_bytes)
            self._reports.setdefault(message.round, {})[worker.index] = message
            self._learned[worker.index] = message.round
            while len(self._reports.get(self.version + 1, {})) == len(self._workers):
                self._finish(self._reports.pop(self.version + 1))
        elif isinstance(message, StateFollows):
            assert worker.connection is not None
            with suppress(OSError, EOFError, TimeoutError):  # then it is gone, or silent
                self._saved[worker.index] = recv_arrays(worker.connection)
        self._note_busy(worker)

    def _note_busy(self, worker: Worker) -> None:
        """We wait for it as long as it has not copied all it was given, or has a whole round to learn."""
        uncopied = any(
            piece.round <= self.taken and worker.index not in taken for piece, taken in self._pieces.values()
        )
        saving = self._saving and worker.index not in self._saved
        worker.busy = uncopied or saving or self._learned[worker.index] < self.taken

    def _log(self, piece: RoundPiece, taken_at: list[list[int]]) -> None:
        """Note which versions played this, and where every slice stood when it took it."""
        if self._schedule is None:
            return
        fragments = piece.delivery.fragments
        versions = [[fragment.versions[turn].tolist() for fragment in fragments] for turn in range(fragments[0].turns)]
        entry = {
            "episodes": piece.delivery.task.episodes,
            "worlds": (piece.worlds.start, piece.worlds.stop),
            "versions": [(turn, now) for turn, now in enumerate(versions) if turn == 0 or now != versions[turn - 1]],
            "taken_at": taken_at,
        }
        with self._schedule.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _finish(self, reports: dict[int, RoundLearned]) -> None:
        """All slices have learned a round: put their reports together."""
        self.version += 1
        metrics: dict[int, dict[str, list[float]]] = {}
        spent = TimeSpent()
        for worker, own in zip(self._workers, self.slices, strict=True):
            report = reports[worker.index]
            steps = iter(report.steps)
            for (part, first, last), values in zip(own, report.metrics, strict=True):
                for name, column in values.items():
                    metrics.setdefault(part, {}).setdefault(name, []).extend(column)
                for agent in range(first, last):
                    self._steps[self.parts[part].herd_first + agent] = next(steps)
            self.lags.update(report.lags)
            spent.add(report.spent)
            self.learners_waited_s += report.waited_s
        arrays = {part: {n: np.array(c) for n, c in named.items()} for part, named in metrics.items()}
        skipped_updates = [*self._lost, *(skipped for report in reports.values() for skipped in report.skipped_updates)]
        self._lost = []
        self._done.append(Update(self.version, None, arrays, spent, skipped_updates))

    def _lose(self, worker: Worker, last: WorkerExit) -> None:
        """Let the new one go on from the last checkpoint: what its agents learned since then is lost, and said."""
        if not self._started:
            return  # it gets its state with the others
        plan, took = self.plan, self._took[worker.index]
        rounds = next(r for r in range(self.taken + 1, -1, -1) if plan.episodes_after(r) <= took)
        saved, state = self._last_state()
        own = self.slices[self._workers.index(worker)]
        updates = plan.updates_due(took) - plan.updates_due(plan.episodes_after(saved))
        for part, first, end in own:
            agents = (self.parts[part].herd_first + first, self.parts[part].herd_first + end)
            self._lost.append(SkippedUpdates(agents, updates, f"{worker.name} {last}"))
        order = RestoreState(saved, rounds, took - plan.episodes_after(rounds), self._learned[worker.index] < rounds)
        self._restore_worker(worker, order, self._share_of(own, state))
        for piece, taken in self._pieces.values():
            if piece.round <= self.taken and worker.index not in taken:
                self._give(worker, piece)
        if self._saving and worker.index not in self._saved:
            self.worker_pool.send(worker, SendState())
        self._note_busy(worker)
        self._give_up_schedule()

    def _rewind(self, schedule: Path) -> bool:
        """Take back what was logged after the state we go on from; False where that cannot be found."""
        mark = saved_mark(self.version)
        try:
            lines = schedule.read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError:
            return False
        if mark not in lines or self.plan.free_running:  # of which nobody knows how often it has published
            return False
        last = len(lines) - lines[::-1].index(mark)
        schedule.write_text("".join(lines[:last]), encoding="utf-8")
        return True

    def _give_up_schedule(self) -> None:
        """It cannot be replayed."""
        if self._schedule is not None:
            self._schedule.unlink(missing_ok=True)
            self._schedule = None

    def _share_of(self, own: Sequence[AgentSlice], state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What concerns the slices of one process."""
        return {
            f"{index}/{name}": np.ascontiguousarray(array[first:last])
            for index, (part, first, last) in enumerate(own)
            for name, array in with_prefix(state, f"{part}/").items()
        }

    def poll(self, version: int) -> list[Update]:
        """What all slices have learned, having waited for `version`."""
        began = time.perf_counter()
        while self.version < min(version, self.taken):
            if not self.worker_pool.step(LIMIT_S, stoppable=False):
                raise WorkerError(f"round {self.version + 1} was not learned within {LIMIT_S:.0f} s")
        self.waited_s += time.perf_counter() - began
        done, self._done = self._done, []
        return done

    def rows(self) -> Rows:
        """The rows on the board."""
        if not self._started:
            return self._first
        self._reader.refresh()
        return {part: rows.copy() for part, rows in self._reader.rows.items()}

    def steps(self) -> dict[int, int]:
        """As last reported."""
        return self._steps

    def memory_bytes(self) -> int:
        """Bytes all learners hold."""
        return self._bytes

    def state(self) -> dict[str, NDArray[Any]]:
        """Ask everybody, and put the slices together; before they have started it is what they will start with."""
        if not self._started:
            return self._given or {
                f"{index}/{name}": array
                for index, part in enumerate(self.parts)
                if part.learns
                for name, array in self._learner(index).state().items()
            }
        self._saved, self._saving = {}, True
        for worker in self._workers:
            worker.busy = True
            self.worker_pool.send(worker, SendState())
        while len(self._saved) < len(self._workers):
            if not self.worker_pool.step(LIMIT_S, stoppable=False):
                raise WorkerError(f"a learner did not hand over its state within {LIMIT_S:.0f} s")
        self._saving = False
        if self._schedule is not None:
            with self._schedule.open("a", encoding="utf-8") as file:
                file.write(saved_mark(self.version))
        columns: dict[str, list[NDArray[Any]]] = {}
        for worker, own in zip(self._workers, self.slices, strict=True):
            for name, array in self._saved[worker.index].items():
                index, _, rest = name.partition("/")
                columns.setdefault(f"{own[int(index)][0]}/{rest}", []).append(array)
        self._saved = {}
        return {name: np.concatenate(arrays) for name, arrays in columns.items()}

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`, once the processes run."""
        self.version = self.taken = version
        self._first = self._try_out(state)
        self._given = dict(state)
        self._restored = (version, [self._share_of(own, state) for own in self.slices])

    def close(self) -> None:
        """The crew ends the processes."""
        self.worker_pool.close()
