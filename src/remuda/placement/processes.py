"""Learning in processes of its own: each has a balanced slice of the herd, its memory and its optimisers."""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.collect import Manner, Task, shares
from remuda.config import Plan
from remuda.errors import WorkerError
from remuda.fragment import Purpose, copied, cut
from remuda.game import GameSpec
from remuda.herd import Part, make_learner
from remuda.learners.learner import Learner
from remuda.placement.base import Piece, Rows, Spent, Trainers, Update, late, under
from remuda.placement.shared import recv_arrays, send_arrays
from remuda.placement.slots import Room, Token
from remuda.placement.supervise import Crew, Life, Phase, Ready, Worker
from remuda.placement.weights import Board, Reader
from remuda.placement.worker import CollectJob
from remuda.telemetry.timeline import span

LIMIT_S = 3600.0
"""Longest wait for a round to be learned; learners say every few updates that they live."""
SCHEDULE = "schedule.jsonl"
"""The file of a run that says who learned what when."""
Slice = tuple[int, int, int]
"""A part of the herd, and which of its agents."""


@dataclass(frozen=True)
class Take:
    """Learn from these worlds of this slot, in this round."""

    token: Token
    task: Task
    turns: int
    worlds: tuple[int, int]
    round: int


@dataclass(frozen=True)
class Taken:
    """The slot is not needed here any more."""

    token: Token
    worlds: tuple[int, int]
    versions: list[int]  # of each slice when it took it


@dataclass(frozen=True)
class Learned:
    """A round is learned; rows are on the board."""

    round: int
    metrics: list[dict[str, list[float]]]  # per slice
    steps: list[int]  # per agent, slice after slice
    lags: dict[int, int]
    spent: Spent
    waited_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Save:
    """Send everything the next update depends on."""


@dataclass(frozen=True)
class Saving:
    """It follows, as arrays."""


@dataclass(frozen=True)
class Restore:
    """Become what follows, as arrays, after so many rounds."""

    rounds: int


def split(parts: Sequence[Part], learners: int) -> list[list[Slice]]:
    """The learning agents in balanced slices, one list per process; a slice does not cross two parts."""
    agents = [(index, agent) for index, part in enumerate(parts) if part.learns for agent in range(part.agents)]
    result = []
    for first, last in shares(len(agents), learners):
        own: list[Slice] = []
        for part, agent in agents[first:last]:
            if own and own[-1][0] == part:
                own[-1] = (part, own[-1][1], agent + 1)
            else:
                own.append((part, agent, agent + 1))
        result.append(own)
    return result


def batches(plan: Plan, piecemeal: bool, number: int) -> list[int]:
    """The updates of a round in the batches after which they are published."""
    due, size = plan.updates_in(number), plan.publish_interval if piecemeal else plan.updates_in(number) + 1
    return [min(size, due - done) for done in range(0, max(due, 1), size)]


def publications(plan: Plan, piecemeal: bool, rounds: int) -> int:
    """Versions published by a learner after so many rounds, the first weights not counted."""
    return sum(len(batches(plan, piecemeal, number)) for number in range(1, rounds + 1))


@dataclass(frozen=True)
class LearnJob:
    """Everything a learning worker needs."""

    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    slices: Sequence[Slice]
    room: Room
    board: Board

    def run(self, connection: Connection, life: Life) -> None:
        """Learn what comes."""
        Student(self, connection, life).run()


