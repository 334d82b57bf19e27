"""Failures and schedules from anywhere are played again or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import HUGE, altered, damaged, deep, harmless, often, plain, refusal, times
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import remuda
from remuda.engines.trainers.processes.schedule import SCHEDULE
from remuda.engines.trainers.slices import split
from remuda.runs.failure_log import FAILURES
from remuda.runs.replay import replay, replay_failure

PLAN: dict[str, Any] = {
    "agents": 1, "turns": 5, "learners": {"0": "iqn", "1-2": "ppo"}, "worlds": 2, "total_episodes": 6,
    "layer": 8, "quantiles": 2, "acting_quantiles": 2, "iqn.frames": 2, "batch_size": 4, "replay_size": 32,
    "layers": [8], "minibatches": 2, "evaluate_episodes": 2, "device": "cpu", "pictures": False,
}  # fmt: skip
RECORD = {
    "purpose": "train", "exploration": None, "episodes": [2, 3], "worlds": [0, 1], "seed": 0, "worker": "loop",
    "turn": 3, "message": "it raised", "traceback": "Traceback …",
}  # fmt: skip
ACTIONS = {"0": np.ones((4, 2, 1), np.int64), "1": np.ones((4, 2, 2), np.int64)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a failure, and the schedule of one that went by round."""
    out = tmp_path_factory.mktemp("run") / "run"
    made = remuda.train("remuda.testing:UNEQUAL", out=out, quiet=True, **PLAN)
    (out / FAILURES).mkdir()
    (out / FAILURES / "0001.json").write_text(json.dumps(RECORD))
    save_file(ACTIONS, out / FAILURES / "0001.safetensors")
    (out / SCHEDULE).write_text("".join(json.dumps(line) + "\n" for line in schedule(made)))
    return out


def schedule(made: remuda.Run) -> list[dict[str, Any]]:
    learners = split(made.parts, 2)
    lines: list[dict[str, Any]] = [{"slices": learners}]
    for round_ in range(3):
        taken = [[round_] * len(own) for own in learners]
        versions = [[0, [[round_], [round_, round_]]], [3, [[round_], [round_, round_]]]]
        episodes = [2 * round_, 2 * round_ + 1]
        lines.append({"episodes": episodes, "worlds": [0, 2], "versions": versions, "taken_at": taken})
        lines.append({"saved": round_ + 1})
    return lines


@pytest.fixture
def copies(run: Path, tmp_path: Path) -> Callable[[], Any]:
    """Copies of the run, each for one example, with a neighbour that must not be touched."""
    numbers = numbers_from()

    @contextmanager
    def copy() -> Iterator[Path]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "run").mkdir()
        for name in ("config.yaml", ".signature", SCHEDULE):
            shutil.copy(run / name, folder / "run")
        shutil.copytree(run / FAILURES, folder / "run" / FAILURES)
        with harmless(folder / "outside"):
            yield folder / "run"
        shutil.rmtree(folder)

    return copy


def test_both_can_be_played_again(run: Path) -> None:
    record, error = replay_failure(run, 1)
    assert (record.turn, error) == (3, None)
    assert replay(run) == remuda.Run(run).result["weights_sha256"]


@times(50, 1000)
def test_altered_records(copies: Any, count: int) -> None:
    @often(count)
    @given(
        altered(RECORD) | st.builds(lambda name, value: {**RECORD, name: value}, st.sampled_from(list(RECORD)), plain)
    )
    def check(record: Any) -> None:
        with copies() as run:
            (run / FAILURES / "0001.json").write_text(json.dumps(record))
            refusal(lambda: replay_failure(run, 1))

    check()


@times(50, 1000)
def test_damaged_failures(copies: Any, run: Path, count: int) -> None:
    @often(count)
    @given(st.data(), st.sampled_from(["0001.json", "0001.safetensors"]))
    def check(data: st.DataObject, name: str) -> None:
        content = data.draw(damaged((run / FAILURES / name).read_bytes()))
        with copies() as copy:
            (copy / FAILURES / name).write_bytes(content)
            refusal(lambda: replay_failure(copy, 1))

    check()


