"""Fakes and real placements keep the same promises, and a placement that breaks one is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remuda.core.errors import RemudaError
from remuda.core.fragment import Purpose
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.inline import InlineCollectors
from remuda.engines.collectors.lockstep import LockstepCollectors
from remuda.engines.collectors.pool import PoolCollectors
from remuda.engines.collectors.ray.collectors import RayCollectors
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import CollectorCounters, Delivery, RoundPiece, Rows, TrainerCounters, Update
from remuda.engines.table import find_engine
from remuda.engines.trainers.inline import InlineTrainers
from remuda.engines.trainers.processes.trainers import ProcessTrainers
from remuda.engines.trainers.ray.trainers import RayTrainers
from remuda.engines.trainers.thread import ThreadTrainers
from remuda.learners.herd import assign
from remuda.runs.settings import make_plan, spec_of
from remuda.testing.collector_conformance import COLLECTOR_CHECKS
from remuda.testing.fakes import FakeCollectors, FakeTrainers, PlayedEpisode
from remuda.testing.placements import EPISODES, ROUND, WORLDS, Build, Check, Placement
from remuda.testing.trainer_conformance import TRAINER_CHECKS
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import WorkerPool

FAULT_GAMES = Path(__file__).parents[1] / "promises" / "faults"
SIZES: dict[str, Any] = {"worlds": WORLDS, "episodes_per_update": ROUND, "total_episodes": EPISODES}
TINY: dict[str, Any] = {
    **SIZES, "agents": 2, "turns": 5, "layer": 8, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 4,
    "replay_size": 64, "device": "cpu", "n_workers": 2, "pictures": False,
}  # fmt: skip
RAY_LEARNERS = "ray with learners"
COLLECTORS: dict[str, Any] = {
    "sequential": InlineCollectors,
    "vectorized": InlineCollectors,
    "executor": PoolCollectors,
    "sync": LockstepCollectors,
    "ray": RayCollectors,
    RAY_LEARNERS: RayCollectors,
}
TRAINERS: dict[str, Any] = {
    "sequential": InlineTrainers,
    "vectorized": InlineTrainers,
    "threads": ThreadTrainers,
    "actor-learner": ProcessTrainers,
    RAY_LEARNERS: RayTrainers,
}


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Build]]:
    """Builders of the placements of an engine, as training builds them."""
    monkeypatch.syspath_prepend(FAULT_GAMES)

    def of(engine: str) -> Build:
        def build(*, failing: bool = False) -> Placement:
            settings = {**TINY, "game": "remuda.testing:GIFTS", "engine": engine.partition(" ")[0]}
            if engine == RAY_LEARNERS:
                settings |= {"n_learners": 2}
            if failing:
                fault = {"fault": "fail", "fault_turn": 3, "fault_file": str(tmp_path / "failed")}
                settings |= {"game": "fault_games:FAULTY", **fault}
            plan = make_plan(settings)
            spec, pool = spec_of(plan), WorkerPool(lambda: None, limits=Limits.of(plan))
            context = EngineContext(plan, spec, assign(plan, spec), "cpu", lambda: None, pool, tmp_path)
            return Placement(plan, *find_engine(plan.engine).build(context))

        return build

    with one_thread_each():
        yield of


def fake(collectors: Any = FakeCollectors, trainers: Any = FakeTrainers, **how: Any) -> Build:
    """A builder of fakes."""

    def build(*, failing: bool = False) -> Placement:
        plan = Plan(game="fake", **SIZES)
        own = {"task_episodes": 2, "capacity": 8, "workers": 3, "failing": {("train", 1): 1} if failing else None}
        return Placement(plan, collectors(plan, **{**own, **how}), trainers(plan))

    return build


ON_RAY = (
    "every episode sent is delivered exactly once", "published weights act in tasks sent later",
    "restore() continues from what state() returned", "turns are counted by policy lag",
)  # fmt: skip
"""Where there is little time these stand for all: an actor takes seconds to start."""


def engines_and_checks(checks: tuple[tuple[str, Check], ...], kinds: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(
            engine,
            check,
            marks=[pytest.mark.slow] if engine.startswith("ray") and (promise not in ON_RAY or elsewhere) else [],
            id=f"{engine}: {promise}",
        )
        for engine in kinds
        for promise, check in checks
        for elsewhere in [engine == RAY_LEARNERS and kinds is COLLECTORS]
    ]


@pytest.mark.parametrize(("engine", "check"), engines_and_checks(COLLECTOR_CHECKS, COLLECTORS))
def test_collectors_keep_every_promise(engine: str, check: Check, real: Callable[..., Build]) -> None:
    assert check(real(engine)) is None


@pytest.mark.parametrize(("engine", "check"), engines_and_checks(TRAINER_CHECKS, TRAINERS))
def test_trainers_keep_every_promise(engine: str, check: Check, real: Callable[..., Build]) -> None:
    assert check(real(engine)) is None


@pytest.mark.parametrize("engine", [*COLLECTORS, "threads", "actor-learner"])
def test_every_placement_is_among_them(engine: str, real: Callable[..., Build]) -> None:
    placement = real(engine)()
    assert type(placement.collectors) is COLLECTORS.get(engine, type(placement.collectors))
    assert type(placement.collectors) in COLLECTORS.values()
    assert type(placement.trainers) is TRAINERS.get(engine, InlineTrainers)
    placement.collectors.close()
    placement.trainers.close()


@pytest.mark.parametrize(("promise", "check"), [*COLLECTOR_CHECKS, *TRAINER_CHECKS])
@pytest.mark.parametrize("how", [{}, {"workers": 0, "task_episodes": 1}, {"picks": [5, 3, 2, 1, 7, 0] * 9}])
def test_fakes_keep_the_same_promises(promise: str, check: Check, how: dict[str, Any]) -> None:
    assert check(fake(**how)) is None


class DeliversTwice(FakeCollectors):
    def recv(self, timeout_s: float) -> Delivery:
        delivery = super().recv(timeout_s)
        if delivery.task.episodes == (0, 1):
            self.send(delivery.task)
        return delivery


class DeliversNothing(FakeCollectors):
    def recv(self, timeout_s: float) -> Delivery:
        return super().recv(timeout_s) if self.tasks else Delivery(Task((0,)), ())


class ForgetsWhere(FakeCollectors):
    def _delivery(self, task: Task, version: int) -> Delivery:
        delivery = super()._delivery(task, version)
        delivery.fragments[0].origin.worlds[:] = 0
        return delivery


class NeverTheSame(FakeCollectors):
    def _delivery(self, task: Task, version: int) -> Delivery:
        delivery = super()._delivery(task, version)
        delivery.fragments[0].rewards[:] += len(self.calls)
        return delivery


class KeepsTheFirstWeights(FakeCollectors):
    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        super().publish(rows, self._versions.get(purpose, version), purpose)


class TrainsInEvaluations(FakeCollectors):
    def _delivery(self, task: Task, version: int) -> Delivery:
        delivery = super()._delivery(replace(task, purpose=Purpose.TRAIN), version)
        return replace(delivery, task=task)


class UsesMemoryTwice(FakeCollectors):
    def _delivery(self, task: Task, version: int) -> Delivery:
        for fragment in getattr(self, "last", ()):
            fragment.obs[:] = task.episodes[0]
        delivery = super()._delivery(task, version)
        self.last = delivery.fragments
        return delivery


class HasNoCapacity(FakeCollectors):
    def capacity(self) -> int:
        return 1


class HidesFailures(FakeCollectors):
    def _failure(self, task: Task) -> Delivery | None:
        failed = super()._failure(task)
        return failed and replace(failed, failure=None)


class CollectorsCountAnew(FakeCollectors):
    def restore_counters(self, counters: CollectorCounters) -> None:
        return


class ClosesOnce(FakeCollectors):
    def close(self) -> None:
        self._check_open()
        super().close()


class OtherRounds(FakeTrainers):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.model_copy(update={"episodes_per_update": ROUND + 1}))


class TellsTwice(FakeTrainers):
    def poll(self, version: int) -> list[Update]:
        self._done = super().poll(version)
        return list(self._done)


class OldRows(FakeTrainers):
    def rows(self) -> Rows:
        self.first = getattr(self, "first", super().rows())
        return self.first


class ReleasesAtOnce(FakeTrainers):
    def _add(self, piece: RoundPiece) -> None:
        super()._add(replace(piece, release=lambda: None))
        piece.release()

    def _read(self, piece: RoundPiece) -> list[PlayedEpisode]:
        return []


class CountsNoLag(FakeTrainers):
    def poll(self, version: int) -> list[Update]:
        updates = super().poll(version)
        self.lags.clear()
        return updates


class OneVersion(FakeTrainers):
    def versions_after(self, rounds: int) -> int:
        return 0


class CountsNoSteps(FakeTrainers):
    def steps(self) -> dict[int, int]:
        return {0: 0, 1: 0}


class ForgetsState(FakeTrainers):
    def restore(self, version: int, state: Any) -> None:
        super().restore(version, {**state, "0/digest": state["0/digest"] * 0})


class TrainersCountAnew(FakeTrainers):
    def restore_counters(self, counters: TrainerCounters) -> None:
        return


class TrainersCloseOnce(FakeTrainers):
    def close(self) -> None:
        self._check_open()
        super().close()


BROKEN_COLLECTORS = (
    DeliversTwice, DeliversNothing, ForgetsWhere, NeverTheSame, KeepsTheFirstWeights, TrainsInEvaluations,
    UsesMemoryTwice, HasNoCapacity, HidesFailures, CollectorsCountAnew, ClosesOnce,
)  # fmt: skip
BROKEN_TRAINERS = (
    OtherRounds, TellsTwice, OldRows, ReleasesAtOnce, CountsNoLag, OneVersion, CountsNoSteps, ForgetsState,
    TrainersCountAnew, TrainersCloseOnce,
)  # fmt: skip
"""In the order of the checks: each breaks the promise of one."""


def problem(check: Check, build: Build) -> str | None:
    try:
        return check(build)
    except RemudaError as error:
        return str(error)


@pytest.mark.parametrize(("kind", "check"), list(zip(BROKEN_COLLECTORS, COLLECTOR_CHECKS, strict=True)))
def test_collectors_that_break_a_promise_are_found_out(kind: Any, check: tuple[str, Check]) -> None:
    assert problem(check[1], fake(collectors=kind)) is not None


@pytest.mark.parametrize(("kind", "check"), list(zip(BROKEN_TRAINERS, TRAINER_CHECKS, strict=True)))
def test_trainers_that_break_a_promise_are_found_out(kind: Any, check: tuple[str, Check]) -> None:
    assert problem(check[1], fake(trainers=kind)) is not None