class Student:
    """Lives in a worker process: some learners, and what they are told."""

    def __init__(self, job: LearnJob, connection: Connection, life: Life) -> None:
        self.job, self.connection, self.life = job, connection, life
        self.learners = [
            make_learner(job.parts[part], job.plan, job.spec, job.device, (first, last))
            for part, first, last in job.slices
        ]
        plan = job.plan
        self.manner = Manner.of(plan)
        self.versions = [0] * len(self.learners)
        self.rounds = 0
        self._have = 0
        self._lags: Counter[int] = Counter()
        self._spent = Spent()
        self._waited_s = 0.0

    def run(self) -> None:
        """Until the connection closes."""
        self.connection.send(Ready())
        while True:
            self.life.beat(Phase.WAITING)
            self._learn_meanwhile()
            began = time.perf_counter()
            with span("wait"):
                message = self.connection.recv()
            self._waited_s += time.perf_counter() - began
            if isinstance(message, Take):
                self._take(message)
            elif isinstance(message, Save):
                self.connection.send(Saving())
                send_arrays(self.connection, self._state(), pid=0)
            elif isinstance(message, Restore):
                self._restore(message.rounds, recv_arrays(self.connection))

    def _take(self, message: Take) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        self.life.beat(Phase.TAKING)
        whole = self.job.room.fragments(message.token.slot, message.task, self.manner, message.turns)
        for learner, version in zip(self.learners, self.versions, strict=True):
            post = learner.post
            own = cut(whole[post.group_index], slice(*message.worlds))
            self._lags.update(late([replace(own, versions=own.versions[:, post.first : post.last])], version))
            with span("take"):
                learner.take(copied(own) if learner.keeps_fragments else own)
        self.connection.send(Taken(message.token, message.worlds, list(self.versions)))
        self._have += message.worlds[1] - message.worlds[0]
        plan = self.job.plan
        size = plan.episodes_after(self.rounds + 1) - plan.episodes_after(self.rounds)
        report = self._learn() if self._have == size else None
        self._spent.add(Spent(time.perf_counter() - began, time.process_time() - cpu))
        if report is not None:
            self._report(report)

    def _learn(self) -> list[dict[str, list[float]]]:
        """The updates of a round, published every few of them."""
        self.rounds, self._have = self.rounds + 1, 0
        reports = []
        for index, learner in enumerate(self.learners):
            made = [self._update(index, count) for count in batches(self.job.plan, learner.piecemeal, self.rounds)]
            report = {name: np.mean([own[name] for own in made], axis=0) for name in made[0]}
            reports.append({name: values.tolist() for name, values in report.items()})
        return reports

    def _update(self, index: int, count: int) -> dict[str, NDArray[np.float64]]:
        """Make updates and publish what came of them."""
        self.life.beat(Phase.LEARNING, self.rounds)
        with span("update"):
            report = self.learners[index].update(count)
        self.versions[index] += 1
        self._publish(index)
        return report

    def _publish(self, index: int) -> None:
        part, first, _ = self.job.slices[index]
        self.job.board.publish(part, self.learners[index].rows(), self.versions[index], first)

    def _learn_meanwhile(self) -> None:
        """Where learning never pauses: go on with what we have until something new comes."""
        if not self.job.plan.free_running or self.rounds in (0, self.job.plan.rounds):
            return
        busy = [index for index, learner in enumerate(self.learners) if learner.piecemeal]
        while busy and not self.connection.poll(0):
            began, cpu = time.perf_counter(), time.process_time()
            for index in busy:
                self._update(index, self.job.plan.publish_interval)
            self._spent.add(Spent(time.perf_counter() - began, time.process_time() - cpu))

    def _report(self, metrics: list[dict[str, list[float]]]) -> None:
        steps = [int(count) for learner in self.learners for count in learner.steps]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.connection.send(Learned(self.rounds, metrics, steps, dict(self._lags), self._spent, self._waited_s, peak))
        self._lags, self._spent, self._waited_s = Counter(), Spent(), 0.0

    def _state(self) -> dict[str, NDArray[Any]]:
        return {f"{i}/{name}": a for i, learner in enumerate(self.learners) for name, a in learner.state().items()}

    def _restore(self, rounds: int, state: dict[str, NDArray[Any]]) -> None:
        self.rounds = rounds
        for index, learner in enumerate(self.learners):
            learner.restore(under(state, f"{index}/"))
            self.versions[index] = publications(self.job.plan, learner.piecemeal, rounds)
            self._publish(index)


