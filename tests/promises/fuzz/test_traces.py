"""Traces from any source are verified or refused in one sentence; nothing in them is executed or unpacked to disk."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import HUGE, damaged, frugal, harmless, often, refusal, times
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from remuda.games import trace_files
from remuda.games.cage2.network import EXPLOITS, N_ACTIONS, N_HOSTS, SUBNETS
from remuda.games.cage2.state import IMPACT, NONE, REST, SCAN, SWEEP
from remuda.games.cage2.traces import INPUTS, NAME_FIELDS, OUTPUTS, START, read_trace
from remuda.games.cage2.verify import verify

TRACES = Path(__file__).parents[2] / "data" / "cage2"
FIELDS = [*INPUTS, *OUTPUTS, *START, *NAME_FIELDS, "seeds"]
Arrays = dict[str, Any]


def real(episodes: int = 2, steps: int = 6) -> Arrays:
    """The beginning of a recorded trace."""
    with np.load(TRACES / "leaderboard/meander__random.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name in FIELDS}
    shorter = {name: array[:episodes] if array.ndim else array for name, array in arrays.items()}
    return {name: a[:, :steps] if a.ndim >= 2 and name not in START else a for name, a in shorter.items()}


def npy(array: Any, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), (3, 0), allow_pickle)
    return file.getvalue()


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return file.getvalue()


def members() -> dict[str, bytes]:
    return {f"{name}.npy": npy(array) for name, array in real().items()}


@contextmanager
def trace(folder: Path, content: bytes) -> Iterator[Path]:
    """A trace in its own folder, next to a folder that must not be touched."""
    own = folder / "traces"
    own.mkdir(exist_ok=True)
    (own / "trace.npz").write_bytes(content)
    with harmless(folder / "outside"):
        yield own
    assert [path.name for path in own.iterdir()] == ["trace.npz"], "something was unpacked"


def try_trace(folder: Path, content: bytes) -> str | None:
    with trace(folder, content) as own:
        return refusal(lambda: verify(own))


def test_a_real_trace_is_verified(tmp_path: Path) -> None:
    with trace(tmp_path, packed(members())) as own:
        assert verify(own).good


@times(40, 2000)
def test_damaged_files(tmp_path: Path, count: int) -> None:
    good = packed({name: content for name, content in members().items() if "obs" not in name})

    @often(count)
    @given(damaged(good) | damaged(good).map(lambda content: content + good[-22:]))
    def check(content: bytes) -> None:
        try_trace(tmp_path, content)

    check()


@times(40, 2000)
def test_damaged_arrays(tmp_path: Path, count: int) -> None:
    """The archive is intact, one of its arrays is not."""
    good = members()

    @often(count)
    @given(st.data(), st.sampled_from(sorted(good)))
    def check(data: st.DataObject, name: str) -> None:
        bad = data.draw(damaged(good[name]) | damaged(good[name][:128]).map(lambda head: head + good[name][128:]))
        try_trace(tmp_path, packed({**good, name: bad}))

    check()


def header(text: bytes, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", size) + text


DESCRIPTIONS = [
    "|u1", "<i8", ">i8", "<f4", "|b1", "|O", "O", "<U5", "|S5", "|V0", "|V9", "<U0", "<c16", "<f2", "<f16", "<M8[s]",
    [("a", "|u1")], [("a", "|O")], [("a", "|u1", (2**31,))], "|u1,|u1", "nonsense", "", None, 3, ("|u1", (2,)), [],
    "|V2000000000", "<U500000000",
]  # fmt: skip
SIZES = st.integers(-2, 5) | st.sampled_from([2**33, 2**40, *HUGE])


@times(40, 2000)
def test_wrong_headers(tmp_path: Path, count: int) -> None:
    good = members()
    shapes = st.lists(SIZES, max_size=4).map(tuple) | st.just((2, 6)) | st.sampled_from([None, 3, "x", (1.5,), ("a",)])
    headers = st.builds(
        lambda descr, order, shape, more: repr({"descr": descr, "fortran_order": order, "shape": shape, **more}),
        st.sampled_from(DESCRIPTIONS), st.sampled_from([False, True, None, 5]), shapes,
        st.sampled_from([{}, {}, {"x": 1}]),
    )  # fmt: skip
    texts = headers | st.sampled_from(
        ["{", "[" * 5000, "{}", "__import__('os').system('true')", "x" * 20_000, "9" * 9000]
    )
    sizes = st.none() | st.integers(0, 2**16 - 1)

    @often(count)
    @given(
        st.sampled_from(FIELDS), texts, st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]), sizes, st.binary(max_size=99)
    )
    def check(name: str, text: str, version: tuple[int, int], size: int | None, body: bytes) -> None:
        content = header(text.encode() + b"\n", version, size) + body if len(text) < 2**16 else body
        try_trace(tmp_path, packed({**good, f"{name}.npy": content}))

    check()


@times(40, 2000)
def test_arrays_of_other_kinds(tmp_path: Path, count: int) -> None:
    good = members()
    kinds = arrays_of.scalar_dtypes() | arrays_of.unicode_string_dtypes() | arrays_of.byte_string_dtypes()
    kinds |= arrays_of.array_dtypes()
    shapes = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
    real_shapes = st.sampled_from(sorted({array.shape for array in real().values()}))

    @often(count)
    @given(st.sampled_from(FIELDS), arrays_of.arrays(kinds, real_shapes | shapes))
    def check(name: str, array: Any) -> None:
        try_trace(tmp_path, packed({**good, f"{name}.npy": npy(array)}))

    check()


@times(40, 2000)
def test_other_numbers(tmp_path: Path, count: int) -> None:
    """Arrays of the right shape and kind with other values: a mismatch, or out of range."""
    good, whole = members(), real()
    numbered = [name for name in FIELDS if name in whole and whole[name].dtype.kind in "uibf"]

    @often(count)
    @given(st.data(), st.sampled_from(numbered))
    def check(data: st.DataObject, name: str) -> None:
        kind = data.draw(
            st.sampled_from([whole[name].dtype, np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.int8)])
        )
        array = data.draw(arrays_of.arrays(whole[name].dtype if name == "reward" else kind, whole[name].shape))
        try_trace(tmp_path, packed({**good, f"{name}.npy": npy(array)}))

    check()


class Evil:
    """Runs a command if it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("name", ["obs", "red", "seeds", "reward", "blue_action"])
