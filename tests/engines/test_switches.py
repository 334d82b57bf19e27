"""The switches of `parallel`: which engine they mean, and which settings."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_runs import console_lines, fingerprint, plan_of

import remuda
from remuda.core.errors import UsageError
from remuda.core.yamlfile import read_assignments
from remuda.engines import table as engines
from remuda.runs.settings import make_plan

ALL_SWITCHES = (
    "{enabled: true, parallel_actions: true, parallel_training: true, async_learning: true, train_interval: 4, "
    "num_workers: null, use_threads: false}"
)
SWITCHES = ("use_threads", "async_learning", "parallel_training")
COMBINATIONS = [dict(zip(SWITCHES, values, strict=True)) for values in product((True, False), repeat=3)]


@pytest.mark.parametrize("switches", COMBINATIONS, ids=str)
def test_the_engine_works_as_the_switches_say(switches: dict[str, bool]) -> None:
    engine = engines.ENGINES[plan_of(parallel=switches).engine]
    assert engine.processes == (not switches["use_threads"])
    assert engine.free == switches["async_learning"]
    learns_in_processes = not switches["use_threads"] and switches["async_learning"] and switches["parallel_training"]
    assert ("processes" in engine.trainers) == learns_in_processes
    assert engine.name != "sequential"


@pytest.mark.parametrize("switches", COMBINATIONS, ids=str)
def test_switches_that_are_not_enabled_mean_the_sequential_engine(switches: dict[str, bool]) -> None:
    assert plan_of(parallel={**switches, "enabled": False}).engine == "sequential"


def test_switches_that_are_left_out_have_defaults() -> None:
    full = yaml.safe_load(ALL_SWITCHES)
    assert plan_of(parallel={}) == plan_of(parallel={**full, "train_interval": 1}, worlds=5).model_copy(
        update={"episodes_per_update": None}
    )


def test_the_switches_become_settings_of_the_plan() -> None:
    given = {"parallel_actions": False, "train_interval": 4, "num_workers": 3, "parallel_training": False}
    settings = {"parallel_actions": False, "episodes_per_update": 20, "n_workers": 3, "engine": "executor"}
    assert plan_of(parallel=given) == plan_of(**settings)
    assert plan_of(parallel={**given, "enabled": False}) == plan_of(
        **{**settings, "engine": "sequential", "n_workers": None}
    )


def test_a_file_an_argument_and_a_keyword_mean_the_same(tmp_path: Path, cli: Any, words: list[str]) -> None:
    by_keyword = plan_of(parallel=yaml.safe_load(ALL_SWITCHES))
    assert (
        make_plan({"game": "treasurehunt", "worlds": 5, **read_assignments([f"parallel={ALL_SWITCHES}"])}) == by_keyword
    )
    assert by_keyword.engine == "actor-learner"
    switches = "{enabled: true, use_threads: true, train_interval: 2, parallel-actions: false}"
    (tmp_path / "plan.yaml").write_text(f"parallel: {switches}\n")
    outcomes = [
        cli("train", *words, "--config", tmp_path / "plan.yaml", "--out", "file"),
        cli("train", *words, f"parallel={switches}", "--out", "argument"),
        cli("train", *words, "--parallel", switches, "--out", "flag"),
    ]
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    assert remuda.Run("file").plan == remuda.Run("argument").plan == remuda.Run("flag").plan
    plan = remuda.Run("file").plan
    assert (plan.engine, plan.parallel_actions, plan.episodes_per_update) == ("threads", False, 6)
    for outcome in outcomes:
        lines = [line for line in outcome.err.splitlines() if line.startswith("parallel: {enabled: true, use_threads")]
        assert len(lines) == 1
        assert "→ engine threads (" in lines[0]


def test_the_saved_plan_can_be_given_again(trained: Any) -> None:
    """The switches are translated, not stored: a config never contains the same setting twice."""
    run = trained(parallel={"use_threads": True, "async_learning": False})
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert "parallel" not in config
    assert "train_interval" not in config
    assert make_plan(config) == run.plan


@pytest.mark.promise
@pytest.mark.parametrize("change", [{}, {"parallel_actions": False, "train_interval": 2}], ids=str)
def test_switches_change_the_engine_and_not_the_result(trained: Any, change: dict[str, Any]) -> None:
    settings = {"parallel_actions": False, "episodes_per_update": 6} if change else {}
    sequential = fingerprint(trained(engine="sequential", **settings))
    off = trained(parallel={"enabled": False, **change})
    assert off.plan.engine == "sequential"
    assert fingerprint(off) == sequential
    for switches in COMBINATIONS:
        if engines.ENGINES[plan_of(parallel=switches).engine].deterministic:
            run = trained(parallel={**switches, "num_workers": 2, **change})
            assert fingerprint(run) == sequential, run.plan.engine


def test_switches_not_enabled_are_exactly_sequential_also_without_deterministic(trained: Any) -> None:
    off = trained(parallel={"enabled": False, "num_workers": 7}, deterministic=False)
    assert fingerprint(off) == fingerprint(trained(engine="sequential", deterministic=False))
    assert console_lines(off, "workers on") == []


def test_switches_whose_engine_is_not_deterministic_are_refused_with_deterministic(train: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"actor-learner cannot promise deterministic=true.*parallel_training: false"):
        train(parallel={})
    assert not (tmp_path / "run").exists()


def test_actors_and_learners_train(train: Any) -> None:
    run = train(parallel={"num_workers": 2}, deterministic=False)
    assert run.result["finished"]
    assert run.result["engine"] == "actor-learner"
    assert (
        len(console_lines(run, "parallel: {num_workers: 2} → engine actor-learner (2 collecting and 1 learning pro"))
        == 1
    )


def test_train_interval_counts_epochs() -> None:
    assert plan_of(train_interval=4).episodes_per_update == 20
    assert make_plan({"game": "treasurehunt", "train-interval": 2}).episodes_per_update == 32
    assert make_plan({"preset": "workflow_rl", "train_interval": 3}).episodes_per_update == 300
    assert make_plan({"preset": "workflow_rl", "parallel": {"train_interval": 2}}).episodes_per_update == 200
    assert make_plan({"preset": "workflow_rl", "parallel": {}}).episodes_per_update == 100


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"parallel": {}, "engine": "sync"}, "parallel and engine"),
        ({"parallel": {"enabled": False}, "engine": "sequential"}, "parallel and engine"),
        ({"parallel": {}, "n_workers": 2}, "parallel and n_workers"),
        ({"parallel": {"num_workers": 2}, "n-workers": 2}, "parallel and n_workers"),
        ({"parallel": {}, "n_learners": 2}, "parallel and n_learners"),
        ({"parallel": {}, "learners": 2}, "parallel and n_learners"),
        ({"parallel": {}, "train_interval": 2}, "parallel and train_interval"),
        ({"parallel": {"train_interval": 2}, "train_interval": 2}, "parallel and train_interval"),
        ({"parallel": {"train_interval": 2}, "episodes_per_update": 9}, "train_interval and episodes_per_update"),
        ({"parallel": {"parallel_actions": True}, "parallel_actions": False}, "parallel and parallel_actions"),
        ({"train_interval": 2, "episodes_per_update": 32}, "train_interval and episodes_per_update"),
        ({"learners": 2, "n_learners": 2}, "learners and n_learners"),
        ({"learners": "auto", "n_learners": 2}, "learners and n_learners"),
    ],
    ids=str,
)
def test_the_same_setting_twice_is_refused(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan_of(**settings)
    assert str(refusal.value) == f"{names} say the same thing twice: give one of them"


def test_settings_that_the_switches_leave_out_can_be_given_beside_them() -> None:
    plan = plan_of(parallel={"enabled": False}, parallel_actions=False, episodes_per_update=7)
    assert (plan.parallel_actions, plan.episodes_per_update) == (False, 7)
    assert plan_of(parallel=None, engine="sync").engine == "sync"
    assert plan_of(parallel={}, learners="auto") == plan_of(parallel={})


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"parallel": {"use_thread": True}}, "unknown option of parallel 'use_thread': did you mean 'use_threads'?"),
        ({"parallel": {"n_workers": 2}}, "did you mean 'num_workers'?"),
        ({"parallel": {3: 4}}, "unknown option of parallel '3'"),
        ({"parallel": {"enabled": "perhaps"}}, "enabled='perhaps' (parallel) should be"),
        ({"parallel": {"num_workers": 0}}, "num_workers=0 (parallel) should be greater"),
        ({"parallel": {"num_workers": 5000}}, "num_workers=5000 (parallel) should be less"),
        ({"parallel": {"train_interval": 0}}, "train_interval=0 (parallel) should be greater"),
        ({"parallel": True}, "parallel=True should be a mapping"),
        ({"parallel": [1]}, "parallel=[1] should be a mapping"),
        ({"paralel": {}}, "did you mean 'parallel'?"),
        ({"train_intervals": 3}, "did you mean 'train_interval'?"),
        ({"train_interval": 0}, "train_interval=0 should be a whole number"),
        ({"train_interval": 1.5}, "train_interval=1.5 should be a whole number"),
        ({"learners": 0}, "n_learners=0"),
        ({"learners": -1}, "n_learners=-1"),
        ({"learners": True}, "learners=True should be a mapping"),
        ({"learners": 1.5}, "learners=1.5 should be a mapping"),
        ({"learners": "many"}, "learners='many' should be a mapping"),
    ],
    ids=str,
)
def test_bad_switches_are_refused_in_one_line(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan_of(**settings)
    assert match in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_learners_may_be_a_number_or_a_mapping() -> None:
    assert plan_of(learners=3) == plan_of(n_learners=3)
    assert plan_of(learners="auto") == plan_of()
    assert plan_of(learners={0: "random"}).learners == {"0": "random"}


def test_the_settings_given_are_not_changed() -> None:
    settings = {"game": "treasurehunt", "parallel": {"train_interval": 2}}
    make_plan(settings)
    assert settings == {"game": "treasurehunt", "parallel": {"train_interval": 2}}
