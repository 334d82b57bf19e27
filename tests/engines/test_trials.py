"""`engine: auto` measures candidates in short trials, keeps their rates, and no weights depend on it."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_runs import ONE_WORLD_AT_A_TIME, console_lines, fingerprint

import remuda
from remuda.core.machine import CpuClock, cores
from remuda.core.plan import Plan
from remuda.engines import choose, trials
from remuda.engines.rates import Rates, read_rates
from remuda.engines.trials import Candidate, Subject, measure_once, measure_placements
from remuda.engines.turn_cost import TurnCost
from remuda.learners.herd import assign
from remuda.learners.iqn.learner import IQN
from remuda.runs.settings import make_plan, spec_of
from remuda.testing.broken_games import BROKEN
from remuda.testing.slow_games import Busy

VECTORIZED, EXECUTOR = Candidate("vectorized", 1), Candidate("executor", 2)
AUTO = {**ONE_WORLD_AT_A_TIME, "engine": "auto"}


def subject_of(**settings: Any) -> Subject:
    plan = make_plan({**AUTO, **settings})
    spec = spec_of(plan)
    return Subject(plan, spec, assign(plan, spec), "cpu")


def chosen(**settings: Any) -> tuple[Plan, str]:
    plan = make_plan({**AUTO, **settings})
    return choose.choose_engine(plan, spec_of(plan))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, always_measured: Path) -> list[Sequence[Candidate]]:
    """Trials find that processes are twice as fast; the candidates of every measurement are returned."""
    asked: list[Sequence[Candidate]] = []

    def measure(subject: Subject, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        asked.append(candidates)
        return {own: 20.0 if own.engine == "executor" else 10.0 for own in candidates}

    monkeypatch.setattr(choose, "measure_placements", measure)
    monkeypatch.setattr(CpuClock, "disturbance_since", lambda self, before: "")
    return asked


def faked(rates: Mapping[Candidate, Sequence[float]], monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """Trials give these rates, one after another; the placements tried are returned."""
    left, tried = {own: list(values) for own, values in rates.items()}, []

    def measure(subject: Subject, placement: Candidate) -> float | None:
        tried.append(placement)
        return left[placement].pop(0) if left[placement] else None

    monkeypatch.setattr(trials, "measure_once", measure)
    return tried


def test_the_candidates_are_one_worker_and_all_cores(measured: list[Sequence[Candidate]]) -> None:
    plan, why = chosen(worlds=64)
    (candidates,) = measured
    counts = sorted({1, cores()})
    assert list(candidates) == [
        *(Candidate("vectorized", count) for count in counts),
        *(Candidate("executor", count) for count in counts),
        Candidate("sync", counts[-1]),
    ]
    assert (plan.engine, plan.deterministic) == ("executor", True)
    assert "executor 1 1.00" in why


def test_a_compiled_game_has_fewer_candidates(measured: list[Sequence[Candidate]], tiny: dict[str, Any]) -> None:
    plan = make_plan({"game": "treasurehunt", **tiny, "worlds": 64, "engine": "auto"})
    choose.choose_engine(plan, spec_of(plan))
    inline = [Candidate("vectorized", count) for count in sorted({1, cores()})]
    assert list(measured[0]) == [*inline, Candidate("executor", cores())]


def test_a_number_of_workers_that_was_given_stays(measured: list[Sequence[Candidate]]) -> None:
    assert chosen(n_workers=3)[0].n_workers == 3
    assert len(measured) == 1
    plan, why = chosen(n_workers=1)
    assert (plan.engine, plan.n_workers) == ("vectorized", 1)
    assert "there is one worker" in why
    assert len(measured) == 1, "with one worker there is nothing to choose"


@pytest.mark.usefixtures("measured")
def test_the_weights_do_not_depend_on_what_the_trials_found(tmp_path: Path) -> None:
    run = remuda.train(out=tmp_path / "run", quiet=True, n_workers=2, **AUTO)
    plain = remuda.train(out=tmp_path / "plain", quiet=True, engine="sequential", **ONE_WORLD_AT_A_TIME)
    assert run.result["engine"] == "executor"
    (line,) = console_lines(run, "engine: auto (in short trials, as shares of the fastest: executor 2 1.00, vectorized")
    assert "→ engine executor (2 collecting processes)" in line
    assert fingerprint(run) == fingerprint(plain)


@pytest.mark.usefixtures("always_measured")
def test_the_weights_do_not_depend_on_real_trials(trained: Any, train: Any) -> None:
    run = train(engine="auto", n_workers=2)
    assert len(console_lines(run, "engine: auto (in short trials")) == 1
    assert fingerprint(run) == fingerprint(trained(engine="vectorized"))
    assert multiprocessing.active_children() == []


def test_rates_are_kept_for_plans_of_the_same_shape(measured: list[Sequence[Candidate]]) -> None:
    first = chosen()
    assert chosen() == first
    assert chosen(seed=7, total_episodes=400)[0].engine == "executor"
    assert len(measured) == 1
    for other in ({"worlds": 3}, {"layer": 16}, {"parallel_actions": False}, {"lag": 1}, {"work": 1}, {"n_workers": 2}):
        chosen(**other)
    assert len(measured) == 7


def test_a_file_of_rates_that_cannot_be_read_is_written_again(
    measured: list[Sequence[Candidate]], always_measured: Path
) -> None:
    chosen()
    (path,) = always_measured.iterdir()
    unknown = '{"round_s": 1, "placements": [{"engine": "telepathy", "workers": 1, "rate": 1}]}'
    for text in ("", "{}", "[1]", '{"round_s": 1, "placements": []}', unknown):
        path.write_text(text)
        assert chosen()[0].engine == "executor"
    assert len(measured) == 6


def test_rates_of_a_busy_machine_are_not_kept(
    measured: list[Sequence[Candidate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuClock, "disturbance_since", lambda self, before: "this machine was busy")
    assert "this machine was busy, so the next run measures again" in chosen()[1]
    chosen()
    assert len(measured) == 2


@pytest.mark.usefixtures("measured")
def test_kept_rates_are_no_reason_for_processes_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen()[0].engine == "executor"
    monkeypatch.setattr(choose, "processes_unavailable", lambda request: "none are left")
    assert chosen()[0].engine == "vectorized"


def test_without_processes_threads_are_measured_and_nothing_is_kept(
    measured: list[Sequence[Candidate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "processes_unavailable", lambda request: "none are left")
    plan, why = chosen()
    assert plan.engine == "vectorized"
    assert "worker processes cannot be started here: none are left" in why
    assert {own.engine for own in measured[0]} == {"vectorized"}
    assert read_rates(subject_of()) is None


@pytest.mark.parametrize(
    ("wall_s", "waits", "episodes", "engine"),
    [(0.01, True, 1, "vectorized"), (0.01, True, 400, "executor"), (0.0001, False, 40_000, "vectorized"),
     (0.01, False, 400, "executor")],
)  # fmt: skip
def test_runs_that_are_too_short_for_trials_go_by_what_a_turn_costs(
    wall_s: float, waits: bool, episodes: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = TurnCost(wall_s, 0.0 if waits else wall_s, pauses=1.0)
    monkeypatch.setattr(choose, "measure_turn", lambda entry, options: cost)
    monkeypatch.setattr(choose, "short_enough", lambda *words: pytest.fail("a trial was made"))
    assert chosen(total_episodes=episodes)[0].engine == engine


def test_processes_have_to_be_faster_than_threads() -> None:
    assert choose._worthwhile(Rates.of(1.0, {VECTORIZED: 100.0, EXECUTOR: 104.0})) == VECTORIZED
    assert choose._worthwhile(Rates.of(1.0, {VECTORIZED: 100.0, EXECUTOR: 106.0})) == EXECUTOR


def test_only_candidates_that_may_be_the_fastest_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, broken = Candidate("sync", 2), Candidate("executor", 1)
    tried = faked({VECTORIZED: [100, 80], EXECUTOR: [90, 100], slow: [50], broken: []}, monkeypatch)
    rates = measure_placements(subject_of(), [VECTORIZED, EXECUTOR, slow, broken])
    assert rates == {VECTORIZED: 90.0, EXECUTOR: 95.0, slow: 50.0}
    assert tried == [VECTORIZED, EXECUTOR, slow, broken, EXECUTOR, VECTORIZED]


def test_a_trial_learns_before_its_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds that are counted are those with gradient steps, though the plan wants many transitions first."""
    updated = []
    update = IQN.update

    def noted(self: IQN, count: int) -> None:
        update(self, count)
        updated.append(self.steps.sum())

    monkeypatch.setattr(IQN, "update", noted)
    subject = subject_of(learning_starts=60, batch_size=48, total_episodes=400)
    assert "learning_starts" in subject.plan.learner_options["iqn"]
    rate = measure_once(subject, VECTORIZED, rounds=2, seconds=0.0)
    assert rate is not None
    assert rate > 0
    learned = [steps for steps in updated if steps]
    assert len(updated) > len(learned), "the first rounds fill the replay buffer"
    assert len(learned) >= trials.WARM_ROUNDS + 2


@pytest.mark.parametrize("placement", [VECTORIZED, EXECUTOR])
def test_a_game_that_raises_has_no_rate(placement: Candidate) -> None:
    settings = {name: value for name, value in AUTO.items() if name != "work"}
    plan = make_plan({**settings, "game": BROKEN["raises"]})
    spec = spec_of(plan)
    assert measure_once(Subject(plan, spec, assign(plan, spec), "cpu"), placement) is None
    assert multiprocessing.active_children() == []


def test_a_game_that_hangs_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(trials, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(trials, "LONGEST_S", 0.2)
    monkeypatch.setattr(Busy, "begin", lambda self: hanging.wait(60))
    try:
        assert measure_once(subject_of(), VECTORIZED) is None
    finally:
        hanging.set()


def test_cut_episodes_have_the_same_work_per_turn() -> None:
    subject = subject_of(updates_per_episode=2.0)
    cut = subject.with_turns(3)
    assert cut.spec.turns == 3
    assert cut.plan.update_rate(0) == 1.0
    assert subject.with_turns(6) is subject