class ProcessTrainers(Trainers):
    """Passes every piece on to all learner processes and keeps its slot until the last has copied it."""

    def __init__(self, job: CollectJob, learners: int, crew: Crew, schedule: Path | None = None) -> None:
        """`job` is what the collectors do, whose slots and board the learners share."""
        plan, spec, parts, device = job.plan, job.spec, job.parts, job.device
        room, board = job.room, job.boards[Purpose.TRAIN]
        super().__init__(plan)
        self.parts, self.crew, self.board = parts, crew, board
        self.slices = split(parts, learners)
        self._reader = Reader(board)
        self._spec, self._device = spec, device
        self._first = self._try_out(None)
        self._workers = [
            crew.hire(f"learn-{i}", LearnJob(plan, parts, spec, device, own, room, board), self._hear, self._lose)
            for i, own in enumerate(self.slices)
        ]
        self._pieces: dict[tuple[Token, tuple[int, int]], tuple[Piece, dict[int, list[int]]]] = {}
        self._schedule = schedule
        self._reports: dict[int, dict[int, Learned]] = {}  # by round, by worker
        self._done: list[Update] = []
        self._saved: dict[int, dict[str, NDArray[Any]]] = {}
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
                learner.restore(under(state, f"{index}/"))
            rows[index] = learner.rows()
            self._bytes += learner.memory_bytes()
            self._steps.update(zip(learner.post.numbers.tolist(), learner.steps.tolist(), strict=True))
            self._piecemeal |= learner.piecemeal
            learner.close()
        return rows

    def start(self) -> None:
        """Give the processes their state, if there is one; the schedule of a run that was resumed is not whole."""
        self._started, self._given = True, {}
        self._learned = {worker.index: self.version for worker in self._workers}
        if self._schedule is not None and self._restored is None:
            self._schedule.write_text(json.dumps({"slices": self.slices}) + "\n", encoding="utf-8")
        elif self._schedule is not None:
            self._schedule.unlink(missing_ok=True)
            self._schedule = None
        if self._restored is not None:
            rounds, states = self._restored
            for worker, state in zip(self._workers, states, strict=True):
                self.crew.send(worker, Restore(rounds))
                assert worker.connection is not None
                assert worker.process is not None
                with suppress(OSError):  # if it is gone we hear of that soon enough
                    send_arrays(worker.connection, state, worker.process.pid or 0)
            self._restored = None

    def versions_after(self, rounds: int) -> int:
        """Learners publish several times a round; counted once, since the loop asks with every delivery."""
        while len(self._versions) <= rounds:
            made = batches(self.plan, self._piecemeal, len(self._versions))
            self._versions.append(self._versions[-1] + len(made))
        return self._versions[rounds]

    def _add(self, piece: Piece) -> None:
        delivery = piece.delivery
        assert delivery.token is not None, "learner processes read from slots"
        worlds = (piece.worlds.start, piece.worlds.stop)
        self._pieces[delivery.token, worlds] = (piece, {})
        turns = delivery.fragments[0].turns
        for worker in self._workers:
            self._note_busy(worker)
            self.crew.send(worker, Take(delivery.token, delivery.task, turns, worlds, piece.round))

    def _hear(self, worker: Worker, message: Any) -> None:
        if isinstance(message, Taken):
            piece, taken = self._pieces[message.token, message.worlds]
            taken[worker.index] = message.versions
            if len(taken) == len(self._workers):
                del self._pieces[message.token, message.worlds]
                self._log(piece, [taken[worker.index] for worker in self._workers])
                piece.release()
        elif isinstance(message, Learned):
            worker.peak_bytes = max(worker.peak_bytes, message.peak_bytes)
            self._reports.setdefault(message.round, {})[worker.index] = message
            self._learned[worker.index] = message.round
            while len(self._reports.get(self.version + 1, {})) == len(self._workers):
                self._finish(self._reports.pop(self.version + 1))
        elif isinstance(message, Saving):
            assert worker.connection is not None
            with suppress(OSError, EOFError):
                self._saved[worker.index] = recv_arrays(worker.connection)
        self._note_busy(worker)

    def _note_busy(self, worker: Worker) -> None:
        """We wait for it as long as it has not copied all it was given, or has a whole round to learn."""
        uncopied = any(worker.index not in taken for _, taken in self._pieces.values())
        worker.busy = uncopied or self._learned[worker.index] < self.taken

    def _log(self, piece: Piece, taken_at: list[list[int]]) -> None:
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

    def _finish(self, reports: dict[int, Learned]) -> None:
        """All slices have learned a round: put their reports together."""
        self.version += 1
        metrics: dict[int, dict[str, list[float]]] = {}
        spent = Spent()
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
        self._done.append(Update(self.version, None, arrays, spent))

    def _lose(self, worker: Worker, why: str) -> None:
        raise WorkerError(f"{why}: its slice of the herd is lost; `remuda resume` goes on from the last checkpoint")

    def poll(self, version: int) -> list[Update]:
        """What all slices have learned, having waited for `version`."""
        began = time.perf_counter()
        while self.version < min(version, self.taken):
            if not self.crew.step(LIMIT_S, stoppable=False):
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
        self._saved = {}
        for worker in self._workers:
            self.crew.send(worker, Save())
        while len(self._saved) < len(self._workers):
            if not self.crew.step(LIMIT_S, stoppable=False):
                raise WorkerError(f"a learner did not hand over its state within {LIMIT_S:.0f} s")
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
        states = [
            {
                f"{index}/{name}": np.ascontiguousarray(array[first:last])
                for index, (part, first, last) in enumerate(own)
                for name, array in under(state, f"{part}/").items()
            }
            for own in self.slices
        ]
        self._restored = (version, states)

    def close(self) -> None:
        """The crew ends the processes."""
        self.crew.close()