OTHER_ACTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "of one group": lambda: {"0": ACTIONS["0"]},
    "of three": lambda: {**ACTIONS, "2": ACTIONS["0"]},
    "of other names": lambda: {"../x": ACTIONS["0"], "1": ACTIONS["1"]},
    "of other turns": lambda: {**ACTIONS, "0": np.ones((3, 2, 1), np.int64)},
    "of no turns": lambda: {name: own[:0] for name, own in ACTIONS.items()},
    "flat": lambda: {name: own.reshape(-1) for name, own in ACTIONS.items()},
    "without axes": lambda: {**ACTIONS, "0": np.int64(1)},
    "negative": lambda: {**ACTIONS, "0": -ACTIONS["0"]},
    "huge": lambda: {**ACTIONS, "0": ACTIONS["0"] << 62},
    "nan": lambda: {**ACTIONS, "0": ACTIONS["0"] * np.nan},
    "complex": lambda: {**ACTIONS, "0": ACTIONS["0"].astype(np.complex64)},
    "unsigned": lambda: {**ACTIONS, "0": ACTIONS["0"].astype(np.uint64)},
}


@pytest.mark.parametrize("name", OTHER_ACTIONS)
def test_other_actions_are_refused(copies: Any, name: str) -> None:
    with copies() as run:
        arrays = {key: np.ascontiguousarray(array) for key, array in OTHER_ACTIONS[name]().items()}
        save_file(arrays, run / FAILURES / "0001.safetensors")
        assert refusal(lambda: replay_failure(run, 1)) is not None


@pytest.mark.parametrize("facts", [
    {"episodes": []}, {"episodes": [-1, 0]}, {"episodes": [2**63, 1]}, {"episodes": [1]}, {"turn": -1}, {"turn": 2**62},
    {"purpose": "x"}, {"exploration": float("nan")}, {"seed": 10**400}, {"more": 1}, {"episodes": ["2", None]},
], ids=str)  # fmt: skip
def test_other_facts_are_refused(copies: Any, facts: dict[str, Any]) -> None:
    with copies() as run:
        (run / FAILURES / "0001.json").write_text(json.dumps({**RECORD, **facts}))
        assert refusal(lambda: replay_failure(run, 1)) is not None


@pytest.mark.parametrize("name", ["1x.json", "1²x.json", "9.json", "99999999999999999999.json", "2.json"])
@pytest.mark.parametrize("number", [1, 2, 9, 10**20 - 1, 10**300])
def test_odd_names_among_the_failures(copies: Any, name: str, number: int) -> None:
    with copies() as run:
        (run / FAILURES / name).write_text("{}")
        said = refusal(lambda: replay_failure(run, number))
        assert (said is None) == (number == 1)


def test_the_command_says_one_sentence(copies: Any, cli: Any) -> None:
    for content in (deep(), "[]", "{}", "\0", '{"turn": ' + "9" * 5000 + "}"):
        with copies() as run:
            (run / FAILURES / "0001.json").write_text(content)
            outcome = cli("replay", run, "--failure", "1")
            assert (outcome.code, outcome.out) == (2, "")
            assert outcome.err.startswith("error: failure 1 of ")
            assert outcome.err.count("\n") == 1


def lines_of(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / SCHEDULE).read_text().splitlines()]


@times(25, 1000)
def test_altered_schedules(copies: Any, run: Path, count: int) -> None:
    whole = lines_of(run)

    @often(count)
    @given(altered(whole))
    def check(lines: Any) -> None:
        with copies() as copy:
            text = "\n".join(json.dumps(line) for line in lines) if isinstance(lines, list) else json.dumps(lines)
            (copy / SCHEDULE).write_text(text)
            refusal(lambda: replay(copy))

    check()