def test_pickles_are_not_opened(tmp_path: Path, name: str) -> None:
    evil = Evil(tmp_path / "outside" / "executed")
    as_array = npy(np.array(evil, object), allow_pickle=True)
    for content in (
        packed({**members(), f"{name}.npy": as_array}),
        packed({**members(), f"{name}.npy": pickle.dumps(evil)}),
        packed({**members(), name: pickle.dumps(evil)}),
        pickle.dumps(evil),
        as_array,
    ):
        assert try_trace(tmp_path, content) is not None


@pytest.mark.parametrize(
    "name", ["../../outside/evil.npy", "/tmp/evil.npy", "..\\x.npy", "obs.npy/", "", "x" * 9999, "\x00"]
)
def test_paths_in_an_archive_are_ignored(tmp_path: Path, name: str) -> None:
    content = packed({**members(), name.replace("/tmp", str(tmp_path / "outside")): npy(np.zeros(3))})
    assert try_trace(tmp_path, content) is None


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    for name in ("red", "variant", "seeds", "blue_action", "obs", "obs0", "reward", "decoys"):
        said = try_trace(tmp_path, packed({**members(), f"{name}.npy": b"just bytes"}))
        assert said is not None
        assert name in said


def bomb(claim: int | None) -> bytes:
    """Eight million zeros, compressed a thousandfold; the archive may claim fewer or more."""
    size = 8 << 20
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("obs.npy", "w") as member:
        member.write(npy(np.zeros(0, np.uint8)).replace(b"(0,)", b"(%d,)" % size))
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    content = file.getvalue()
    if claim is not None:
        info = zipfile.ZipFile(io.BytesIO(content)).infolist()[0]
        content = content.replace(struct.pack("<I", info.file_size), struct.pack("<I", claim))
    return content


