"""The tables of a run after a power failure, and a console that nobody reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.core.errors import RunError
from remuda.runs.callbacks.tables import keep_rounds, read_table


def stop_at(round_: int) -> Any:
    return lambda rows: rows[0]["round"] < round_


def lose_a_row(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))


def cut_the_last_row(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def lose_half_of_every_round(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[1::2]))


def fill_a_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + "9" * 200_000 + "\n")


def zero_the_end(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"\0" * 40)


def lose_everything(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [lose_a_row, cut_the_last_row, zero_the_end, lose_everything, lose_half_of_every_round, fill_a_line]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["metrics.csv", "system.csv"])
def test_a_damaged_table_is_brought_to_the_checkpoint(train: Any, trained: Any, name: str, damage: Any) -> None:
    run = train(callback=stop_at(3))
    damage(run.path / name)
    whole = remuda.resume(run.path, quiet=True)
    assert whole.result["weights_sha256"] == trained().result["weights_sha256"]
    assert f"{name}: " in (run.path / "console.log").read_text()
    rounds = whole.metrics["round"] if name == "metrics.csv" else None
    if rounds is not None:
        assert sorted(set(rounds)) == [1 + k for k in range(4) if 1 + k in set(rounds)]
        assert all((rounds == number).sum() == 2 for number in set(rounds))
        assert 4 in rounds
    assert remuda.Run(run.path).finished


@pytest.mark.parametrize("damage", [Path.unlink, lose_a_row, zero_the_end])
def test_a_table_that_is_damaged_while_training_does_not_cost_the_result(train: Any, trained: Any, damage: Any) -> None:
    class Vandal(remuda.Callback):
        def evaluated(self, training: Any, rows: Any, scores: Any) -> None:
            damage(training.path / "metrics.csv")

    run = train(callback=Vandal())
    assert run.result["weights_sha256"] == trained().result["weights_sha256"]


def test_a_table_of_a_version_with_fewer_columns_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.csv"
    path.write_text("round,agent,return\n1,0,2.5\n1,1,3\n2,0,4\n2,1,5\n")
    assert keep_rounds(path, ["round", "agent", "game_return", "return"], 1, 2) == 0
    assert path.read_text().splitlines() == ["round,agent,game_return,return", "1,0,,2.5", "1,1,,3"]


@pytest.mark.parametrize("reader", ["head -1", "head -c 10", "true", "sh -c 'exec 0<&-; sleep 0.2'"])
def test_a_closed_pipe_does_not_lose_the_run(words: list[str], tmp_path: Path, reader: str) -> None:
    out = tmp_path / "run"
    command = f"{sys.executable} -m remuda train {' '.join(map(repr, words))} --out {out} 2>&1 | {reader}"
    whole = f"{command}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", whole], timeout=120, capture_output=True, check=False)
    assert done.returncode == 0, "whether anybody reads its output is no matter of the run"
    run = remuda.Run(out)
    assert run.finished
    assert run.result["episodes"] == 12


def test_counts_are_integers_and_results_are_floats_even_if_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("round,episodes,agent_steps,wall_s,agent,player,return\n1,4,160,2,0,ppo,3\n1,4,160,2,1,ppo,\n")
    kinds = {name: column.dtype.kind for name, column in read_table(path).items()}
    whole = dict.fromkeys(("round", "episodes", "agent_steps", "agent"), "i")
    assert kinds == {**whole, "wall_s": "f", "player": "U", "return": "f"}


HEADER = "round,episodes,agent_steps,wall_s,group,agent,player,return\r\n"


def test_a_table_is_read_while_its_last_row_is_written(tmp_path: Path) -> None:
    """The system takes long rows in pieces, so a reader may find half of one."""
    path = tmp_path / "metrics.csv"
    rows = f'{HEADER}1,4,160,2.5,"a, b",0,ppo,3\r\n2,8,320,5,"a, b",0,ppo,4.25\r\n'
    for length in range(len(rows) + 1):
        path.write_text(rows[:length], newline="")
        table = read_table(path)
        whole = rows[:length].count("\n")
        assert len(table) == (8 if whole else 0)
        assert all(len(column) == whole - 1 for column in table.values())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"1,4,160,2,a,0,ppo\n", "row 2 has 7 of 8 values; remove this row"),
        (b"1,4,160,2,a,0,ppo,3,4\n", "row 2 has 9 of 8 values; remove this row"),
        (b"1,4,160,2,\xff,0,ppo,3\n", "is damaged: 'utf-8' codec"),
        (b"1,4,160,2," + b"a" * 200_000 + b",0,ppo,3\n", "is damaged: field larger than field limit"),
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(HEADER.encode() + content)
    with pytest.raises(RunError, match=said):
        read_table(path)


def test_a_count_that_no_integer_holds_is_shown_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"{HEADER}{10**30},4,160,2,a,0,ppo,3\n")
    assert read_table(path)["round"].tolist() == [str(10**30)]
