"""Learning in Ray actors: each has a balanced slice of the herd, on any node of the cluster.

What travels: collectors put one object per learner into the store of their node; this process passes references. Each
learner puts its rows once per version, and collectors fetch them from its node. This process holds counters,
references, and the weights when it saves or reports them.

A learner that dies is placed again with its state of the last checkpoint. The rounds since then are learned again from
fragments that still exist. If some are gone: by round, all learners go back to the checkpoint and the rounds are played
again (`LostRounds`), so that the result keeps every bit; free, the updates are counted as skipped.

Slices are balanced by what learning costs: first by parameters and updates, then, at a checkpoint, by measured time.
Rows go from their learner to the next one; the result does not depend on who learns them.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import session
from remuda.core.errors import WorkerError, first_line
from remuda.core.failures import SkippedUpdates
from remuda.core.rounds import RoundCounter
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.collectors import RayCollectors
from remuda.engines.collectors.ray.remote import Cut, RemoteRows
from remuda.engines.context import EngineContext, SavedLearners
from remuda.engines.interfaces import (
    LostRounds,
    RemoteWorker,
    RoundPiece,
    Rows,
    TimeSpent,
    Trainers,
    Update,
)
from remuda.engines.table import find_engine
from remuda.engines.trainers.ray.actor import LearnerJob, RoundReport
from remuda.engines.trainers.ray.balance import SliceBalancer
from remuda.engines.trainers.ray.inspection import HerdFacts, first_state, inspect_herd
from remuda.engines.trainers.ray.kept_rounds import KeptRounds
from remuda.engines.trainers.ray.learner_pool import LearnerHandle, LearnerPool
from remuda.engines.trainers.ray.published_rows import PublishedRows
from remuda.engines.trainers.ray.remote_state import RemoteState, Snapshot, take_snapshots
from remuda.engines.trainers.slices import AgentSlice, state_slices

ROUND_LIMIT_S = 3600.0
"""Longest wait without any report; a learner that hangs is found sooner."""
LOOK_S = 0.05
"""Seconds between looks at all learners while collectors play."""
WAIT_S = 0.25
"""Seconds between looks at all learners while a round is waited for, which ends at once when all have learned it."""
CLOSE_LIMIT_S = 60.0
"""Longest wait for the newest weights when a run ends: after an error their learner may be lost for good."""


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
        self._pool = LearnerPool(plan, self, self._say, collectors.give_up_one)
        self._learning = [index for index, part in enumerate(self.parts) if part.learns]
        self._rows: Rows
        facts = self._inspect(None)
        self._first: SavedLearners | None = SavedLearners()  # what the learners start with, until it is on disk
        self._pieces: dict[int, list[RoundPiece]] = {}  # by round, not learned by all yet
        self._kept = KeptRounds()
        self._reports: dict[int, dict[int, RoundReport]] = {}  # by round, by learner
        self._done: list[Update] = []  # not returned yet
        self._published = PublishedRows(self._pool, plan.lag, self._by_round, self._look)
        self._counted = 0  # the newest version whose turns are counted; those of a rewind were counted before
        self._snapshot: RemoteState | None = None  # the last state that was asked for
        self._lost_updates: list[SkippedUpdates] = []  # of finished rounds, not said yet
        self._lost = ""  # why rounds are lost
        self._told = False  # whether LostRounds was raised for it
        self._balancer = SliceBalancer(self.parts, facts.costs)
        self._started = False
        self._looked_at = 0.0

    def _inspect(self, state: Mapping[str, NDArray[Any]] | None) -> HerdFacts:
        """Note weights, steps and memory of the herd with this state, or as it is before the first round."""
        facts = inspect_herd(self.plan, self._spec, self.parts, state)
        self._rows, self._steps, self._bytes = facts.rows, facts.steps, facts.memory_bytes
        return facts

    def start(self) -> None:
        """Place the learner actors, and send them their state if there is one."""
        self._started, first = True, self._first or SavedLearners()
        cluster = self._collectors.cluster
        self._use_slices(self._balancer.split(cluster.learner_count()))
        self._collectors.beside = self._look_if_due
        threads = max(1, int(self.plan.learner_cpus))
        jobs = [
            LearnerJob(
                f"learner-{index}", sys.path, self.plan, self.parts, self._spec, self._device, self._session_objects,
                slices, threads,
            )
            for index, slices in enumerate(self.slices)
        ]  # fmt: skip
        self._counted = self.version
        self._pool.start(cluster, jobs)
        for handle in self._pool.handles:
            self._restore(handle, first.rounds, first.state)
        self._first = first if self.version == 0 else None  # a run that goes on has a checkpoint
        self._say(f"ray: {self._pool.places()}")
        if len(self._steps) == 1:
            self._say(
                "one agent learns, so one learner does: more learners or machines make it no faster; "
                "they train more seeds at once (a run per seed)"
            )

    def _use_slices(self, slices: list[list[AgentSlice]]) -> None:
        self.slices = slices
        self._collectors.cuts = [self._cuts(own) for own in slices]

    def _cuts(self, slices: Sequence[AgentSlice]) -> list[Cut]:
        """The same agents, counted in their groups."""
        return [
            (self.parts[part].group, self.parts[part].first + first, self.parts[part].first + last)
            for part, first, last in slices
        ]

    def _say(self, text: str) -> None:
        self._worker_pool.say(text)

    @property
    def remote_workers(self) -> Sequence[RemoteWorker]:  # type: ignore[override]
        """The learners."""
        return self._pool.handles

    def _restore(self, handle: LearnerHandle, rounds: int, state: Mapping[str, NDArray[Any]]) -> None:
        # In a list, so that Ray passes the reference; the actor fetches it once.
        references = [self._ray.put(state_slices(handle.job.slices, state))] if state else []
        self._pool.call(handle, "restore", rounds, handle.job.slices, references)

    def _add(self, piece: RoundPiece) -> None:
        self._pieces.setdefault(piece.round, []).append(piece)

    def _complete(self, number: int) -> None:
        """Pass a round on when it is complete, in the order of its episodes; so learners never hold half of one."""
        pieces = sorted(self._pieces[number], key=lambda piece: piece.delivery.task.episodes[piece.worlds][0])
        self._kept.keep(number, pieces)
        for handle in self._pool.handles:
            self._send_round(handle, number)

    def _send_round(self, handle: LearnerHandle, number: int) -> None:
        pieces = self._kept.references(number, handle.index, self._cuts(handle.job.slices))
        self._pool.call(handle, "learn", number, pieces, not self._by_round)

    def on_report(self, handle: LearnerHandle, report: RoundReport) -> None:
        """A learner was restored, or has learned a round; when all have, the round is finished."""
        if report.lost and self._by_round:
            first, last = min(report.lost), max(report.lost)
            self._lost = f"episodes {first} to {last} were lost before {handle.name} had them ({report.reason})"
            return
        self._published.put_again(report.round, handle.index, self.slices, report.rows)
        if report.round > self.version and report.metrics:
            self._reports.setdefault(report.round, {})[handle.index] = report
        else:  # a replaced learner repeats a finished round: updates that it could not repeat are lost
            self._lost_updates += [own for own in report.skipped_updates if not own.traceback]
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
            self._balancer.note(handle.job.slices, report.seconds)
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
        self._rows = rows = RemoteRows(self._learning, self.slices, references, self._published.fetch)
        self._published.add(self.version, rows)
        skipped = [skipped for report in reports.values() for skipped in self._skipped_of(report)]
        skipped, self._lost_updates = [*self._lost_updates, *skipped], []
        self._done.append(Update(self.version, rows, arrays, spent, skipped))
        for piece in self._pieces.pop(self.version):
            piece.release()
        self._kept.drop_what_does_not_fit(self.version)

    def _skipped_of(self, report: RoundReport) -> Iterator[SkippedUpdates]:
        yield from report.skipped_updates
        if report.lost:
            agents = sorted(self._steps)
            yield SkippedUpdates(
                (agents[0], agents[-1] + 1), 0, f"{len(report.lost)} episodes were lost ({report.reason})"
            )

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
        older = self._published.get(self.version - 1)
        moved = older is not None and older.slices is not self.slices
        if self._by_round and self.plan.lag and self.version > 0 and (moved or saved == self.version):
            self._lost = f"{handle.name} {reason}; the weights before round {self.version} are lost with it"
            return
        self._published.miss(handle.index)  # until the replacement has put its own again
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

    def _look_if_due(self) -> None:
        """Called while the loop waits for collectors, as often as one of them answers."""
        if time.monotonic() - self._looked_at > LOOK_S:
            self._look()

    def _look(self) -> None:
        """Handle what learners returned, without waiting."""
        self._looked_at = time.monotonic()
        self._pool.poll(0.0)
        self._lost = self._published.repair(self.version) or self._lost
        if self._lost and not self._told:
            self._told = True
            raise LostRounds(self._lost)

    def rewind(self) -> tuple[int, Update]:
        """All learners go back to the last checkpoint."""
        version, state, acting_rows = self._checkpoint()
        self._say(f"{self._lost}: all learners go back to round {version}, and play and learn from there")
        self._collectors.forget_tasks()
        for pieces in self._pieces.values():
            for piece in pieces:
                piece.release()
        for kept in (self._pieces, self._kept, self._reports, self._published):
            kept.clear()
        self._done.clear()
        self._lost, self._told = "", False
        self.version, self._received = version, RoundCounter(self.plan, version)
        self._inspect(state or None)
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
            # All at once: learners of equal slices end within milliseconds, and each look at all of them takes some.
            reported = self._reports.get(self.version + 1, {})
            self._pool.wait_for([handle for handle in self._pool.handles if handle.index not in reported], WAIT_S)
            self._look()
        self.waited_s += time.perf_counter() - began
        done, self._done = self._done, []
        return done

    def rows(self) -> Rows:
        """The newest weights."""
        return self._rows

    def steps(self) -> dict[int, int]:
        """Gradient steps made, as last reported."""
        return self._steps

    def memory_bytes(self) -> int:
        """Bytes that all learners hold."""
        return self._bytes

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Have all learners keep a copy of their state; before the start it is what they will start with."""
        if not self._started:
            started_with = self._first.state if self._first else {}
            return started_with or first_state(self.plan, self._spec, self.parts)
        self._look()
        if self._snapshot is not None and self._snapshot.written:  # not if a learner was lost meanwhile
            self._first = None
            self._kept.drop_up_to(self._snapshot.version)
        actors, facts = zip(*take_snapshots(self._pool.handles, self._snapshot_of), strict=True)
        self._snapshot = RemoteState(self.version, actors, facts, self.plan.update_limit_s)
        self._balance()
        return self._snapshot

    def _balance(self) -> None:
        """Slice the herd anew if that makes the slowest learner much faster; rows go from learner to learner."""
        idle = not any(handle.calls for handle in self._pool.handles)
        if not idle or self.version == self.plan.rounds or (slices := self._balancer.better(self.slices)) is None:
            return
        try:
            puts = [handle.actor.put_state.remote() for handle in self._pool.handles]
            references = self._ray.get(puts, timeout=self.plan.update_limit_s)
        except self._ray.exceptions.RayError:
            return  # a learner is lost, which is found out elsewhere
        self._use_slices(slices)
        if rows := self._published.get(self.version):
            rows.slices = slices
            rows.missing.update(range(len(slices)))  # until each learner has put those of its new agents
        for handle, own in zip(self._pool.handles, slices, strict=True):
            handle.job = replace(handle.job, slices=own)
            self._pool.call(handle, "restore", self.version, own, references)
        self._say(f"ray: slices balanced by measured time, {self._balancer.why}; {self._pool.places()}")

    def _snapshot_of(self, handle: LearnerHandle) -> Snapshot:
        """Have a learner keep a copy of its state; one that is lost meanwhile is asked again when it is back."""
        while True:
            try:
                return handle.actor, self._ray.get(handle.actor.snapshot.remote(), timeout=self.plan.update_limit_s)
            except self._ray.exceptions.RayError as error:
                self._pool.replace(handle, f"was lost ({first_line(error)})")
                self._look()  # raises if its rounds are lost: the replacement has learned nothing
                while handle.calls:
                    self._pool.poll(0.05)
                    self._look()

    def restore(self, version: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `version`; the actors get their state when they have started."""
        self.version, self._received = version, RoundCounter(self.plan, version)
        self._inspect(state)
        self._first = SavedLearners(version, state)

    def close(self) -> None:
        """Keep the newest weights, and end the actors."""
        self._published.limit_s = CLOSE_LIMIT_S
        if isinstance(self._rows, RemoteRows):
            try:
                self._rows = dict(self._rows.items())
            except (WorkerError, LostRounds):  # the run ends with an error already, or the checkpoint has them
                self._rows = {}
        self._pool.close()
        self._published.clear()
        self._kept.clear()