@pytest.mark.parametrize("claim", [None, 0, 100, 4 << 20, 2**31 - 1, 2**32 - 2])
def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: int | None) -> None:
    monkeypatch.setattr(trace_files, "MAX_BYTES", 5 << 20)
    content = bomb(claim)
    with frugal():
        assert try_trace(tmp_path, content) is not None


def test_unknown_members_are_ignored(tmp_path: Path) -> None:
    extra = {f"{number}.npy": b"" for number in range(5000)}
    assert try_trace(tmp_path, packed({**members(), **extra})) is None


def test_the_same_member_twice(tmp_path: Path) -> None:
    file = io.BytesIO(packed(members()))
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("obs.npy", npy(np.zeros((2, 6), object), allow_pickle=True))
    assert try_trace(tmp_path, file.getvalue()) is not None


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "", "x" * 999, "\u2028"])
@pytest.mark.parametrize("field", NAME_FIELDS)
def test_names_must_be_printable_and_short(tmp_path: Path, field: str, name: str) -> None:
    """Names are printed on the terminal."""
    assert try_trace(tmp_path, packed({**members(), f"{field}.npy": npy(np.array(name))})) is not None


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"\x80\x04.", b"\x93NUMPY", bytes(1000)])
def test_the_command_prints_one_sentence(cli: Any, tmp_path: Path, content: bytes) -> None:
    with trace(tmp_path, content) as own:
        outcome = cli("verify", "cage2", own)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: trace ")
    assert outcome.err.count("\n") == 1


def unlikely(rng: np.random.Generator, episodes: int, steps: int) -> Arrays:
    """A trace that passes every check, although no game could have produced it."""
    shape = (episodes, steps)
    arrays: Arrays = {name: rng.integers(0, 256, (*shape, *rest), np.uint8) for name, rest in OUTPUTS.items()}
    arrays["reward"] = rng.normal(size=shape)
    arrays |= {name: np.zeros((episodes, 52), np.uint8) for name in START}
    red = rng.integers(REST, IMPACT + 1, shape)
    target = rng.integers(0, np.where(red == SWEEP, len(SUBNETS), N_HOSTS))
    green = rng.integers(0, 2, shape)

    def either(limit: int) -> Any:
        return np.where(rng.random(shape) < 0.2, NONE, rng.integers(0, limit, shape))

    return arrays | {
        "blue_action": rng.integers(0, N_ACTIONS, shape),
        "red_action": red,
        "red_target": np.where(red == REST, NONE, target),
        "exploit": either(1 + len(EXPLOITS)),
        "detect": either(2),
        "pe_choice": either(NONE),
        "pe_n": rng.integers(0, NONE + 1, shape),
        "green_action": green,
        "green_target": np.where(green == 0, NONE, rng.integers(0, N_HOSTS, shape)),
        "red": np.array(rng.choice(["b_line", "meander", "sleep"])),
        "variant": np.array(rng.choice(["head", "leaderboard"])),
    }


def test_no_trace_that_passes_the_checks_causes_an_index_error(tmp_path: Path) -> None:
    """The rules run as plain Python, where an index out of bounds raises instead of reading other memory."""
    for seed in range(5):
        arrays = unlikely(np.random.default_rng(seed), 2, 40)
        np.savez(tmp_path / f"{seed}.npz", **arrays)
        assert read_trace(tmp_path / f"{seed}.npz").steps == 40
    assert SCAN > SWEEP
    done = subprocess.run(
        [sys.executable, "-m", "remuda", "verify", "cage2", tmp_path],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "10 episodes, 400 steps checked" in done.stdout
    assert "Error" not in done.stderr
