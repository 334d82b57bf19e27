"""Learning in Ray actors: each has a balanced slice of the herd, on any node of the cluster.

What travels: collectors put one object per learner into the store of their node; this process passes references. Each
learner puts its rows once per version, and collectors fetch them from its node. This process holds counters,
references, and the weights when it saves or reports them.

A learner that dies is placed again with its state of the last checkpoint. The rounds since then are learned again from
fragments that still exist. If some are gone: by round, all learners go back to the checkpoint and the rounds are played
again (`LostRounds`), so that the result keeps every bit; free, the updates are counted as skipped.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import session
from remuda.core.errors import CheckpointError, WorkerError, first_line
from remuda.core.failures import SkippedUpdates
from remuda.core.ranges import split_evenly
from remuda.core.rounds import RoundCounter
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.collectors import RayCollectors
from remuda.engines.collectors.ray.remote import FETCH_LIMIT_S, RemoteFragments, RemoteRows
from remuda.engines.context import EngineContext, SavedLearners
from remuda.engines.interfaces import (
    LostRounds,
    RemoteWorker,
    RoundPiece,
    Rows,
    TimeSpent,
    Trainers,
    Update,
    with_prefix,
)
from remuda.engines.table import find_engine
from remuda.engines.trainers.ray.actor import LearnerJob, PieceReference, RoundReport, SnapshotFacts
from remuda.engines.trainers.ray.learner_pool import LearnerHandle, LearnerPool
from remuda.engines.trainers.ray.remote_state import RemoteState
from remuda.engines.trainers.slices import split, state_of
from remuda.learners.herd import make_learner
from remuda.transport.heartbeat import Limits

ROUND_LIMIT_S = 3600.0
"""Longest wait without any report; a learner that hangs is found sooner."""
KEEP_BYTES = 256 << 20
"""Fragments of learned rounds that are kept, for learners that are lost: in the stores of the nodes, not here."""
INSPECTED_AGENTS = 4
"""Agents whose learner is made here at a time, to see their first weights: only so much memory is needed."""


class RayTrainers(Trainers):
    """Passes the references of every complete round to all learner actors."""

    def __init__(self, context: EngineContext, collectors: RayCollectors) -> None:
        super().__init__(context.plan)
        plan = context.plan
        self.parts, self._spec = context.parts, context.spec
        self._device = "cuda" if plan.learner_gpus else context.device
        self._collectors, self._last_state = collectors, context.last_state
        self._worker_pool = context.worker_pool  # says things; it gets its voice after the engine is built
        self._session_objects = session.pack(plan.names())
        self.elsewhere = plan.address is not None
        self._by_round = plan.deterministic or not find_engine(plan.engine).free
        self._ray: Any = require_ray()
        self._pool = LearnerPool(Limits.of(plan), self, self._say, collectors.make_room)
        self._learning = [index for index, part in enumerate(self.parts) if part.learns]
        self._rows: Rows = self._inspect_learners(None)
        self._first: SavedLearners | None = SavedLearners()  # what the learners start with, until it is on disk
        self._pieces: dict[int, list[RoundPiece]] = {}  # by round, not learned by all yet
        self._kept: dict[int, list[list[PieceReference]]] = {}  # by round, by learner
        self._kept_bytes: dict[int, int] = {}  # by round
        self._reports: dict[int, dict[int, RoundReport]] = {}  # by round, by learner
        self._done: list[Update] = []  # not returned yet
        self._published: dict[int, RemoteRows] = {}  # by version, the newest few
        self._counted = 0  # the newest version whose turns are counted; those of a rewind were counted before
        self._saved = 0  # the version of the last state that was asked for
        self._lost = ""  # why rounds are lost
        self._told = False  # whether LostRounds was raised for it
        self._started = False

    def _inspect_learners(self, state: Mapping[str, NDArray[Any]] | None) -> Rows:
        """Make the learners of a few agents at a time, note steps and memory, and discard them; returns their rows."""
        rows: dict[int, NDArray[np.float32]] = {}
        self._steps: dict[int, int] = {}
        self._bytes = 0
        self.costs: dict[int, float] = {}  # per agent of each part: first its parameters, then measured seconds
        for index in self._learning:
            part = self.parts[index]
            of_part = None if state is None else with_prefix(state, f"{index}/")
            if of_part is not None and any(len(array) != part.agents for array in of_part.values()):
                raise CheckpointError("it is of another number of agents")
            own = []
            for first, last in split_evenly(part.agents, -(-part.agents // INSPECTED_AGENTS)):
                learner = make_learner(part, self.plan, self._spec, "cpu", (first, last))
                if of_part is not None:
                    learner.restore({name: array[first:last] for name, array in of_part.items()})
                own.append(learner.rows())
                self._bytes += learner.memory_bytes()
                self._steps.update(zip(learner.context.agent_numbers.tolist(), learner.steps.tolist(), strict=True))
                learner.close()
            rows[index] = np.concatenate(own)
            self.costs[index] = float(rows[index].shape[1])
        return rows

    def start(self) -> None:
        """Place the learner actors, and send them their state if there is one."""
        self._started, first = True, self._first or SavedLearners()
        cluster = self._collectors.cluster
        agents = sum(self.parts[index].agents for index in self._learning)
        self.slices = split(self.parts, cluster.learner_count(), self.costs)
        self._collectors.cuts = [
            [
                (self.parts[part].group, self.parts[part].first + first, self.parts[part].first + last)
                for part, first, last in slices
            ]
            for slices in self.slices
        ]
        self._collectors.beside = self._look
        threads = max(1, int(self.plan.learner_cpus))
        jobs = [
            LearnerJob(
                f"learner-{index}", sys.path, self.plan, self.parts, self._spec, self._device, self._session_objects,
                slices, threads,
            )
            for index, slices in enumerate(self.slices)
        ]  # fmt: skip
        self._counted = self._saved = self.version
        self._pool.start(cluster, jobs)
        for handle in self._pool.handles:
            self._restore(handle, first.rounds, first.state)
        self._first = first if self.version == 0 else None  # a run that goes on has a checkpoint
        self._say(f"ray: {self._places()}")
        if agents == 1:
            self._say(
                "one agent learns, so one learner does: more learners or machines make it no faster; "
                "they train more seeds at once (a run per seed)"
            )

    def _say(self, text: str) -> None:
        self._worker_pool.say(text)

    def _places(self) -> str:
        """Where the learners are, in words."""
        names = self._collectors.cluster.node_names()
        places = []
        for handle in self._pool.handles:
            numbers = [
                self.parts[part].herd_first + agent
                for part, first, last in handle.job.slices
                for agent in (first, last - 1)
            ]
            places.append(f"agents {min(numbers)} to {max(numbers)} on {names.get(handle.node, handle.node)}")
        count = len(places)
        shown = "; ".join(places[:8]) + (f"; and {count - 8} more" if count > 8 else "")
        return f"{count} learner{'s' if count > 1 else ''}: {shown}"

    @property
    def remote_workers(self) -> Sequence[RemoteWorker]:  # type: ignore[override]
        """The learners."""
        return self._pool.handles

    def _restore(self, handle: LearnerHandle, rounds: int, state: Mapping[str, NDArray[Any]]) -> None:
        arrays = state_of(handle.job.slices, state)
        # In a list, so that Ray passes the reference; the actor fetches it once.
        self._pool.call(handle, "restore", rounds, [self._ray.put(arrays)] if arrays else [])

    def _add(self, piece: RoundPiece) -> None:
        self._pieces.setdefault(piece.round, []).append(piece)

    def _complete(self, number: int) -> None:
        """Pass a round on when it is complete, in the order of its episodes; so learners never hold half of one."""
        pieces = sorted(self._pieces[number], key=lambda piece: piece.delivery.task.episodes[piece.worlds][0])
        remote = []
        for piece in pieces:
            assert isinstance(piece.delivery.fragments, RemoteFragments), "learner actors read from object stores"
            remote.append((piece, piece.delivery.fragments))
        self._kept[number] = [
            [
                PieceReference(
                    piece.delivery.task.episodes[piece.worlds],
                    (piece.worlds.start, piece.worlds.stop),
                    fragments.references[handle.index],
                )
                for piece, fragments in remote
            ]
            for handle in self._pool.handles
        ]
        self._kept_bytes[number] = sum(fragments.nbytes for _, fragments in remote)
        for handle in self._pool.handles:
            self._send_round(handle, number)

    def _send_round(self, handle: LearnerHandle, number: int) -> None:
        self._pool.call(handle, "learn", number, self._kept[number][handle.index], not self._by_round)

    def on_report(self, handle: LearnerHandle, report: RoundReport) -> None:
        """A learner was restored, or has learned a round; when all have, the round is finished."""
        if report.lost and self._by_round:
            first, last = min(report.lost), max(report.lost)
            self._lost = f"episodes {first} to {last} were lost before {handle.name} had them ({report.reason})"
            return
        if rows := self._published.get(report.round):
            rows.references[handle.index] = report.rows
            rows.missing.discard(handle.index)
        if report.round > self.version and report.metrics:
            self._reports.setdefault(report.round, {})[handle.index] = report
        while len(self._reports.get(self.version + 1, {})) == len(self._pool.handles):
            self._finish_round(self._reports.pop(self.version + 1))

    def _finish_round(self, reports: dict[int, RoundReport]) -> None:
        """All learners have learned a round: combine their reports, and release its episodes."""
        self.version += 1
        metrics: dict[int, dict[str, list[float]]] = {}
        spent, lags = TimeSpent(), Counter[int]()
        for handle in self._pool.handles:
            report = reports[handle.index]
            steps = iter(report.steps)
            for (part, first, last), values in zip(handle.job.slices, report.metrics, strict=True):
                for name, column in values.items():
                    metrics.setdefault(part, {}).setdefault(name, []).extend(column)
                for agent in range(first, last):
                    self._steps[self.parts[part].herd_first + agent] = next(steps)
            lags.update(report.lags)
            spent.add(report.spent)
            self.learners_waited_s += report.waited_s
        if self.version > self._counted:
            self.lags.update(lags)
            self._counted = self.version
        arrays = {part: {name: np.array(column) for name, column in named.items()} for part, named in metrics.items()}
        references = [reports[handle.index].rows for handle in self._pool.handles]
        rows = RemoteRows(self._learning, references, self._fetch_rows)
        self._published[self.version] = self._rows = rows
        self._published.pop(self.version - 2 - self.plan.lag, None)
        skipped = [skipped for report in reports.values() for skipped in self._skipped_of(report)]
        self._done.append(Update(self.version, rows, arrays, spent, skipped))
        for piece in self._pieces.pop(self.version):
            piece.release()
        self._drop_kept()

    def _skipped_of(self, report: RoundReport) -> Iterator[SkippedUpdates]:
        yield from report.skipped_updates
        if report.lost:
            agents = sorted(self._steps)
            yield SkippedUpdates(
                (agents[0], agents[-1] + 1), 0, f"{len(report.lost)} episodes were lost ({report.reason})"
            )

    def _drop_kept(self) -> None:
        """Keep the newest learned rounds that fit; a learner that is lost learns them again."""
        learned = [number for number in self._kept if number <= self.version]
        while learned and sum(self._kept_bytes[number] for number in learned) > KEEP_BYTES:
            number = learned.pop(0)
            del self._kept[number], self._kept_bytes[number]

    def on_lost(self, handle: LearnerHandle, reason: str) -> None:
        """Restore a learner that was placed again from the last checkpoint, and have it learn the rounds since then."""
        if not self._started or self._lost:
            return
        for reports in self._reports.values():
            reports.pop(handle.index, None)
        saved, state, _ = self._checkpoint()
        rounds = range(saved + 1, self.taken + 1)
        missing = [number for number in rounds if number not in self._kept]
        if missing and self._by_round:
            self._lost = f"{handle.name} {reason}; the episodes of round {missing[0]} are not kept any more"
            return
        if self._by_round and self.plan.lag and saved == self.version > 0:
            self._lost = f"{handle.name} {reason}; the weights before round {saved} are lost with it"
            return
        for rows in self._published.values():
            rows.missing.add(handle.index)  # until the replacement has put its own again
        what = f"rounds {saved + 1} to {self.taken} are learned again" if rounds else "nothing is lost"
        self._say(f"{handle.name} {reason}: placed again from round {saved}; {what}")
        self._restore(handle, saved, state)
        for number in rounds:
            if number in self._kept:
                self._send_round(handle, number)
            else:
                self._pool.call(handle, "skip", number, f"{handle.name} {reason}")

    def _checkpoint(self) -> SavedLearners:
        """The newest checkpoint, or what the learners started with."""
        saved = self._last_state()
        if saved.state:
            return saved
        if self._first is None:
            raise WorkerError("a learner was lost, and there is no intact checkpoint to go on from")
        return self._first

    def _look(self) -> None:
        """Handle what learners returned, without waiting; called while the loop waits for collectors."""
        self._pool.poll(0.0)
        self._repair()
        if self._lost and not self._told:
            self._told = True
            raise LostRounds(self._lost)

    def _repair(self) -> None:
        """Have rows put again that collectors could not fetch, though no learner is known to be lost."""
        for version, rows in self._published.items():
            if len(rows.missing) < len(rows.references) or any(handle.calls for handle in self._pool.handles):
                continue
            if version == self.version:
                for handle in self._pool.handles:
                    self._pool.call(handle, "put_rows", version)
            elif self._by_round:
                self._lost = f"the weights of round {version} could not be fetched"

    def rewind(self) -> tuple[int, Update]:
        """All learners go back to the last checkpoint."""
        version, state, acting_rows = self._checkpoint()
        self._say(f"{self._lost}: all learners go back to round {version}, and play and learn from there")
        self._collectors.forget_tasks()
        for pieces in self._pieces.values():
            for piece in pieces:
                piece.release()
        for kept in (self._pieces, self._kept, self._kept_bytes, self._reports, self._published):
            kept.clear()
        self._done.clear()
        self._lost, self._told = "", False
        self.version, self._received = version, RoundCounter(self.plan, version)
        self._rows = self._inspect_learners(state or None)
        for handle in self._pool.handles:
            handle.calls.clear()
            self._restore(handle, version, state)
        if acting_rows is None:
            return version, Update(version, self._rows)
        return version, Update(max(0, version - self.plan.lag), acting_rows)

    def poll(self, version: int) -> list[Update]:
        """Returns the updates not returned yet, having waited until all slices have learned up to `version`."""
        began = time.perf_counter()
        self._look()
        while self.version < min(version, self.taken):
            if time.perf_counter() - began > ROUND_LIMIT_S:
                raise WorkerError(f"round {self.version + 1} was not learned within {ROUND_LIMIT_S:.0f} s")
            self._pool.poll(0.05)
            self._look()
        self.waited_s += time.perf_counter() - began
        done, self._done = self._done, []
        return done

    def rows(self) -> Rows:
        """The newest weights."""
        return self._rows

    def _fetch_rows(self, rows: RemoteRows) -> Any:
        """The objects of some rows; if one is gone, after its learner was placed again and has put it."""
        deadline = time.monotonic() + ROUND_LIMIT_S
        while True:
            try:
                return self._ray.get(rows.references, timeout=FETCH_LIMIT_S)
            except self._ray.exceptions.RayError as error:
                if time.monotonic() > deadline or self._pool.closed:
                    raise WorkerError(f"the weights of a learner could not be fetched: {first_line(error)}") from None
                self._pool.poll(0.05)
                self._look()

    def steps(self) -> dict[int, int]:
        """Gradient steps made, as last reported."""
        return self._steps

    def memory_bytes(self) -> int:
        """Bytes that all learners hold."""
        return self._bytes

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Have all learners keep a copy of their state; before the start it is what they will start with."""
        if not self._started:
            return self._first_state()
        self._look()
        if self._saved > 0:
            self._first = None
        for number in [number for number in self._kept if number <= self._saved]:
            del self._kept[number], self._kept_bytes[number]  # the state after them is on disk by now
        self._saved = self.version
        facts = [self._snapshot_of(handle) for handle in self._pool.handles]
        return RemoteState([handle.actor for handle in self._pool.handles], facts, self.plan.update_limit_s)

    def _snapshot_of(self, handle: LearnerHandle) -> SnapshotFacts:
        """Have a learner keep a copy of its state; one that is lost meanwhile is asked again when it is back."""
        while True:
            try:
                facts: SnapshotFacts = self._ray.get(handle.actor.snapshot.remote(), timeout=self.plan.update_limit_s)
                return facts
            except self._ray.exceptions.RayError as error:
                self._pool.replace(handle, f"was lost ({first_line(error)})")
                self._look()  # raises if its rounds are lost: the replacement has learned nothing
                while handle.calls:
                    self._pool.poll(0.05)
                    self._look()

    def _first_state(self) -> Mapping[str, NDArray[Any]]:
        if self._first and self._first.state:
            return self._first.state
        return {
            f"{index}/{name}": array
            for index in self._learning
            for name, array in make_learner(
                self.parts[index], self.plan, self._spec, "cpu", (0, self.parts[index].agents)
            ).state().items()
        }  # fmt: skip

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`; the actors get their state when they have started."""
        self.version, self._received = version, RoundCounter(self.plan, version)
        self._rows = self._inspect_learners(state)
        self._first = SavedLearners(version, state)

    def close(self) -> None:
        """Keep the newest weights, and end the actors."""
        if isinstance(self._rows, RemoteRows):
            try:
                self._rows = dict(self._rows.items())
            except (WorkerError, LostRounds):  # the run ends with an error already, or the checkpoint has them
                self._rows = {}
        self._pool.close()
        self._published.clear()
        self._kept.clear()
