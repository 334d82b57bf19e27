"""CAGE 2 against recorded games: `remuda verify` finds no mismatch, and finds every change of a recording or a rule."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cage2_mutations import MUTATIONS
from trace_arrays import Arrays, read_trace, write_trace

from remuda.core.errors import TraceError
from remuda.games.cage2.traces import INPUTS, OUTPUTS, START
from remuda.games.cage2.verify import FIELDS, verify

TRACES = Path(__file__).parents[2] / "data" / "cage2"
BLUES = ["cardiff", "decoy_heavy", "random", "random_nodecoy", "react_mixed", "react_remove", "react_restore", "sleep"]


def cut(arrays: Arrays, episodes: int, steps: int) -> Arrays:
    """The beginning of a trace."""
    shorter = {name: array[:episodes] if array.ndim else array for name, array in arrays.items()}
    return {name: a[:, :steps] if a.ndim >= 2 and name not in START else a for name, a in shorter.items()}


def test_recorded_games_agree_in_every_field(cli: Callable[..., Any]) -> None:
    outcome = cli("verify", "cage2", TRACES)
    assert outcome.code == 0
    assert "44 files, 187 episodes, 18,700 steps checked: no mismatch in any field" in outcome.out
    counts = {line.split()[0]: line.split()[1] for line in outcome.out.splitlines()[2:]}
    assert counts == dict.fromkeys(FIELDS, "0")


def test_the_committed_traces_cover_both_rule_sets_every_red_and_green() -> None:
    head = {path.stem for path in (TRACES / "head").glob("*.npz")}
    assert {f"{red}__{blue}" for red in ("bline", "meander", "sleep") for blue in BLUES} <= head
    assert {f"{red}__random__greenactive" for red in ("bline", "meander", "sleep")} <= head
    assert len(list((TRACES / "leaderboard").glob("*.npz"))) == 10
    assert sum(path.stat().st_size for path in TRACES.rglob("*.npz")) < 3_000_000
    differ = [read_trace(TRACES, f"head/{name}") for name in sorted(head)]
    assert any((arrays["obs"] != arrays["obs2"]).any() for arrays in differ)


@pytest.mark.parametrize("field", OUTPUTS)
def test_one_wrong_number_in_any_output_is_found(field: str, tmp_path: Path) -> None:
    arrays = cut(read_trace(TRACES, "head/meander__random"), 2, 40)
    place = (1, 30) + (0,) * (arrays[field].ndim - 2)
    arrays[field][place] = 7 if arrays[field][place] != 7 else 8
    report = verify(write_trace(tmp_path, arrays))
    assert {name: count for name, count in report.mismatches.items() if count} == {field: 1}
    assert report.first is not None
    assert f"episode 1 (seed {arrays['seeds'][1]}), step 31" in report.first
    assert f"    {field}" in report.first


def test_the_first_mismatch_is_explained(cli: Callable[..., Any], tmp_path: Path) -> None:
    arrays = cut(read_trace(TRACES, "head/bline__react_restore"), 3, 50)
    arrays["priv"][2, 20, 3] += 1
    arrays["priv"][2, 40] = 7
    outcome = cli("verify", "cage2", write_trace(tmp_path / "one", arrays))
    assert outcome.code == 1
    assert "3 episodes, 150 steps checked: 2 mismatches" in outcome.out
    for words in ("step 21", "red b_line, blue react_restore", "rules head", "priv[3] (Enterprise2): recorded"):
        assert words in outcome.out
    assert outcome.out.count("; red ") == 5  # the step and the four before it


def test_leaderboard_games_do_not_match_the_head_rules(tmp_path: Path) -> None:
    arrays = read_trace(TRACES, "leaderboard/bline__react_mixed")
    assert verify(write_trace(tmp_path / "as_recorded", arrays)).good
    del arrays["variant"]
    assert verify(write_trace(tmp_path / "leaderboard_version", arrays)).good  # the folder says so
    assert not verify(write_trace(tmp_path / "head", arrays)).good


def test_a_decision_that_red_cannot_make_is_found(tmp_path: Path) -> None:
    arrays = read_trace(TRACES, "head/meander__sleep")
    assert arrays["red_action"][0, :2].tolist() == [1, 2]
    arrays["red_target"][0, 1] = 3  # Enterprise2, whose address red does not know yet
    report = verify(write_trace(tmp_path / "target", cut(arrays, 1, 2)))
    assert report.mismatches["red_target"] == 1
    assert "red_target: recorded 3, possible [8, 9, 10, 11, 12]" in str(report)
    arrays = read_trace(TRACES, "head/bline__sleep")
    arrays["red_action"][0, 5] = 4
    assert verify(write_trace(tmp_path / "action", arrays)).mismatches["red_action"] >= 1


def test_impossible_random_outcomes_are_found(tmp_path: Path) -> None:
    arrays = cut(read_trace(TRACES, "head/bline__sleep"), 1, 3)
    assert arrays["red_action"][0, 2] == 3
    for field, value in (("exploit", 6), ("exploit", 255), ("detect", 255)):
        changed = {name: array.copy() for name, array in arrays.items()}
        changed[field][0, 2] = value if changed[field][0, 2] != value else 0
        assert verify(write_trace(tmp_path, changed)).mismatches[field] == 1, (field, value)


def test_traces_of_other_lengths_and_types_are_read(tmp_path: Path) -> None:
    arrays = cut(read_trace(TRACES, "head/bline__random__greenactive"), 1, 37)
    wider = {name: a.astype(np.int64) if a.dtype.kind == "u" else a for name, a in arrays.items()}
    wider["reward"] = wider["reward"].astype(np.float64).round(1)
    wider["something_new"] = np.zeros(3)
    report = verify(write_trace(tmp_path / "a", wider))
    assert (report.good, report.steps) == (True, 37)
    assert verify(tmp_path / "a" / "trace.npz").steps == 37  # a single file, too
    del arrays["seeds"], arrays["blue"]
    (tmp_path / "a" / "deeper").mkdir()
    write_trace(tmp_path / "a" / "deeper", arrays)
    assert verify(tmp_path).files == 2


def damaged(name: str, change: Callable[[Arrays], None]) -> Any:
    return pytest.param(change, id=name)


def put(field: str, value: int) -> Callable[[Arrays], None]:
    return lambda arrays: arrays[field].__setitem__((0, 4), value)


@pytest.mark.parametrize(
    "change",
    [
        *(damaged(f"no {name}", lambda a, name=name: a.pop(name)) for name in ("red", "obs2", "detect", "m_escalated")),
        damaged("no episodes", lambda a: a.update(cut(a, 0, 10))),
        damaged("another shape", lambda a: a.update(priv=a["priv"][:, :, :5])),
        damaged("too short", lambda a: a.update(exploit=a["exploit"][:, :5])),
        damaged("floats", lambda a: a.update(blue_action=a["blue_action"] + 0.5)),
        damaged("words", lambda a: a.update(decoys=a["decoys"].astype("U3"))),
        damaged("another red", lambda a: a.update(red=np.array("dragon"))),
        damaged("objects", lambda a: a.update(obs=np.array([{}, []], object))),
        damaged("seeds of another shape", lambda a: a.update(seeds=np.zeros((2, 2)))),
        damaged("blue action 145", put("blue_action", 145)),
        damaged("red action 9", put("red_action", 9)),
        damaged("red target 13", put("red_target", 13)),
        damaged("red target none", put("red_target", 255)),
        damaged("exploit 9", put("exploit", 9)),
        damaged("detect 2", put("detect", 2)),
        damaged("green target 40", put("green_target", 40)),
        damaged("green target without a scan", put("green_target", 4)),
        damaged("negative", lambda a: a.update(blue_action=a["blue_action"].astype(np.int64) - 1)),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_in_one_sentence(
    change: Callable[[Arrays], None], cli: Callable[..., Any], tmp_path: Path
) -> None:
    arrays = cut(read_trace(TRACES, "head/bline__sleep"), 2, 30)
    change(arrays)
    outcome = cli("verify", "cage2", write_trace(tmp_path / "bad", arrays))
    assert outcome.code == 2
    assert outcome.err.startswith("error: trace ")
    assert outcome.err.count("\n") == 1


def test_a_sweep_of_a_host_is_refused(tmp_path: Path) -> None:
    arrays = cut(read_trace(TRACES, "head/bline__sleep"), 1, 10)
    arrays["red_target"][0, 0] = 9
    with pytest.raises(TraceError, match="red_target is 9 in episode 0, step 1"):
        verify(write_trace(tmp_path, arrays))


def bomb() -> bytes:
    """A small file that claims to hold terabytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 42,)})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("obs.npy", header.getvalue())
    return packed.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 not really", b"\x80\x04]\x94.", bomb(), (TRACES / "head/bline__sleep.npz").read_bytes()[:2000]],
    ids=["empty", "not a zip", "a pickle", "a bomb", "cut off"],
)
def test_a_file_that_is_no_trace_is_refused_in_one_sentence(
    content: bytes, cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    outcome = cli("verify", "cage2", tmp_path)
    assert outcome.code == 2
    assert outcome.err.startswith("error: trace ")
    assert outcome.err.count("\n") == 1


def test_a_folder_without_traces_is_refused_in_one_sentence(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words in (("cage2", tmp_path / "empty"), ("cage2", tmp_path / "gone"), ("treasurehunt", tmp_path)):
        outcome = cli("verify", *words)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), words


def test_every_recorded_field_is_compared_or_is_an_input() -> None:
    recorded = set(read_trace(TRACES, "head/bline__random"))
    not_compared = {"red", "blue", "green", "seeds", "impact_rng", "decoy_pid"}
    not_compared |= {"new_sess_id", "new_sess_pid", "new_sess_host"}
    assert recorded == {*INPUTS, *FIELDS, *not_compared}


@pytest.mark.slow
def test_every_mutation_of_the_rules_is_detected() -> None:
    program = Path(__file__).with_name("cage2_mutations.py")
    done = subprocess.run(
        [sys.executable, program, TRACES],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    results = dict(line.split("\t") for line in done.stdout.splitlines())
    assert list(results) == [mutation.rule for mutation in MUTATIONS]
    assert [rule for rule, where in results.items() if not where] == []
