"""Checkpoints from anywhere are used or refused in one sentence; they execute nothing and reach nothing outside."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hostile import HUGE, altered, damaged, deep, harmless, listing, make_odd, often, plain, refusal, times, tricks
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import remuda
from remuda.runs import checkpoint
from remuda.runs.checkpoint import CHECKPOINTS, INDEX
from remuda.runs.film import trained_bindings

PLAN: dict[str, Any] = {
    "agents": 1, "turns": 6, "learners": {"0": "iqn", "1-2": "ppo"}, "worlds": 2, "total_episodes": 12, "lag": 1,
    "layer": 8, "quantiles": 2, "acting_quantiles": 2, "iqn.frames": 2, "batch_size": 4, "replay_size": 32,
    "layers": [8], "minibatches": 2, "checkpoint_every": 2, "keep_checkpoints": 3, "evaluate_every": 4,
    "evaluate_episodes": 2, "deterministic": True, "device": "cpu", "pictures": False,
}  # fmt: skip
NEWEST, OLDER = "000000006", "000000004"
FILES = (INDEX, "learner.safetensors", "policy.safetensors", "acting.safetensors")
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "C64", "F8_E5M2", "F4", "OBJECT", "", "U64"]


def last_round(rows: list[dict[str, Any]]) -> bool:
    """A callback that ends the run after a round."""
    return False


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped half-way; nobody may alter it."""
    out = tmp_path_factory.mktemp("half") / "run"
    remuda.train("remuda.testing:UNEQUAL", out=out, quiet=True, callbacks=[lambda rows: rows[0]["round"] < 3], **PLAN)
    assert [path.name for path in remuda.Run(out).checkpoints()] == [NEWEST, OLDER, "000000002"]
    assert {path.name for path in (out / CHECKPOINTS / NEWEST).iterdir()} == set(FILES)
    return out


@pytest.fixture
def copies(half: Path, tmp_path: Path) -> Callable[[], Any]:
    """Copies of the run, each for one example, with a neighbour that must not be touched."""
    numbers = numbers_from()

    @contextmanager
    def copy() -> Iterator[Path]:
        folder = tmp_path / str(next(numbers))
        path = folder / "run"
        shutil.copytree(half, path)
        with harmless(folder / "outside"):
            yield path
        shutil.rmtree(folder)

    return copy


def newest(run: Path) -> Path:
    return run / CHECKPOINTS / NEWEST


def seal(folder: Path, index: Any) -> None:
    """Write an index whose checksums are right: whoever made the files made it too."""
    if isinstance(index, dict):
        files = index.get("files")
        if isinstance(files, dict):
            for path in folder.iterdir():
                if path.name in files and path.is_file():
                    files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        index.pop("digest", None)
        index["digest"] = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (folder / INDEX).write_text(json.dumps(index))