@times(25, 1000)
def test_altered_entries(copies: Any, run: Path, count: int) -> None:
    header, first, *rest = lines_of(run)

    @often(count)
    @given(st.sampled_from(sorted(first)), st.data())
    def check(name: str, data: st.DataObject) -> None:
        entry = {**first, name: data.draw(altered(first[name]))}
        with copies() as copy:
            (copy / SCHEDULE).write_text("\n".join(map(json.dumps, [header, entry, *rest])))
            refusal(lambda: replay(copy))

    check()


@times(25, 1000)
def test_damaged_schedules(copies: Any, run: Path, count: int) -> None:
    whole = (run / SCHEDULE).read_bytes()

    @often(count)
    @given(damaged(whole))
    def check(content: bytes) -> None:
        with copies() as copy:
            (copy / SCHEDULE).write_bytes(content)
            refusal(lambda: replay(copy))

    check()


OTHER_ENTRIES: dict[str, dict[str, Any]] = {
    **{f"worlds {worlds}": {"worlds": worlds} for worlds in ([0, 3], [-1, 2], [1, 1], [2, 0], [0, 2**62], [0, 1e400])},
    **{f"episode {number}": {"episodes": [0, number]} for number in (-1, float("nan"), *HUGE[5:])},
    "no episodes": {"episodes": []},
    "more episodes than worlds": {"episodes": [0, 1, 2], "worlds": [0, 3]},
    **{f"turn {turn}": {"versions": [[0, [[0], [0, 0]]], [turn, [[0], [0, 0]]]]} for turn in (-1, 5, 2**62)},
    "not from the first turn": {"versions": [[1, [[0], [0, 0]]]]},
    "no versions": {"versions": []},
    "versions of other agents": {"versions": [[0, [[0], [0]]]]},
    "versions of one group": {"versions": [[0, [[0]]]]},
    "a version of the future": {"versions": [[0, [[7], [0, 0]]]]},
    "a version that is null": {"versions": [[0, [[None], [0, 0]]]]},
    "learned for ever": {"taken_at": [[2**62], [0]]},
    "learned before anything happened": {"taken_at": [[1], [1]]},
    "learned by nobody": {"taken_at": []},
    "learned by others": {"taken_at": [[0, 0], [0, 0]]},
}


@pytest.mark.parametrize("name", OTHER_ENTRIES)
def test_entries_that_cannot_have_happened_are_refused(copies: Any, run: Path, name: str) -> None:
    header, first, *rest = lines_of(run)
    with copies() as copy:
        text = "\n".join(map(json.dumps, [header, {**first, **OTHER_ENTRIES[name]}, *rest]))
        (copy / SCHEDULE).write_text(text)
        assert refusal(lambda: replay(copy)) is not None


@pytest.mark.parametrize(
    "header",
    [
        "", "[]", "{}", '{"slices": []}', '{"slices": [[]]}', '{"slices": [[[0, 0, 1]]]}', '{"slices": [[[9, 0, 1]]]}',
        '{"slices": [[[0, 0, 1], [1, 0, 9]]]}', '{"slices": [[[1, 0, 2]], [[0, 0, 1]]]}', '{"slices": 5}', deep(), "\0",
    ],
    ids=lambda header: header[:30],
)  # fmt: skip
def test_slices_of_another_herd_are_refused(copies: Any, run: Path, header: str) -> None:
    with copies() as copy:
        (copy / SCHEDULE).write_text("\n".join([header, *map(json.dumps, lines_of(run)[1:])]))
        assert refusal(lambda: replay(copy)) is not None


def test_a_schedule_of_nothing_is_the_first_weights(copies: Any, run: Path) -> None:
    with copies() as copy:
        (copy / SCHEDULE).write_text(json.dumps(lines_of(run)[0]))
        assert refusal(lambda: replay(copy)) is None


@pytest.mark.parametrize("name", ["1x.json", "0009.json.old", "\u0663.json", "99999999999999999999x.json"])
def test_other_files_among_failures_are_nobodys(copies: Any, name: str) -> None:
    with copies() as run:
        (run / FAILURES / name).write_text("{}")
        record, _ = replay_failure(run, 1)
        assert record.turn == 3
