"""Whole searches with real training: what they write, and that a killed search continues without loss."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from remuda import Run
from remuda.core.errors import ConfigError, RunError, UnknownName
from remuda.games.cage2.workflow import distinct_orders
from remuda.studies.workflows.ranking import Search
from remuda.studies.workflows.search import SearchListener, resume_search, search

SMALL: dict[str, Any] = {
    "total_episodes": 96, "trial_episodes": 24, "compliance_threshold": 0.0, "score_episodes": 6, "patience": 30,
    "worlds": 4, "steps": 12, "layers": [8], "passes": 1, "minibatches": 1, "seed": 1, "evaluate_episodes": 2,
    "deterministic": True, "checkpoint_every": 4,
}  # fmt: skip
TIMES = {"collect_s", "learn_s", "wall_s"}
LIMIT_S = 120.0


def results(folder: Path) -> list[dict[str, Any]]:
    """The results of every trial, without measured times."""
    state = json.loads((folder / "search.json").read_text())
    return [{name: value for name, value in result.items() if name not in TIMES} for result in state["outcomes"]]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A small search that was not interrupted."""
    return search("cage2", SMALL, tmp_path_factory.mktemp("search") / "whole")


def test_a_search_writes_ranking_policies_tables_and_a_page(whole: Search) -> None:
    assert whole.state.finished
    assert len(whole.state.outcomes) == 4
    assert sum(result.episodes for result in whole.state.outcomes) == 96
    orders = {result.trial.workflow for result in whole.state.outcomes}
    assert orders <= {*distinct_orders(True)}
    assert {score.workflow for score in whole.ranking} == orders
    assert [score.env_return for score in whole.ranking] == sorted((o.env_return for o in whole.ranking), reverse=True)
    assert whole.chosen in whole.ranking
    for score in whole.ranking:
        assert score.episodes == 6
        assert score.env_return_ci95 > 0
        plan = Run(whole.folder / "trials" / f"{score.trial:04d}").plan
        assert plan.options["workflow"] == score.workflow
    for name, count in (("ranking.csv", len(whole.ranking)), ("trials.csv", 4), ("posterior.csv", 65)):
        assert len(rows(whole.folder / name)) == count
    result = json.loads((whole.folder / "result.json").read_text())
    assert result["distinct_games"] == 65
    assert result["orders"] == 120
    assert result["chosen"]["workflow"] == whole.chosen.workflow if whole.chosen else None
    parts = dict(result["seconds"])
    assert sum(parts.values()) == pytest.approx(2 * parts.pop("wall"))
    page = (whole.folder / "search.html").read_text()
    assert page.count("<svg") == 3
    assert "65 different games" in page
    assert "← chosen" in page


def test_trials_begin_with_the_weights_of_another(whole: Search) -> None:
    for result in whole.state.outcomes[1:]:
        plan = Run(whole.folder / "trials" / f"{result.trial.number:04d}").plan
        assert plan.warm_start == str(whole.folder / "trials" / f"{result.trial.parent:04d}")


def test_the_same_seed_finds_the_same(whole: Search, tmp_path: Path) -> None:
    again = search("cage2", SMALL, tmp_path / "again")
    assert results(again.folder) == results(whole.folder)
    assert again.ranking == whole.ranking
    other = search("cage2", {**SMALL, "seed": 2}, tmp_path / "other")
    assert results(other.folder) != results(whole.folder)


def command(out: Path, **changes: Any) -> list[str]:
    words = [f"{name}={value}" for name, value in {**SMALL, **changes}.items()]
    return [sys.executable, "-m", "remuda", "search", "cage2", "--out", str(out), *words]


