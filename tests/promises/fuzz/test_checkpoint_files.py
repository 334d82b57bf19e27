"""Checkpoints from anywhere execute nothing, reach nothing outside, and are refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hostile import altered, damaged, deep, harmless, listing, make_odd, often, refusal, times, tricks
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from stopped_run import FILES, NEWEST, OLDER, index_of, newest, resume, seal, use

import remuda
from remuda.runs import checkpoint
from remuda.runs.checkpoint import CHECKPOINTS, INDEX
from remuda.runs.film import trained_bindings

INDEXES = {
    "deep": deep(),
    "not quite so deep": '{"format": 1, "files": ' + deep(900) + "}",
    "a list": "[]",
    "null": "null",
    "a long number": '{"format": 1, "files": {}, "rounds": ' + "9" * 4000 + "}",
    "too long a number": '{"format": 1, "files": {}, "rounds": ' + "9" * 5000 + "}",
    "twice": '{"format": 1, "format": 1, "files": {}, "files": {}}',
    "long": " " * (checkpoint.MAX_INDEX_BYTES + 1) + '{"format": 1, "files": {}}',
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_odd_index_is_refused(copies: Any, name: str) -> None:
    with copies() as run:
        (newest(run) / INDEX).write_text(INDEXES[name])
        assert all(use(run))


@pytest.mark.parametrize("levels", [10, 100, 900])
def test_a_deep_fact_is_refused(copies: Any, half: Path, levels: int) -> None:
    with copies() as run:
        facts = index_of(half)
        facts["recorder"]["evaluation"] = {"total_return": json.loads(deep(levels))}
        seal(newest(run), facts)
        assert all(use(run))


@pytest.mark.parametrize(
    "trick", ["../../../outside/policy.safetensors", "/etc/passwd", "..", "", "a\0b", "\ud800", "x" * 999]
)
def test_an_index_that_names_other_files(copies: Any, half: Path, trick: str) -> None:
    with copies() as run:
        facts = index_of(half)
        facts["files"][trick] = hashlib.sha256(b"mine").hexdigest()
        seal(newest(run), facts)
        said = use(run)
        assert said[0] is not None
        assert OLDER in said[0]
        assert said[2] == said[0]


@pytest.mark.parametrize("file", ["learner.safetensors", "policy.safetensors", "acting.safetensors"])
def test_an_index_that_leaves_a_file_out(copies: Any, half: Path, file: str) -> None:
    with copies() as run:
        facts = index_of(half)
        del facts["files"][file]
        seal(newest(run), facts)
        assert any(use(run))


@pytest.mark.parametrize(
    "facts",
    [
        {"format": 1}, {"format": "2"}, {"format": None}, {"files": []}, {"plan": "[]"}, {"players": ["iqn", "iqn"]},
        {"agents": 50}, {"episodes": -6}, {"loop": {"rounds": 2**62}}, {"loop": {"published": 2**63 - 1}}, {"loop": []},
        {"collectors": {"wall_s": float("nan")}}, {"collectors": {"cpu_s": 1e400}}, {"recorder": {"best": "x"}},
        {"recorder": {"agent_steps": 10**400}}, {"recorder": {"evaluation": 5}}, {"loop": {"settled": 4}},
        {"failures": {"played": -1}}, {"trainers": {"lags": [[1]]}}, {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_of_something_else_is_refused(copies: Any, half: Path, facts: dict[str, Any]) -> None:
    with copies() as run:
        index = index_of(half)
        for name, value in facts.items():
            index[name] = {**index[name], **value} if isinstance(value, dict) else value
        seal(newest(run), index)
        assert resume(run) is not None
        assert resume(run, OLDER) is None


@times(8, 500)
def test_no_name_leads_out_of_the_run(copies: Any, count: int) -> None:
    @often(count)
    @given(
        tricks
        | st.text(max_size=10)
        | st.sampled_from(["../../outside/000000099", "../checkpoints/" + OLDER, "²", "٣"])
    )
    def check(name: str) -> None:
        with copies() as run:
            shutil.copytree(newest(run), run.parent / "elsewhere" / NEWEST)
            before = listing(run.parent / "elsewhere")
            for own in (name, f"../../elsewhere/{NEWEST}", f"../../elsewhere/{NEWEST}/../{NEWEST}"):
                if not own or own == "best":
                    continue
                found = refusal(lambda own=own: remuda.Run(run).checkpoint(own))
                assert found is not None
                assert NEWEST in found
                assert refusal(lambda own=own: trained_bindings(remuda.Run(run), own)) == found or own == name
                assert resume(run, own) is not None
            assert listing(run.parent / "elsewhere") == before

    check()


PLACES = [
    "config.yaml", "metrics.csv", "evaluations.csv", "system.csv", "result.json", "console.log", ".lock", "tensorboard",
    "herd.gif", "best", "failures", CHECKPOINTS, f"{CHECKPOINTS}/{NEWEST}", f"{CHECKPOINTS}/{OLDER}",
    f"{CHECKPOINTS}/000000099", f"{CHECKPOINTS}/.000000099.old", f"{CHECKPOINTS}/.000000008.draft",
    *(f"{CHECKPOINTS}/{NEWEST}/{file}" for file in FILES), f"{CHECKPOINTS}/{NEWEST}/more",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_of_the_run_is_refused(copies: Any, place: str, kind: str) -> None:
    """A link could let a run write elsewhere, or delete there; a pipe could let it wait for ever."""
    with copies() as run:
        outside = run.parent / "outside"
        is_folder = (run / place).is_dir() or Path(place).suffix == ""
        make_odd(run / place, kind, outside if is_folder else outside / "precious")
        assert all(use(run))
        assert resume(run, OLDER) is not None


def test_a_pipe_among_the_files_of_a_checkpoint_is_no_hang(half: Path, tmp_path: Path) -> None:
    """Also where nobody looked at the whole run first."""
    for file in FILES:
        folder = tmp_path / file
        shutil.copytree(half / CHECKPOINTS / NEWEST, folder)
        make_odd(folder / file, "pipe", tmp_path)
        with harmless(tmp_path / "outside"):
            assert not checkpoint.intact(folder)
            for name in ("learner", "policy", "acting"):
                if file in (INDEX, f"{name}.safetensors"):
                    assert refusal(lambda name=name, folder=folder: checkpoint.read(folder, name)) is not None


@pytest.mark.parametrize(
    "content", ["", "[]", "7", "{}", '{"finished": 1}', "{", deep(), '{"finished": ' + "9" * 5000 + "}"]
)
def test_a_damaged_result_is_written_anew(copies: Any, content: str) -> None:
    with copies() as run:
        (run / "result.json").write_text(content)
        assert refusal(lambda: remuda.Run(run).result) is not None
        assert not remuda.Run(run).finished
        assert resume(run) is None
        assert remuda.Run(run).result["episodes"] == 8


@times(25, 500)
def test_any_config_in_a_run_is_read_or_refused(copies: Any, half: Path, count: int) -> None:
    whole = yaml.safe_load((half / "config.yaml").read_text())

    @often(count)
    @given(altered(whole).map(yaml.safe_dump) | damaged((half / "config.yaml").read_bytes()))
    def check(content: str | bytes) -> None:
        with copies() as run:
            (run / "config.yaml").write_bytes(
                content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            )
            refusal(lambda: remuda.Run(run).parts)

    check()


@pytest.mark.parametrize("size", [10**5, 10**7, 2**62])
def test_networks_that_no_machine_can_hold_are_one_sentence(copies: Any, size: int) -> None:
    with copies() as run:
        plan = yaml.safe_load((run / "config.yaml").read_text())
        plan["learner_options"]["iqn"]["layer"] = size
        (run / "config.yaml").write_text(yaml.safe_dump(plan))
        assert refusal(lambda: trained_bindings(remuda.Run(run))) is not None


def test_a_herd_that_is_too_small_to_be_frozen(half: Path) -> None:
    run = remuda.Run(half)
    group = run.spec.groups[0]
    assert refusal(lambda: run.policy(range(2, 5), group, "cpu")) is not None


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "nan": lambda folder: spoil(folder),
    "deep": lambda folder: (folder / INDEX).write_text(deep()),
    "pipe": lambda folder: make_odd(folder / "policy.safetensors", "pipe", folder),
    "link": lambda folder: make_odd(folder / "policy.safetensors", "link", Path("/etc/passwd")),
    "two lines": lambda folder: seal(folder, {**json.loads((folder / INDEX).read_text()), "files": {"a\nb": "c\nd"}}),
    "not ours": lambda folder: (folder / INDEX).write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
}


def spoil(folder: Path) -> None:
    """Weights that are no numbers, with checksums that are right."""
    for file in FILES[1:]:
        arrays = {key: array.copy() for key, array in load_file(folder / file).items()}
        for array in arrays.values():
            if array.dtype.kind == "f":
                array[...] = np.nan
        save_file(arrays, folder / file)
    seal(folder, json.loads((folder / INDEX).read_text()))


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("command", ["evaluate", "resume", "watch"])
def test_commands_say_one_sentence(copies: Any, cli: Any, name: str, command: str) -> None:
    with copies() as run:
        DAMAGES[name](newest(run))
        outcome = cli(command, run)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1
