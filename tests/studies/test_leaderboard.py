"""The leaderboard of CAGE 2: nine cells of one set of games, their total, and its interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import remuda
from remuda.cli.main import app
from remuda.core.errors import ConfigError, UnknownName
from remuda.runs.run import Run
from remuda.studies.leaderboard import CELLS, PUBLISHED, Leaderboard

SMALL: dict[str, Any] = {"total_episodes": 10, "worlds": 5, "layers": [8], "pictures": False, "quiet": True}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return remuda.train(preset="cage2_record", out=tmp_path_factory.mktemp("runs") / "small", **SMALL)


def test_cells_are_what_evaluate_finds_at_each_length(trained: Run) -> None:
    board = remuda.cage2_leaderboard(trained, episodes=20)
    cells = board.summary()["cells"]
    assert len(cells) == 9
    for red, steps in CELLS:
        scores = remuda.evaluate(trained, 20, red=red, steps=steps)
        assert cells[f"{red}/{steps}"]["mean"] == pytest.approx(scores.returns.mean(), abs=1e-5)
    assert board.total == pytest.approx(sum(cell["mean"] for cell in cells.values()))


def test_the_interval_of_the_total_counts_that_lengths_share_their_games() -> None:
    one = np.arange(10.0)
    same = Leaderboard(
        "x", "head", "own", {red: np.stack([one, one, one], axis=1) for red in ("b_line", "meander", "sleep")}
    )
    alone = 1.96 * one.std(ddof=1) / np.sqrt(10)
    assert same.total_ci95 == pytest.approx(3 * alone * np.sqrt(3))


def test_published_totals_are_those_of_the_challenge() -> None:
    totals = {name: round(sum(cells), 2) for name, cells in PUBLISHED.items()}
    assert list(totals.values())[:5] == pytest.approx([-54.57, -56.90, -57.05, -69.88, -73.98], abs=0.011)
    assert all(len(cells) == 9 for cells in PUBLISHED.values())


def test_the_command_prints_one_object_and_writes_the_page(trained: Run, tmp_path: Path) -> None:
    page = tmp_path / "board.html"
    words = [
        "cage2",
        "leaderboard",
        str(trained.path),
        "--episodes",
        "5",
        "--rules",
        "head",
        "--json",
        "--page",
        str(page),
    ]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    printed = json.loads(result.stdout)
    assert printed["total"] == pytest.approx(remuda.cage2_leaderboard(trained, "head", 5).total)
    assert set(printed["cells"]) == {f"{red}/{steps}" for red, steps in CELLS}
    assert "CardiffUni" in page.read_text(encoding="utf-8")
    assert "cannot be compared" in page.read_text(encoding="utf-8")


def test_several_runs_are_seeds_of_one_recipe(trained: Run) -> None:
    words = ["cage2", "leaderboard", str(trained.path), "sleep", "--episodes", "4", "--json"]
    printed = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    totals = [run["total"] for run in printed["runs"]]
    assert len(totals) == 2
    assert printed["total"] == pytest.approx(np.mean(totals))
    assert printed["best"] == max(totals)
    assert printed["total_ci95"] == pytest.approx(12.706 * np.std(totals, ddof=1) / np.sqrt(2), rel=1e-3)


def test_scripted_defenders_have_a_place_too() -> None:
    cells = remuda.cage2_leaderboard("sleep", episodes=10).summary()["cells"]
    assert cells["sleep/100"]["mean"] == 0
    assert cells["b_line/100"]["mean"] < -1000


def test_wrong_words_are_named(trained: Run) -> None:
    with pytest.raises(UnknownName, match=r"react_restor.*react_restore"):
        remuda.cage2_leaderboard("react_restor")
    with pytest.raises(UnknownName, match="rules"):
        remuda.cage2_leaderboard(trained, rules="haed")
    with pytest.raises(ConfigError, match="episodes=0"):
        remuda.cage2_leaderboard(trained, episodes=0)
