"""The schedule of a study: one run of each variant first, then the longest as measured; the last get more threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.studies import schedule as module
from remuda.studies.design import Design, StudyOptions
from remuda.studies.schedule import RunSchedule
from remuda.studies.study import RUNS
from remuda.studies.trials.pool import TrialPool
from remuda.studies.trials.process_places import ProcessPlaces
from remuda.studies.trials.trial import Trial, TrialOutcome, TrialProgress


def design(settings: dict[str, Any] | None = None, **keys: Any) -> Design:
    options = {"settings": {"game": "treasurehunt", "total_episodes": 100, **(settings or {})}, **keys}
    return Design.of(StudyOptions.read(options, "the study"))


@dataclass
class Finished:
    """A run directory that needs only a result."""

    path: Path
    costs: dict[str, float] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, float]:
        return {"cpu_s": 100 * self.costs[self.path.parent.name], "episodes": 100}


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 2)


def of(made: Design, folder: Path) -> RunSchedule:
    return RunSchedule(made.runs, {own.name: folder / RUNS / own.name for own in made.runs}, made)


def test_longest_first_by_what_finished_runs_took(
    two_cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = design(variants={"quick": {}, "slow": {}, "long": {"total_episodes": 200}}, seeds=3)
    schedule = of(made, tmp_path)
    first = [schedule.next_trial(busy) for busy in (0, 1, 1)]
    assert [trial.name for trial in first if trial] == ["long/seed-0", "quick/seed-0", "slow/seed-0"]  # one of each
    costs = {"quick": 0.1, "slow": 3.0, "long": 1.0}
    monkeypatch.setattr(module, "Run", lambda path: Finished(path, costs))
    monkeypatch.setattr(module, "_saved_episodes", lambda folder: 90 if folder.name == "seed-2" else 0)
    for trial in first:
        assert trial is not None
        schedule.ended(TrialOutcome(trial, "finished"))
    rest = [schedule.next_trial(1) for _ in range(6)]
    assert [trial.name for trial in rest if trial] == [
        "slow/seed-1", "long/seed-1", "long/seed-2", "slow/seed-2", "quick/seed-1", "quick/seed-2",
    ]  # fmt: skip
    assert schedule.next_trial(0) is None


@pytest.mark.parametrize(
    ("settings", "seconds", "threads"),
    [
        ({}, 100.0, 2),
        ({}, 5.0, None),  # it would take longer to save and to go on
        ({"n_workers": 1}, 100.0, None),  # the study says how many
        ({"engine": "sequential"}, 100.0, None),
        ({"engine": "actor-learner"}, 100.0, None),  # another result after every stop
        ({"engine": "executor", "deterministic": True}, 100.0, 2),
    ],
)
def test_the_last_run_gets_all_cores(
    two_cores: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    seconds: float,
    threads: int | None,
) -> None:
    now = [0.0]
    monkeypatch.setattr("remuda.studies.schedule.time.monotonic", lambda: now[0])
    schedule = of(design(settings, seeds=2), tmp_path)
    last, other = schedule.next_trial(0), schedule.next_trial(1)
    assert last is not None
    assert other is not None
    assert (last.n_workers, other.n_workers) == (1, 1)
    assert schedule.widen(last, 1) is None  # nothing is known about it
    schedule.tell(TrialProgress(last.name, 10))
    now[0] = seconds / 9
    schedule.tell(TrialProgress(last.name, 20))  # of 100: eight times as long to go
    assert schedule.widen(last, 2) is None  # both cores are busy
    wider = schedule.widen(last, 1)
    assert (None if wider is None else wider.n_workers) == threads
    if wider is not None:
        assert schedule.widen(wider, 1) is None  # it has all of them


@pytest.mark.promise
def test_a_run_that_gets_more_threads_ends_with_the_same_weights(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Every trial is asked to go on with other threads up to three times: first while it starts, then as it trains."""
    settings = {"game": "treasurehunt", **tiny, "total_episodes": 240, "checkpoint_every": 60, "keep_checkpoints": 2}
    alone = remuda.train(out=tmp_path / "alone", quiet=True, **settings)
    waiting = [Trial(str(n), tmp_path / str(n), settings, 240, n_workers=1) for n in range(2)]
    told: dict[str, int] = {}
    asked: dict[str, list[int]] = {"0": [], "1": []}  # at which episode

    def widen(trial: Trial, busy: int) -> Trial | None:
        episode = told.get(trial.name, 0)
        if episode <= max(asked[trial.name], default=-1) or len(asked[trial.name]) == 3:
            return None
        asked[trial.name].append(episode)
        return replace(trial, n_workers=1 + len(asked[trial.name]))

    places = ProcessPlaces(3, [])  # one of them is free
    with TrialPool(places, lambda progress: told.update({progress.name: progress.episodes})) as pool:
        outcomes = [*pool.run(lambda busy: waiting.pop(0) if waiting else None, widen)]
    assert [own.status for own in outcomes] == ["finished"] * 2, [own.why for own in outcomes]
    assert min(len(own) for own in asked.values()) > 1, asked
    assert max(own.trial.n_workers or 0 for own in outcomes) > 1
    for n in range(2):
        assert remuda.Run(tmp_path / str(n)).result["weights_sha256"] == alone.result["weights_sha256"]
