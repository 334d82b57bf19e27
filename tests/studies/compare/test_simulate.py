"""Simulated schedules against arithmetic that can be done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remuda.core.machine import cores
from remuda.engines.table import ENGINES
from remuda.runs.settings import make_plan, spec_of
from remuda.studies.compare import simulate
from remuda.studies.compare.measure import EngineVariant, Measurement, VariantMeasurements
from remuda.studies.compare.simulate import Machine, Sleep, TurnTimes, Work, ideal, predict, probe

COMPILED = make_plan({"game": "treasurehunt", "agents": 4, "worlds": 16})
SIMULATOR = make_plan({"game": "remuda.testing:SLOW", "turns": 10, "worlds": 100, "episodes_per_update": 20})
AWAKE = TurnTimes(100.0, np.zeros(1))


def figures(
    engine: str, workers: int, collect: float, learn: float, other: float = 0.0, wall: float = 0.0
) -> VariantMeasurements:
    """As if they had been measured; per episode."""
    trial = Measurement(
        1.0, 1.0, 1.0, 1, collect, learn, other, wall or collect, learn / min(workers, cores()), 0.0, 0, 9
    )
    return VariantMeasurements(EngineVariant(engine, workers), [trial])


def rate(plan: Any, turns: TurnTimes, own: VariantMeasurements, workers: int, on: int) -> float:
    return predict(plan, spec_of(plan), turns, own, workers, on)


def test_who_computes_shares_the_cores_and_who_sleeps_does_not() -> None:
    machine, ended = Machine(2), {}

    def somebody(name: str, *steps: Any) -> Any:
        yield from steps
        ended[name] = machine.now

    for name in "abcd":
        machine.add(somebody(name, Work(1.0)))
    machine.add(somebody("sleeper", Sleep(1.5)))
    machine.add(somebody("waiter", lambda: "sleeper" in ended, Work(1.0)))
    machine.run(lambda: len(ended) == 6)
    assert [ended[name] for name in "abcd"] == pytest.approx([2.125] * 4)  # half the speed, then two fifths
    assert ended["sleeper"] == pytest.approx(1.5)
    assert ended["waiter"] == pytest.approx(2.875)  # a quarter of it while five share two cores, the rest alone


def test_sequential_has_no_use_for_cores() -> None:
    own = figures("sequential", 1, 0.02, 0.03, 0.01)
    for on in (1, 2, 64):
        assert rate(COMPILED, AWAKE, own, 1, on) == pytest.approx(1 / 0.06, rel=0.01)


def test_learning_is_shared_by_as_many_as_there_are_agents() -> None:
    own = figures("vectorized", 2, 0.01, 0.04)
    assert rate(COMPILED, AWAKE, own, 1, 1) == pytest.approx(1 / 0.05, rel=0.01)
    assert rate(COMPILED, AWAKE, own, 4, 4) == pytest.approx(1 / 0.02, rel=0.01)
    assert rate(COMPILED, AWAKE, own, 64, 64) == pytest.approx(1 / 0.02, rel=0.01)


def test_executors_play_while_others_learn() -> None:
    own = figures("executor", 2, 0.04, 0.01)
    assert rate(COMPILED, AWAKE, own, 2, 3) == pytest.approx(2 / 0.04, rel=0.1)  # the workers are what counts
    assert rate(COMPILED, AWAKE, own, 64, 64) == pytest.approx(4 / 0.01, rel=0.1)  # now the learners of four agents are
    assert rate(COMPILED, AWAKE, own, 2, 2) == pytest.approx(2 / 0.05, rel=0.1)  # and here the cores


def test_actors_and_learners_share_the_cores() -> None:
    own = figures("actor-learner", 1, 0.01, 0.04)
    assert rate(COMPILED, AWAKE, own, 1, 8) == pytest.approx(
        1 / 0.01, rel=0.1
    )  # four learners are as fast as one actor
    assert rate(COMPILED, AWAKE, own, 4, 8) == pytest.approx(1 / 0.01, rel=0.1)  # four learners are all there can be
    assert rate(COMPILED, AWAKE, own, 1, 2) == pytest.approx(2 / 0.05, rel=0.15)


def test_who_waits_for_the_slowest_waits_longer_where_turns_are_uneven() -> None:
    even = TurnTimes(10.0, np.full(100, 0.1))
    uneven = TurnTimes(10.0, np.array([0.05] * 90 + [0.55] * 10))  # the same mean
    for engine, loses in (("sync", True), ("executor", False)):
        own = figures(engine, 100, 0.0001, 0.0001)
        ratio = rate(SIMULATOR, uneven, own, 100, 2) / rate(SIMULATOR, even, own, 100, 2)
        assert (ratio < 0.4) if loses else (ratio > 0.85), (engine, ratio)
    own = figures("executor", 100, 0.0001, 0.0001)
    assert rate(SIMULATOR, even, own, 100, 2) == pytest.approx(100.0, rel=0.1)


def test_every_engine_can_be_predicted() -> None:
    for engine in ENGINES:
        for plan, turns in ((COMPILED, AWAKE), (SIMULATOR, TurnTimes(10.0, np.array([0.01, 0.1])))):
            assert rate(plan, turns, figures(engine, 2, 0.01, 0.01), 2, 2) > 0


def test_the_ideal_machine_neither_waits_nor_moves_anything() -> None:
    own = [figures("sequential", 1, 0.05, 0.03, 9.0), figures("vectorized", 2, 0.01, 0.04, 9.0)]
    assert ideal(COMPILED, AWAKE, own, 2) == pytest.approx(2 / 0.04)
    assert ideal(SIMULATOR, TurnTimes(10.0, np.full(5, 0.1)), own, 1000) == pytest.approx(100.0)


def test_a_probe_sees_whether_worlds_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "PROBE_S", 0.2)
    slept = probe(make_plan({"game": "remuda.testing:SLOW", "turns": 10, "mean_ms": 20, "long_ms": 100}))
    assert slept.per_episode == 10
    assert slept.asleep_s.min() > 0.01
    assert slept.asleep_s.mean() == pytest.approx(0.02, rel=0.9)
    assert not probe(make_plan({"game": "treasurehunt"})).sleepy
