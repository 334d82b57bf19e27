"""The Ray actor that learns: the learners of some slices of the herd."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from remuda.core import session
from remuda.core.errors import first_line
from remuda.core.failures import SkippedUpdates
from remuda.core.fragment import Fragment, slice_worlds
from remuda.core.game import GameSpec
from remuda.core.learner import Learner
from remuda.core.plan import Plan
from remuda.core.timeline import span
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.remote import Share, node_errors
from remuda.engines.interfaces import TimeSpent, count_lags
from remuda.engines.trainers.slices import AgentSlice, pick_rows
from remuda.learners.herd import Part, make_learner

FETCH_FRAGMENTS_LIMIT_S = 300.0
"""Longest wait for the fragments of a round. Ray itself takes about a minute to give a node up."""
FETCH_STEP_S = 2.0
"""Longest wait before a learner says that it still waits."""


@dataclass(frozen=True)
class LearnerJob:
    """Everything a learner actor needs."""

    name: str
    path: Sequence[str]
    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    session_objects: Mapping[str, bytes]
    slices: Sequence[AgentSlice]
    threads: int


@dataclass(frozen=True)
class PieceReference:
    """One learner's share of a piece of a round."""

    episodes: tuple[int, ...]  # of the piece
    worlds: tuple[int, int]  # of the object
    share: Share  # a fragment per slice


@dataclass(frozen=True)
class RoundReport:
    """What a learner actor returns after a round, or after it was restored."""

    round: int
    rows: Any  # a reference to a list of RowSlice
    steps: list[int]  # per agent, slice after slice
    peak_bytes: int
    metrics: list[dict[str, list[float]]] = field(default_factory=list)  # per slice
    lags: Mapping[int, int] = field(default_factory=dict)
    spent: TimeSpent = field(default_factory=TimeSpent)
    seconds: list[float] = field(default_factory=list)  # that learning took, per slice
    waited_s: float = 0.0
    skipped_updates: Sequence[SkippedUpdates] = ()
    lost: Sequence[int] = ()  # episodes whose fragments are gone
    reason: str = ""  # why they are gone


@dataclass(frozen=True)
class SnapshotFacts:
    """What the first process knows of a snapshot."""

    names: list[str]
    not_finite: tuple[int, str] | None  # an agent with an array that is not finite, and the array's name