def index_of(run: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((newest(run) / INDEX).read_text())
    del index["digest"]
    return index


def resume(run: Path, name: str | None = None) -> str | None:
    """What is said if going on for a round is refused; then nothing may have been altered."""
    before = listing(run / CHECKPOINTS)
    refused = refusal(lambda: remuda.resume(run, checkpoint_name=name, quiet=True, callbacks=[last_round]))
    assert refused is None or listing(run / CHECKPOINTS) == before, "a refused checkpoint changed the run"
    return refused


def use(run: Path) -> list[str | None]:
    """What is said when it is looked for, played with and gone on from."""
    return [
        refusal(lambda: remuda.Run(run).checkpoint()),
        refusal(lambda: trained_bindings(remuda.Run(run))),
        resume(run),
    ]


@times(15, 500)
def test_damaged_files_are_refused(copies: Any, count: int) -> None:
    @often(count)
    @given(st.data(), st.sampled_from(FILES))
    def check(data: st.DataObject, name: str) -> None:
        with copies() as run:
            file = newest(run) / name
            good = file.read_bytes()
            bad = data.draw(damaged(good))
            file.write_bytes(bad)
            said = refusal(lambda: remuda.Run(run).checkpoint())
            assert said is not None or bad == good or name == INDEX
            assert said is None or f"use --checkpoint {OLDER}" in said
            refusal(lambda: trained_bindings(remuda.Run(run)))
            if said:
                assert resume(run) == said

    check()


@times(15, 500)
def test_made_up_arrays_are_used_or_refused(copies: Any, count: int) -> None:
    """Their checksums are right; their headers are not."""

    @often(count)
    @given(st.data(), st.sampled_from(FILES[1:]))
    def check(data: st.DataObject, name: str) -> None:
        with copies() as run:
            file = newest(run) / name
            file.write_bytes(data.draw(made_up(file.read_bytes())))
            seal(newest(run), index_of(run))
            stem = name.removesuffix(".safetensors")
            refused = refusal(lambda: checkpoint.read(newest(run), stem))
            said = use(run)
            assert refused is None or any(said)

    check()


@st.composite
def made_up(draw: st.DrawFn, content: bytes) -> bytes:
    """A file whose header tells lies about what follows."""
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    kind = draw(st.sampled_from(["dtype", "shape", "offsets", "name", "any", "bytes", "length", "body"]))
    if kind == "bytes":
        return draw(damaged(content))
    if kind == "body":
        return content[: 8 + length] + draw(damaged(body))
    own = header[draw(st.sampled_from(sorted(header)))]
    if kind == "dtype":
        own["dtype"] = draw(st.sampled_from(DTYPES))
    elif kind == "shape":
        sizes = st.sampled_from([0, 1, 2, *HUGE]) | st.integers(0, 100)
        own["shape"] = draw(st.permutations(own["shape"]) | st.lists(sizes, max_size=4))
    elif kind == "offsets":
        own["data_offsets"] = draw(st.lists(st.integers(0, len(body)) | st.sampled_from(HUGE), min_size=2, max_size=2))
    elif kind == "name":
        header[draw(tricks | st.text(max_size=5))] = own
    elif kind == "any":
        header = draw(altered(header))
    text = json.dumps(header).encode()
    size = draw(st.integers(0, 2**64 - 1)) if kind == "length" else len(text)
    return struct.pack("<Q", size) + text + body


HEADERS = {
    "an empty array of impossible size": {"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
    "an empty array of many axes": {"a": {"dtype": "F32", "shape": [0] * 100, "data_offsets": [0, 0]}},
    "a shape that overflows to nothing": {"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
    "a name of two lines": {"a\nb": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}},
    "nothing": {},
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("file", FILES[1:])
def test_headers_that_lie_are_refused(copies: Any, name: str, file: str) -> None:
    with copies() as run:
        text = json.dumps(HEADERS[name]).encode()
        (newest(run) / file).write_bytes(struct.pack("<Q", len(text)) + text)
        seal(newest(run), index_of(run))
        assert any(use(run))


BAD_NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize("file", FILES[1:])
def test_numbers_that_are_none_are_refused_wherever_they_stand(copies: Any, file: str, number: str) -> None:
    with copies() as run:
        whole = load_file(newest(run) / file)
        for key in [key for key, array in whole.items() if array.dtype.kind == "f" and array.size]:
            arrays = {**whole, key: whole[key].copy()}
            arrays[key].flat[-1] = BAD_NUMBERS[number]
            save_file(arrays, newest(run) / file)
            seal(newest(run), index_of(run))
            said = refusal(lambda: checkpoint.read(newest(run), file.removesuffix(".safetensors")))
            assert said is not None, f"{key} of {file} may be {number}"
            assert "not finite" in said
        assert refusal(lambda: trained_bindings(remuda.Run(run))) if "policy" in file else resume(run)


@times(15, 500)
def test_arrays_of_other_kinds_are_used_or_refused(copies: Any, count: int) -> None:
    """With checksums that are right; anything that is taken must also be good for a round."""

    @often(count)
    @given(st.data(), st.sampled_from(FILES[1:]))
    def check(data: st.DataObject, file: str) -> None:
        with copies() as run:
            arrays = load_file(newest(run) / file)
            key = data.draw(st.sampled_from(sorted(arrays)))
            other = data.draw(another(arrays[key]))
            arrays.pop(key)
            if other is not None:
                arrays[key] = np.ascontiguousarray(other)
            save_file(arrays, newest(run) / file)
            seal(newest(run), index_of(run))
            said = use(run)
            assert other is not None or any(said), f"{key} of {file} is not missed"

    check()


IMPOSSIBLE = {
    "negative steps": ("0/steps", -1),
    "too many updates": ("0/updates", 2**60),
    "passes that overflow": ("1/passes", 2**63 - 1),
    "an action below the first": ("0/replay.actions", -1),
    "an action beyond the last": ("0/replay.actions", 2**31 - 1),
    "steps of another type": ("0/steps", np.zeros(1, np.int32)),
    "updates of another type": ("1/updates", np.zeros(1, np.float32)),
    "agents one too many": ("0/target", np.zeros((2, 3), np.float32)),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_numbers_are_refused(copies: Any, name: str) -> None:
    """With checksums that are right."""
    key, value = IMPOSSIBLE[name]
    with copies() as run:
        arrays = dict(load_file(newest(run) / FILES[1]))
        assert key in arrays
        if isinstance(value, int):
            arrays[key] = arrays[key].copy()
            arrays[key].flat[0] = value
        else:
            arrays[key] = value
        save_file(arrays, newest(run) / FILES[1])
        seal(newest(run), index_of(run))
        assert resume(run) is not None


@st.composite
def another(draw: st.DrawFn, array: Any) -> Any:
    """Another array in the place of this one, or none."""
    kind = draw(st.sampled_from(["gone", "longer", "shorter", "flat", "deeper", "scalar", "number"]))
    if kind == "gone" or not array.size:
        return None
    if kind == "number" and array.dtype.kind in "iu":
        other, limits = array.copy(), np.iinfo(array.dtype)
        sizes = st.sampled_from([limits.min, limits.max, 0, 1, 100]) | st.integers(limits.min, limits.max)
        other.flat[draw(st.integers(0, array.size - 1))] = draw(sizes)
        return other
    made = {
        "longer": lambda: np.repeat(array, 2, axis=0),
        "shorter": lambda: array[:-1],
        "flat": lambda: array.reshape(-1),
        "deeper": lambda: array[None],
        "scalar": lambda: array.flat[0:1],
        "number": lambda: array * 0,
    }
    return made[kind]()


@times(15, 500)
def test_altered_facts_are_used_or_refused(copies: Any, half: Path, count: int) -> None:
    facts = index_of(half)

    @often(count)
    @given(altered(facts))
    def check(index: Any) -> None:
        with copies() as run:
            seal(newest(run), json.loads(json.dumps(index)))
            use(run)

    check()


@times(15, 500)
def test_one_altered_fact_is_used_or_refused(copies: Any, half: Path, count: int) -> None:
    facts = index_of(half)

    @often(count)
    @given(st.sampled_from(sorted(facts)), plain | st.lists(plain, max_size=3))
    def check(name: str, value: Any) -> None:
        with copies() as run:
            seal(newest(run), {**facts, name: value})
            use(run)

    check()


INDEXES = {
    "deep": deep(),
    "not quite so deep": '{"format": 1, "files": ' + deep(900) + "}",
    "a list": "[]",
    "null": "null",
    "a long number": '{"format": 1, "files": {}, "rounds": ' + "9" * 4000 + "}",
    "too long a number": '{"format": 1, "files": {}, "rounds": ' + "9" * 5000 + "}",
    "twice": '{"format": 1, "format": 1, "files": {}, "files": {}}',
    "long": " " * (checkpoint.MOST_INDEX_BYTES + 1) + '{"format": 1, "files": {}}',
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
