"""Sweeps: what is searched, what is pruned, and that the result depends on the seed alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.core.errors import ConfigError
from remuda.studies.sweeps.options import SweepOptions, SweepTrial
from remuda.studies.sweeps.proposer import PruningRule, SweepSpace, known_before, propose
from remuda.studies.sweeps.space import distributions, is_range
from remuda.studies.sweeps.sweep import Sweep, SweepSchedule, SweepState, sweep
from remuda.studies.trials.trial import TrialOutcome

RANGES = {"lr": "log(1e-4, 1e-2)", "layer": "int(8, 16)", "lag": "choice(0, 1)"}
SPACE = SweepSpace(RANGES, 9)


def test_ranges_are_read() -> None:
    found = distributions(RANGES)
    assert (found["lr"].low, found["lr"].high, found["lr"].log) == (1e-4, 1e-2, True)
    assert (found["layer"].low, found["layer"].high, found["layer"].log) == (8, 16, False)
    assert found["lag"].choices == (0, 1)
    assert distributions({"x": "uniform(0, 1e-3)"})["x"].high == 1e-3
    assert distributions({"x": "choice(relu, tanh)"})["x"].choices == ("relu", "tanh")
    assert not is_range("1:0.1")
    assert not is_range("session:log(1)")


@pytest.mark.parametrize(
    "text",
    [
        "log(1e-4, inf)",
        "log(nan, 1)",
        "uniform(-1e308, 1e308)",
        "choice(nan, 1)",
        "log(0, 1)",
        "log(1)",
        "int(1.5, 2)",
        "uniform(2, 1)",
        "choice(a)",
        "uniform(a, b)",
        "choice([1], [2])",
    ],
)
def test_ranges_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="should"):
        distributions({"x": text})


def ended(number: int, score: float, **changes: Any) -> SweepTrial:
    values = {"lr": 0.001, "layer": 8 + number % 8, "lag": 0}
    own = {"number": number, "values": values, "status": "finished", "score": score, "evaluations": [score] * 9}
    return SweepTrial(**{**own, **changes})


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_a_trial_knows_only_those_that_have_ended_for_sure(method: str) -> None:
    """The results of the last batch - 1 trials change nothing, earlier ones do where the method learns from them."""
    options = SweepOptions(method=method, batch=3, seed=5)
    trials = [ended(number, float(number)) for number in range(30)]
    first = propose(30, options, SPACE, known_before(30, options, trials))
    late = [*trials[:28], ended(28, -100.0), ended(29, 100.0)]
    assert propose(30, options, SPACE, known_before(30, options, late)) == first
    early = [ended(number, -float(number)) for number in range(30)]
    changed = propose(30, options, SPACE, known_before(30, options, early)) != first
    assert changed == (method == "tpe")
    assert propose(30, SweepOptions(method=method, batch=3, seed=6), SPACE, trials) != first


@pytest.mark.promise
@pytest.mark.parametrize("prune", ["halving", "hyperband"])
def test_a_bad_trial_is_pruned_and_a_good_one_is_not(prune: str) -> None:
    options = SweepOptions(prune=prune, batch=1)
    known: list[SweepTrial] = []
    lasted: dict[float, list[int]] = {-50.0: [], 50.0: []}
    for number in range(18):  # as a sweep would: each leaves its rungs behind
        values = ended(number, 0).values
        for score, counts in lasted.items():
            counts.append(reports(PruningRule(number, values, options, SPACE, list(known)), score))
        rule = PruningRule(number, values, options, SPACE, list(known))
        status = "finished" if reports(rule, float(number % 4)) == 9 else "pruned"
        known.append(ended(number, number % 4, status=status, evaluations=rule.scores, rungs=rule.rungs))
    assert {trial.status for trial in known} == {"finished", "pruned"}
    assert min(lasted[-50.0][6:]) < 9  # Hyperband lets some trials run to their end, whatever they score
    assert set(lasted[50.0][6:]) == {9}
    none = PruningRule(18, ended(18, 0).values, SweepOptions(prune="none"), SPACE, known)
    assert reports(none, -50.0) == 9


def reports(rule: PruningRule, score: float) -> int:
    """After how many evaluations the rule ended the trial."""
    for number in range(9):
        if rule.evaluated([{"round": number, "return": score}]):
            return number + 1
    return 9


def test_trials_wait_for_those_they_have_to_know(tmp_path: Path, tiny: dict[str, Any]) -> None:
    settings = {"game": "treasurehunt", **tiny, "evaluate_every": 3}
    options = SweepOptions(batch=2, budget_episodes=50, prune="none")
    schedule = SweepSchedule(tmp_path, SweepState(options=options, settings=settings, ranges=RANGES))
    first, second = schedule.next_trial(0), schedule.next_trial(1)
    assert first is not None
    assert second is not None
    assert schedule.next_trial(2) is None  # it has to know the first
    schedule.record(TrialOutcome(second, "failed", "no luck"))
    assert schedule.next_trial(1) is None
    schedule.record(TrialOutcome(first, "failed", "no luck"))
    assert schedule.next_trial(0) is not None
    assert schedule.next_trial(1) is not None
    assert [trial.status for trial in schedule.state.trials] == ["failed", "failed", "running", "running"]
    assert len({json.dumps(trial.values) for trial in schedule.state.trials}) == 4


@pytest.mark.promise
def test_a_sweep_depends_on_its_seed_alone_and_goes_on(tmp_path: Path, tiny: dict[str, Any], cli: Any) -> None:
    settings = {
        "game": "treasurehunt", **tiny, "keep_checkpoints": 1, "evaluate_every": 3, "lr": "log(1e-4, 1e-2)",
        "trials": 5, "prune": "halving", "batch": 2, "side_by_side": 1, "seed": 3,
    }  # fmt: skip
    whole = remuda.sweep(out=tmp_path / "whole", quiet=True, **settings)
    assert len(whole.state.trials) == 5
    assert whole.best is not None
    assert {trial.status for trial in whole.state.trials} <= {"finished", "pruned"}
    # As if it had been killed while its fourth trial ran: the state of then, and that trial's unfinished run.
    words = [f"{name}={value}" for name, value in settings.items() if name != "game"]
    done = cli("sweep", "treasurehunt", *words, "--out", tmp_path / "again", "--json")
    assert done.code == 0, done.err
    state = json.loads((tmp_path / "again" / "sweep.json").read_text())
    assert state["trials"] == json.loads((tmp_path / "whole" / "sweep.json").read_text())["trials"]
    state["trials"] = [*state["trials"][:3], {"number": 3, "values": state["trials"][3]["values"]}]
    (tmp_path / "again" / "sweep.json").write_text(json.dumps(state))
    (tmp_path / "again" / "trials" / "0003" / "result.json").unlink()
    continued = remuda.resume_study(tmp_path / "again", quiet=True)
    assert isinstance(continued, Sweep)
    assert continued.state.trials == whole.state.trials
    assert "<svg" in (tmp_path / "again" / "sweep.html").read_text()
    assert cli("resume", tmp_path / "again").code == 0
    assert cli("resume", tmp_path / "again", "--engine", "sync").code == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({}, "nothing is searched"),
        ({"lr": "log(1, 0)"}, "the lower one first"),
        ({"lr": "log(1e-4, 1e-2)", "trials": 3, "budget_episodes": 7}, "give one of them"),
        ({"lrr": "log(1e-4, 1e-2)"}, "did you mean 'lr'"),
        ({"lr": "log(1e-4, 1e-2)", "method": "magic"}, "method"),
    ],
)
def test_sweeps_that_cannot_run_are_refused(tmp_path: Path, words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(remuda.RemudaError, match=sentence):
        sweep({"game": "treasurehunt", **words}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