class LearnerActor:
    """Runs in a process of Ray, perhaps on another node: takes references to fragments, puts rows."""

    def __init__(self, job: LearnerJob) -> None:
        sys.path.extend(place for place in job.path if place not in sys.path)  # to import a user's game or learner
        session.unpack(job.session_objects)
        self.job = job
        self.learners = self._make_learners()
        self._steps_done = 0  # phases begun, for `progress`
        self._idle_since = time.perf_counter()
        self._snapshot: dict[str, NDArray[Any]] = {}

    def _make_learners(self) -> list[Learner]:
        job = self.job
        return [
            make_learner(job.parts[part], job.plan, job.spec, job.device, (first, last), job.threads)
            for part, first, last in job.slices
        ]

    def node_id(self) -> str:
        """The node this actor runs on."""
        return str(require_ray().get_runtime_context().get_node_id())

    def progress(self) -> int:
        """Phases of work begun; it runs in a concurrency group of its own, so it answers while `learn` is running."""
        return self._steps_done

    def restore(self, rounds: int, slices: Sequence[AgentSlice], state: Sequence[Any]) -> RoundReport:
        """Continue after so many rounds with these agents.

        `state` has references to lists of `StateSlice`, in the order of the herd; empty: begin anew.
        """
        self._steps_done += 1
        if not state or slices != self.job.slices:
            self.job = replace(self.job, slices=slices)
            self.learners = self._make_learners()
        objects = self._get(list(state))
        pieces = [piece for own in objects for piece in own]
        for own, learner in zip(slices, self.learners, strict=True):
            if arrays := pick_rows(own, pieces):
                learner.restore(arrays)
        return self._report(rounds)

    def put_state(self) -> Any:
        """A reference to the state as a list of `StateSlice`, in this node's store."""
        own = zip(self.job.slices, self.learners, strict=True)
        with node_errors():
            return require_ray().put([(part, first, learner.state()) for (part, first, _), learner in own])

    def learn(self, number: int, pieces: Sequence[PieceReference], skip_lost: bool) -> RoundReport:
        """Learn round `number` from its pieces, in this order.

        If fragments are gone nothing is learned, and the report says so; with `skip_lost` the others are learned from.
        """
        torch.set_num_threads(self.job.threads)  # for this thread: Ray may have built the actor in another one
        began, cpu = time.perf_counter(), time.process_time()
        waited_s = began - self._idle_since
        fragments, lost, reason = self._fetch(pieces)
        if lost and not skip_lost:
            return self._report(number, lost=lost, reason=reason)
        lags: Counter[int] = Counter()
        seconds = []
        for index, learner in enumerate(self.learners):
            before = time.perf_counter()
            own = [fragment[index] for fragment in fragments]
            lags += count_lags(own, number - 1)
            self._learn(learner, own, self.job.plan.updates_in(number, learner.context.herd_first))
            seconds.append(time.perf_counter() - before)
        metrics = [{name: values.tolist() for name, values in learner.report().items()} for learner in self.learners]
        skipped = [own for learner in self.learners for own in learner.pop_skipped_updates()]
        spent = TimeSpent(time.perf_counter() - began, time.process_time() - cpu)
        self._idle_since = time.perf_counter()
        return self._report(
            number, metrics=metrics, lags=dict(lags), spent=spent, seconds=seconds, waited_s=waited_s,
            skipped_updates=skipped, lost=lost, reason=reason,
        )  # fmt: skip

    def skip(self, number: int, reason: str) -> RoundReport:
        """Move the clocks over a round whose fragments are gone."""
        skipped = []
        for learner in self.learners:
            first = learner.context.herd_first
            updates = self.job.plan.updates_in(number, first)
            learner.skip(updates)
            skipped.append(SkippedUpdates((first, first + learner.context.agents), updates, reason))
        metrics = [{name: values.tolist() for name, values in learner.report().items()} for learner in self.learners]
        return self._report(number, metrics=metrics, skipped_updates=skipped)

    def _learn(self, learner: Learner, fragments: Sequence[Fragment], updates: int) -> None:
        self._steps_done += 1
        with learner.skip_on_error(0), span("take"):
            for fragment in fragments:
                learner.take(fragment)
        self._steps_done += 1
        with learner.skip_on_error(updates), span("update"):
            learner.update(updates)

    def _fetch(self, pieces: Sequence[PieceReference]) -> tuple[list[list[Fragment]], list[int], str]:
        """The fragments of each piece, one per slice; and the episodes of pieces that are gone, and why."""
        ray = require_ray()
        found: list[list[Fragment]] = []
        lost: list[int] = []
        reason = ""
        wanted = [reference for piece in pieces for reference in piece.share.references]
        try:
            values = iter(self._get(wanted))
        except ray.exceptions.RayError:
            values = None  # one is gone: which one is found out below
        for piece in pieces:
            references = piece.share.references
            try:
                own = self._get(references) if values is None else list(islice(values, len(references)))
                worlds = slice(*piece.worlds)
                found.append([slice_worlds(fragment, worlds) for fragment in piece.share.fragments(own)])
            except ray.exceptions.RayError as error:
                lost += piece.episodes
                reason = first_line(error).partition(". ")[0]  # Ray goes on for a paragraph
        return found, lost, reason

    def _get(self, references: Sequence[Any]) -> Any:
        """Fetch objects; waiting for a node that Ray has not given up yet is progress, not silence."""
        ray, deadline = require_ray(), time.monotonic() + FETCH_FRAGMENTS_LIMIT_S
        while True:
            try:
                with node_errors():
                    return ray.get(list(references), timeout=FETCH_STEP_S)
            except ray.exceptions.GetTimeoutError:
                if time.monotonic() > deadline:
                    raise
            self._steps_done += 1

    def _report(self, number: int, **facts: Any) -> RoundReport:
        rows = [
            (part, first, learner.rows())
            for (part, first, _), learner in zip(self.job.slices, self.learners, strict=True)
        ]
        steps = [int(count) for learner in self.learners for count in learner.steps]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with node_errors():
            return RoundReport(number, require_ray().put(rows), steps, peak, **facts)

    def put_rows(self, number: int) -> RoundReport:
        """Put the rows again: the object that had them is gone."""
        return self._report(number)

    def snapshot(self) -> SnapshotFacts:
        """Keep a copy of the state until the next call."""
        self._steps_done += 1
        arrays: dict[str, list[NDArray[Any]]] = {}
        not_finite = None
        for (part, _, _), learner in zip(self.job.slices, self.learners, strict=True):
            for name, array in learner.state().items():
                arrays.setdefault(f"{part}/{name}", []).append(array)
                if not_finite is None and array.dtype.kind == "f" and not np.isfinite(array).all():
                    rows = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                    not_finite = (learner.context.herd_first + int(np.flatnonzero(rows)[0]), name)
        self._snapshot = {name: np.concatenate(own) for name, own in arrays.items()}
        return SnapshotFacts(list(self._snapshot), not_finite)

    def write_snapshot(self, folder: str, name: str, token: str) -> str | OSError | None:
        """Write the snapshot into a folder; returns its SHA-256, or None if this node does not see that folder.

        The first process has put a file called `token` there: a folder of the same path may be another one here.
        """
        assert self._snapshot, "a learner that was placed again has no snapshot"
        place = Path(folder)
        try:
            if not (place / token).is_file():
                return None
            save_file(self._snapshot, place / name)
            with (place / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
        except OSError as error:
            return error
        return digest

    def read_snapshot(self, name: str | None = None) -> dict[str, NDArray[Any]]:
        """The snapshot or one array of it, for a first process that does not share a folder with us."""
        return self._snapshot if name is None else {name: self._snapshot[name]}

    def drop_snapshot(self) -> None:
        """Free the memory of the snapshot."""
        self._snapshot = {}
