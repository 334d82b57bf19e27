"""Simulated schedules, compared with rates computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remuda.core.machine import cores
from remuda.engines.table import ENGINES
from remuda.runs.settings import make_plan, spec_of
from remuda.studies.compare import turn_times
from remuda.studies.compare.measure import EngineVariant, Measurement, VariantMeasurements
from remuda.studies.compare.simulate import ideal_rate, predict
from remuda.studies.compare.simulated_machine import SimulatedMachine, Sleep, Work
from remuda.studies.compare.turn_times import TurnTimes, measure_turns

COMPILED = make_plan({"game": "treasurehunt", "agents": 4, "worlds": 16})
SIMULATOR = make_plan({"game": "remuda.testing:SLOW", "turns": 10, "worlds": 100, "episodes_per_update": 20})
NO_SLEEP = TurnTimes(100.0, np.zeros(1))


def measurements(
    engine: str, workers: int, collect: float, learn: float, other: float = 0.0, wall: float = 0.0
) -> VariantMeasurements:
    """Made-up measurements; times are per episode."""
    trial = Measurement(
        1.0, 1.0, 1.0, 1, collect, learn, other, wall or collect, learn / min(workers, cores()), 0.0, 0, 9
    )
    return VariantMeasurements(EngineVariant(engine, workers), [trial])


def rate(plan: Any, turns: TurnTimes, measured: VariantMeasurements, workers: int, on: int) -> float:
    return predict(plan, spec_of(plan), turns, measured, workers, on)


def test_processes_that_compute_share_the_cores_and_sleeping_ones_use_none() -> None:
    machine, ended = SimulatedMachine(2), {}

    def process(name: str, *steps: Any) -> Any:
        yield from steps
        ended[name] = machine.now

    for name in "abcd":
        machine.add(process(name, Work(1.0)))
    machine.add(process("sleeper", Sleep(1.5)))
    machine.add(process("waiter", lambda: "sleeper" in ended, Work(1.0)))
    machine.run(lambda: len(ended) == 6)
    assert [ended[name] for name in "abcd"] == pytest.approx([2.125] * 4)  # at half speed, then at two fifths
    assert ended["sleeper"] == pytest.approx(1.5)
    assert ended["waiter"] == pytest.approx(2.875)  # a quarter of its work while five share two cores, the rest alone


def test_sequential_does_not_depend_on_cores() -> None:
    measured = measurements("sequential", 1, 0.02, 0.03, 0.01)
    for on in (1, 2, 64):
        assert rate(COMPILED, NO_SLEEP, measured, 1, on) == pytest.approx(1 / 0.06, rel=0.01)


def test_learning_uses_at_most_one_thread_per_agent() -> None:
    measured = measurements("vectorized", 2, 0.01, 0.04)
    assert rate(COMPILED, NO_SLEEP, measured, 1, 1) == pytest.approx(1 / 0.05, rel=0.01)
    assert rate(COMPILED, NO_SLEEP, measured, 4, 4) == pytest.approx(1 / 0.02, rel=0.01)
    assert rate(COMPILED, NO_SLEEP, measured, 64, 64) == pytest.approx(1 / 0.02, rel=0.01)


def test_executor_workers_play_during_learning() -> None:
    measured = measurements("executor", 2, 0.04, 0.01)
    assert rate(COMPILED, NO_SLEEP, measured, 2, 3) == pytest.approx(2 / 0.04, rel=0.1)  # limited by the workers
    assert rate(COMPILED, NO_SLEEP, measured, 64, 64) == pytest.approx(
        4 / 0.01, rel=0.1
    )  # limited by learning: four agents
    assert rate(COMPILED, NO_SLEEP, measured, 2, 2) == pytest.approx(2 / 0.05, rel=0.1)  # limited by the cores


def test_actor_learner_processes_share_the_cores() -> None:
    measured = measurements("actor-learner", 1, 0.01, 0.04)
    assert rate(COMPILED, NO_SLEEP, measured, 1, 8) == pytest.approx(
        1 / 0.01, rel=0.1
    )  # four learners are as fast as one actor
    assert rate(COMPILED, NO_SLEEP, measured, 4, 8) == pytest.approx(
        1 / 0.01, rel=0.1
    )  # four learners are all there can be
    assert rate(COMPILED, NO_SLEEP, measured, 1, 2) == pytest.approx(2 / 0.05, rel=0.15)


def test_learner_actors_scale_to_one_per_agent() -> None:
    trial = measurements("ray", 2, 0.01, 0.08).trials
    measured = VariantMeasurements(EngineVariant("ray", 2, learner_actors=True), trial)
    assert rate(COMPILED, NO_SLEEP, measured, 2, 3) == pytest.approx(2 / 0.08, rel=0.1)  # two thirds of the cores
    for on in (8, 64):
        assert rate(COMPILED, NO_SLEEP, measured, 2, on) == pytest.approx(4 / 0.08, rel=0.1)  # four agents
    here = measurements("ray", 2, 0.01, 0.08)
    two = COMPILED.model_copy(update={"n_learners": 2})
    assert rate(two, NO_SLEEP, measured, 2, 64) == pytest.approx(2 / 0.08, rel=0.1)
    assert rate(COMPILED, NO_SLEEP, here, 2, 64) == pytest.approx(4 / 0.08, rel=0.1)  # threads of the first process


def test_uneven_turns_slow_down_engines_that_wait_for_the_slowest() -> None:
    even = TurnTimes(10.0, np.full(100, 0.1))
    uneven = TurnTimes(10.0, np.array([0.05] * 90 + [0.55] * 10))  # the same mean
    for engine, loses in (("sync", True), ("executor", False)):
        measured = measurements(engine, 100, 0.0001, 0.0001)
        ratio = rate(SIMULATOR, uneven, measured, 100, 2) / rate(SIMULATOR, even, measured, 100, 2)
        assert (ratio < 0.4) if loses else (ratio > 0.85), (engine, ratio)
    measured = measurements("executor", 100, 0.0001, 0.0001)
    assert rate(SIMULATOR, even, measured, 100, 2) == pytest.approx(100.0, rel=0.1)


def test_every_engine_can_be_predicted() -> None:
    for engine in ENGINES:
        for plan, turns in ((COMPILED, NO_SLEEP), (SIMULATOR, TurnTimes(10.0, np.array([0.01, 0.1])))):
            assert rate(plan, turns, measurements(engine, 2, 0.01, 0.01), 2, 2) > 0


def test_the_ideal_rate_has_no_waiting_and_no_moving_of_data() -> None:
    measured = [measurements("sequential", 1, 0.05, 0.03, 9.0), measurements("vectorized", 2, 0.01, 0.04, 9.0)]
    assert ideal_rate(COMPILED, NO_SLEEP, measured, 2) == pytest.approx(2 / 0.04)
    assert ideal_rate(SIMULATOR, TurnTimes(10.0, np.full(5, 0.1)), measured, 1000) == pytest.approx(100.0)


def test_measure_turns_sees_whether_worlds_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_times, "MEASURE_S", 0.2)
    slept = measure_turns(make_plan({"game": "remuda.testing:SLOW", "turns": 10, "mean_ms": 20, "long_ms": 100}))
    assert slept.per_episode == 10
    assert slept.asleep_s.min() > 0.01
    assert slept.asleep_s.mean() == pytest.approx(0.02, rel=0.9)
    assert not measure_turns(make_plan({"game": "treasurehunt"})).any_sleep
