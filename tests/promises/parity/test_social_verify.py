"""Social dilemmas against recorded steps of SocialJax: `remuda verify` finds no mismatch, and finds every change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from social_mutations import MUTATIONS
from trace_arrays import Arrays, read_trace, write_trace

from remuda.core.errors import TraceError
from remuda.games.social_verify import FIELDS, verify_game

TRACES = Path(__file__).parents[2] / "data" / "social"


@pytest.mark.parametrize(("game", "files"), [("cleanup", 3), ("harvest", 4), ("coins", 3)])
def test_recorded_steps_agree_in_every_field(game: str, files: int, cli: Callable[..., Any]) -> None:
    outcome = cli("verify", game, TRACES)
    assert outcome.code == 0
    assert f"{game}: {files} files" in outcome.out
    assert "no mismatch in any field" in outcome.out


@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_recording_is_found_in_its_field(field: str, tmp_path: Path) -> None:
    arrays = read_trace(TRACES, "cleanup_random")
    if field in ("agent_locs", "next_locs"):
        arrays[field][-1, 0, 2] = (arrays[field][-1, 0, 2] + 1) % 4
    elif field == "grid":
        arrays["grid"][-1, 18, 0] = 3 - arrays["grid"][-1, 18, 0] if arrays["grid"][-1, 18, 0] in (0, 3) else 0
    elif field == "dirt":
        arrays["dirt"][-1, 0, 0] = 3 - arrays["dirt"][-1, 0, 0]
    else:
        arrays[field].reshape(-1)[-1] += 1
    report = verify_game("cleanup", write_trace(tmp_path, arrays))
    assert report.mismatches == {**dict.fromkeys(FIELDS, 0), field: 1}
    assert field in str(report.first)


def _without(name: str) -> Callable[[Arrays], Any]:
    return lambda arrays: arrays.pop(name)


def _with(name: str, value: Any) -> Callable[[Arrays], Any]:
    def change(arrays: Arrays) -> None:
        arrays[name].reshape(-1)[0] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("grid"), _without("draw_dirt_u"), _without("dirt"), _with("actions", 9), _with("actions", -1),
        _with("agent_locs", 19), _with("next_locs", -1), _with("grid", 99), _with("draw_spawn_perm", 40),
        _with("draw_spawn_dir", 7), _with("draw_dirt_cell", 100), _with("draw_apple_u", np.nan), _with("dirt", 3),
        lambda arrays: arrays.update(rewards=arrays["rewards"][:-1]),
        lambda arrays: arrays.update(grid=arrays["grid"][:, :5]),
        lambda arrays: arrays.update(actions=arrays["actions"].astype(np.float32)),
        lambda arrays: arrays.update(grid=arrays["grid"][:1]),
        lambda arrays: arrays["agent_locs"].__setitem__((0, 1), arrays["agent_locs"][0, 0]),
        lambda arrays: arrays.update(inner_t0=np.array(-4)),
    ],
)  # fmt: skip
def test_a_hostile_trace_is_refused_in_one_sentence(change: Callable[[Arrays], Any], tmp_path: Path) -> None:
    arrays = read_trace(TRACES, "cleanup_random")
    change(arrays)
    with pytest.raises(TraceError, match=r"^trace .*trace\.npz") as error:
        verify_game("cleanup", write_trace(tmp_path, arrays))
    assert "\n" not in str(error.value)


def test_a_folder_without_traces_of_the_game_is_refused(cli: Callable[..., Any], tmp_path: Path) -> None:
    outcome = cli("verify", "coins", write_trace(tmp_path, read_trace(TRACES, "cleanup_chancefree")))
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    (tmp_path / "trace.npz").write_bytes(b"PK\x03\x04 not really")
    outcome = cli("verify", "coins", tmp_path)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


@pytest.mark.promise
def test_every_mutation_of_the_rules_is_detected() -> None:
    program = Path(__file__).with_name("social_mutations.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program, TRACES],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    results = dict(line.split("\t") for line in done.stdout.splitlines())
    assert list(results) == [mutation.rule for mutation in MUTATIONS]
    assert [rule for rule, where in results.items() if not where] == []
