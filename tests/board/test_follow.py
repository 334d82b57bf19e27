"""What a page is told of that stays open: what has changed, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from board_client import Client

from remuda.board.tables import ColumnCache, CurveRequest, curve


def test_a_page_is_told_only_what_changed(board: Client, folder: Path) -> None:
    table = folder / "run" / "metrics.csv"
    header, *lines = table.read_text().splitlines(keepends=True)
    with board.follow(ids=["run"], metrics=["return", "gems"], once=["gems"]) as changes:
        first = json.loads(changes.readline())
        assert [run["id"] for run in first["runs"]] == ["run"]
        found = {(own["table"], own["metric"]): own for own in first["curves"]}
        for (name, metric), own in found.items():
            alone = board.json("/api/curve", id="run", table=name, metric=metric)
            assert own["x"] == alone["x"]
            assert own["mean"] == alone["mean"]
        assert ("evaluations.csv", "return") in found
        before = found["metrics.csv", "return"]
        with table.open("a") as file:
            file.writelines(lines[:2])
        second = json.loads(changes.readline())
        assert [run["id"] for run in second["runs"]] == ["run"]
        (part,) = second["curves"]  # of the other metric the page has what it wanted, and there was no evaluation
        assert (part["metric"], part["from"], len(part["x"])) == ("return", len(before["x"]), 1)
        assert "studies" not in second
        table.write_text("".join([header, *lines[:2]]))  # a run that goes on writes its tables anew
        (whole,) = json.loads(changes.readline())["curves"]
        assert (whole["from"], len(whole["x"])) == (0, 1)
        shutil.rmtree(folder / "run")
        while "gone" not in (last := json.loads(changes.readline())):
            pass  # files are removed one by one
        assert last["gone"] == ["run"]


@pytest.mark.parametrize(
    "wish",
    ["", "[", "1", "[1]", "[" * 50_000, '{"ids": 1}', '{"ranges": []}', '{"ranges": {"a": 1}}', '{"points": "many"}'],
)
def test_wishes_that_make_no_sense_are_refused(board: Client, wish: str) -> None:
    assert board.ask(f"/api/follow?{urlencode({'wish': wish})}")[0] in (404, 414)


def test_a_wish_for_what_is_not_a_run_is_not_fulfilled(board: Client) -> None:
    names = ["..", "../secret.csv", "run/..", "/", "", "\0"]
    with board.follow(ids=names, metrics=["return", "../return"]) as changes:
        assert "curves" not in json.loads(changes.readline())


@pytest.mark.parametrize("points", [20, 33])
def test_points_are_never_taken_back_while_rows_are_added(folder: Path, points: int) -> None:
    """Complete points and those that come later make the same curve as all at once."""
    table, random = folder / "run" / "metrics.csv", np.random.default_rng(points)
    table.write_text("round,episodes,agent,return\n")
    following, asked = ColumnCache(folder), CurveRequest("run", "metrics.csv", "return", "episodes", points=points)
    step, complete, rows, held = 0, 0, 0, {"x": [], "mean": []}
    for _ in range(40):
        added = range(rows + 1, rows + 1 + int(random.integers(0, 9)))
        rows += len(added)
        with table.open("a") as file:
            file.writelines(f"{row},{row},{agent},{random.normal():.4f}\n" for row in added for agent in range(2))
        part = curve(following, asked, step, complete)
        held = {key: own[: part["from"]] + part[key] for key, own in held.items()}
        whole = curve(ColumnCache(folder), asked)
        assert held == {key: whole[key] for key in held}
        assert len(held["x"]) <= points
        step, complete = part["step"], part["inside"] // part["step"]
