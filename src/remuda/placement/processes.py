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

from remuda import checkpoint
from remuda.checkpoint import CHECKPOINTS
from remuda.collect import Manner, Task, shares
from remuda.config import Plan
from remuda.errors import WorkerError
from remuda.faults import Lapse
from remuda.fragment import Purpose, copied, cut
from remuda.game import GameSpec
from remuda.herd import Part, make_learner
from remuda.learners.learner import Learner
from remuda.placement.base import Piece, Rows, Spent, Trainers, Update, late, under
from remuda.placement.shared import recv_arrays, send_arrays
from remuda.placement.slots import Room, Token
from remuda.placement.supervise import Crew, Last, Life, Phase, Ready, Worker
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
    lapses: list[Lapse]


@dataclass(frozen=True)
class Save:
    """Send everything the next update depends on."""


@dataclass(frozen=True)
class Saving:
    """It follows, as arrays."""


@dataclass(frozen=True)
class Restore:
    """Become what follows, as arrays, which was so after `saved` rounds, and go on after `rounds`."""

    saved: int
    rounds: int
    have: int = 0  # episodes of the next round that are not to be waited for
    report: bool = False  # somebody waits to hear that the last of these rounds is learned


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


def _mark(rounds: int) -> str:
    """The line of a schedule that says everything up to here is in the state of so many rounds."""
    return json.dumps({"saved": rounds}) + "\n"


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
                self.life.beat(Phase.SAVING)
                send_arrays(self.connection, self._state(), pid=0, word=Saving())
            elif isinstance(message, Restore):
                self._restore(message, recv_arrays(self.connection))

    def _take(self, message: Take) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        self.life.beat(Phase.TAKING)
        whole = self.job.room.fragments(message.token.slot, message.task, self.manner, message.turns)
        for learner, version in zip(self.learners, self.versions, strict=True):
            post = learner.post
            own = cut(whole[post.group_index], slice(*message.worlds))
            self._lags.update(late([replace(own, versions=own.versions[:, post.first : post.last])], version))
            with learner.forgiven(0), span("take"):
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
            for count in batches(self.job.plan, learner.piecemeal, self.rounds):
                self._update(index, count)
            reports.append({name: values.tolist() for name, values in learner.report().items()})
        return reports

    def _update(self, index: int, count: int) -> None:
        """Make updates and publish what came of them."""
        self.life.beat(Phase.LEARNING, self.rounds)
        learner = self.learners[index]
        with learner.forgiven(count), span("update"):
            learner.update(count)
        self.versions[index] += 1
        self._publish(index)

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
        lapses = [lapse for learner in self.learners for lapse in learner.tell_lapses()]
        lags, spent = dict(self._lags), self._spent
        self.connection.send(Learned(self.rounds, metrics, steps, lags, spent, self._waited_s, peak, lapses))
        self._lags, self._spent, self._waited_s = Counter(), Spent(), 0.0

    def _state(self) -> dict[str, NDArray[Any]]:
        return {f"{i}/{name}": a for i, learner in enumerate(self.learners) for name, a in learner.state().items()}

    def _restore(self, order: Restore, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state and let its clocks go on to where we are needed."""
        self.rounds, self._have = order.rounds, order.have
        plan = self.job.plan
        skipped = plan.updates_due(plan.episodes_after(order.rounds)) - plan.updates_due(
            plan.episodes_after(order.saved)
        )
        for index, learner in enumerate(self.learners):
            if state:
                learner.restore(under(state, f"{index}/"))
            if skipped:
                learner.skip(skipped)
            part, first, last = self.job.slices[index]
            known = publications(plan, learner.piecemeal, order.rounds)
            self.versions[index] = max(known, self.job.board.newest(part, first, last))
            self._publish(index)
        if order.report:
            self._report([{name: values.tolist() for name, values in own.report().items()} for own in self.learners])


class ProcessTrainers(Trainers):
    """Passes every piece on to all learner processes and keeps its slot until the last has copied it."""

    def __init__(self, job: CollectJob, learners: int, crew: Crew, folder: Path) -> None:
        """`job` is what the collectors do, whose slots and board the learners share; `folder` is the run's."""
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
        self._schedule = folder / SCHEDULE if plan.log_schedule else None
        self._checkpoints = folder / CHECKPOINTS
        self._took: dict[int, int] = {}  # by worker: episodes copied
        self._lost: list[Lapse] = []
        self._reports: dict[int, dict[int, Learned]] = {}  # by round, by worker
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
                learner.restore(under(state, f"{index}/"))
            rows[index] = learner.rows()
            self._bytes += learner.memory_bytes()
            self._steps.update(zip(learner.post.numbers.tolist(), learner.steps.tolist(), strict=True))
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
                self._restore_worker(worker, Restore(rounds, rounds), state)

    def _restore_worker(self, worker: Worker, order: Restore, state: dict[str, NDArray[Any]]) -> None:
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

    def _add(self, piece: Piece) -> None:
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

    def _give(self, worker: Worker, piece: Piece) -> None:
        delivery, worlds = piece.delivery, (piece.worlds.start, piece.worlds.stop)
        assert delivery.token is not None
        turns = delivery.fragments[0].turns
        self.crew.send(worker, Take(delivery.token, delivery.task, turns, worlds, piece.round))

    def _hear(self, worker: Worker, message: Any) -> None:
        if isinstance(message, Taken):
            piece, taken = self._pieces[message.token, message.worlds]
            taken[worker.index] = message.versions
            self._took[worker.index] += message.worlds[1] - message.worlds[0]
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
        lapses = [*self._lost, *(lapse for report in reports.values() for lapse in report.lapses)]
        self._lost = []
        self._done.append(Update(self.version, None, arrays, spent, lapses))

    def _lose(self, worker: Worker, last: Last) -> None:
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
            self._lost.append(Lapse(agents, updates, f"{worker.name} {last}"))
        order = Restore(saved, rounds, took - plan.episodes_after(rounds), self._learned[worker.index] < rounds)
        self._restore_worker(worker, order, self._share_of(own, state))
        for piece, taken in self._pieces.values():
            if piece.round <= self.taken and worker.index not in taken:
                self._give(worker, piece)
        if self._saving and worker.index not in self._saved:
            self.crew.send(worker, Save())
        self._note_busy(worker)
        self._give_up_schedule()

    def _rewind(self, schedule: Path) -> bool:
        """Take back what was logged after the state we go on from; False where that cannot be found."""
        mark = _mark(self.version)
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

    def _last_state(self) -> tuple[int, dict[str, NDArray[Any]]]:
        """The newest checkpoint's rounds and state; before there is one, how it all began."""
        newest = checkpoint.newest(self._checkpoints)
        if newest is None:
            return 0, {}
        return int(checkpoint.read_index(newest)["rounds"]), checkpoint.read(newest, "learner")

    def _share_of(self, own: Sequence[Slice], state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What concerns the slices of one process."""
        return {
            f"{index}/{name}": np.ascontiguousarray(array[first:last])
            for index, (part, first, last) in enumerate(own)
            for name, array in under(state, f"{part}/").items()
        }

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
        self._saved, self._saving = {}, True
        for worker in self._workers:
            worker.busy = True
            self.crew.send(worker, Save())
        while len(self._saved) < len(self._workers):
            if not self.crew.step(LIMIT_S, stoppable=False):
                raise WorkerError(f"a learner did not hand over its state within {LIMIT_S:.0f} s")
        self._saving = False
        if self._schedule is not None:
            with self._schedule.open("a", encoding="utf-8") as file:
                file.write(_mark(self.version))
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
        self.crew.close()