def begun(out: Path, trial: int) -> bool:
    return any((out / "trials" / f"{trial:04d}" / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize(
    ("number", "trial"),
    [
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
    ],
)
def test_a_search_that_is_killed_goes_on_as_if_it_had_not_been(
    whole: Search, tmp_path: Path, number: int, trial: int
) -> None:
    out = tmp_path / "killed"
    with subprocess.Popen(command(out), stderr=subprocess.PIPE, text=True) as process:
        limit = time.monotonic() + LIMIT_S
        while not begun(out, trial):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < limit
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    if number == signal.SIGINT:
        assert process.returncode == 0
        assert f"go on with: remuda resume {out}" in errors
    assert not (out / "result.json").exists()
    messages: list[str] = []
    found = resume_search(out, SearchListener(on_message=messages.append))
    assert found.state.finished
    assert ("going on after" in messages[0]) == (trial > 0)
    assert results(out) == results(whole.folder)
    assert found.ranking == whole.ranking


def test_a_trial_has_the_same_result_alone_and_with_others(tmp_path: Path) -> None:
    plan = {**SMALL, "method": "random", "total_episodes": 16, "trial_episodes": 8, "side_by_side": 2}
    both = search("cage2", {**plan, "engine": "executor", "n_workers": 1}, tmp_path / "both")
    assert [result.trial.parent for result in both.state.outcomes] == [None, None]
    alone = search("cage2", {**plan, "side_by_side": 1, "total_episodes": 8}, tmp_path / "alone")
    assert results(alone.folder) == results(both.folder)[:1]


@pytest.mark.slow
def test_trials_at_the_same_time_are_stopped_and_continued(tmp_path: Path) -> None:
    out = tmp_path / "both"
    with subprocess.Popen(
        command(out, side_by_side=2, total_episodes=4000, trial_episodes=2000), stderr=subprocess.PIPE, text=True
    ) as process:
        limit = time.monotonic() + LIMIT_S
        while not (begun(out, 0) and begun(out, 1)):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < limit
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "go on with" in errors
    assert results(out) == []
    for trial in (0, 1):
        assert not Run(out / "trials" / f"{trial:04d}").finished
    assert resume_search(out).state.finished
    assert sum(result["episodes"] for result in results(out)) == 4000


@pytest.mark.slow
def test_trials_die_with_their_search(tmp_path: Path) -> None:
    out = tmp_path / "both"
    plan = {"side_by_side": 2, "total_episodes": 40_000, "trial_episodes": 20_000}
    with subprocess.Popen(command(out, **plan), stderr=subprocess.DEVNULL, start_new_session=True) as process:
        limit = time.monotonic() + LIMIT_S
        while not (begun(out, 0) and begun(out, 1)):
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
        process.kill()
    while _mentioned(str(out)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    with (out / "trials" / "0000" / "metrics.csv").open() as file:
        before = file.read()
    time.sleep(0.3)
    assert (out / "trials" / "0000" / "metrics.csv").read_text() == before


def _mentioned(text: str) -> list[int]:
    """Processes that have a file open below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [str(file.readlink()) for file in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(file.startswith(text) for file in files) and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found


@pytest.mark.slow
def test_halving_and_conditioned(tmp_path: Path) -> None:
    small = {**SMALL, "worlds": 1, "steps": 4, "checkpoint_every": 1000, "score_episodes": 2}
    halved = search("cage2", {**small, "method": "halving", "total_episodes": 65 * 7}, tmp_path / "halving")
    assert len(halved.state.outcomes) == 65 + 33 + 17 + 9 + 5 + 3 + 2
    assert len(halved.ranking) == 65
    one = search("cage2", {**small, "method": "conditioned", "worlds": 65, "total_episodes": 65}, tmp_path / "one")
    assert len(one.state.outcomes) == 1
    assert len(one.ranking) == 65
    assert {score.trial for score in one.ranking} == {0}
    assert len({score.workflow for score in one.ranking}) == 65
    assert one.chosen in one.ranking


def test_all_120_orders_are_different_games_without_the_foothold(tmp_path: Path) -> None:
    plan = {**SMALL, "foothold_counts": False, "total_episodes": 24, "method": "random"}
    found = search("cage2", plan, tmp_path / "search")
    assert len(found.space.orders) == 120
    assert "all 120 orders are different games" in (found.folder / "search.html").read_text()


@pytest.mark.parametrize(
    ("game", "words", "error", "sentence"),
    [
        ("treasurehunt", {}, UnknownName, "game with workflows"),
        ("cage2", {"workflow": "all"}, ConfigError, "workflow is chosen by the search"),
        ("cage2", {"method": "magic"}, ConfigError, "method="),
        ("cage2", {"compliance_threshold": 2}, ConfigError, "compliance_threshold=2"),
        ("cage2", {"layer": [8]}, ConfigError, "it is called 'layers' here"),
        ("cage2", {"method": "halving"}, ConfigError, "too little for method=halving"),
        ("cage2", {"engine": "warp"}, UnknownName, "engine"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_written(
    tmp_path: Path, game: str, words: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        search(game, {**SMALL, **words}, tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_a_directory_in_use_is_left_alone(tmp_path: Path, whole: Search) -> None:
    with pytest.raises(RunError, match="remuda resume"):
        search("cage2", SMALL, whole.folder)
    with pytest.raises(RunError, match="is not a search"):
        resume_search(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"game": "cage2"}', '{"format": 2}'])
def test_a_damaged_state_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "search.json").write_text(text)
    with pytest.raises(RunError, match="is damaged"):
        resume_search(tmp_path)


def test_without_scikit_learn_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with pytest.raises(ConfigError, match=r"remuda-rl\[search\]"):
        search("cage2", SMALL, tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_the_command_line(cli: Any, tmp_path: Path) -> None:
    words = [f"{name}={value}" for name, value in SMALL.items() if name not in ("total_episodes", "seed")]
    out = tmp_path / "search"
    done = cli("search", "cage2", "--total-episodes", 48, "--seed", 3, "--out", out, "--json", *words)
    assert done.code == 0
    result = json.loads(done.out)
    assert result["finished"]
    assert result["episodes"] == 48
    refused = cli("search", "cage2", "--out", out)
    assert refused.code == 2
    assert "exists already" in refused.err
    again = cli("resume", out)  # scores once more, trains nothing
    assert again.code == 0
    assert "chosen: " in again.out
    assert cli("resume", out, "--engine", "executor").code == 2
