"""Arrays and facts of a checkpoint that were altered are used or refused in one sentence."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import HUGE, altered, damaged, often, plain, refusal, times, tricks
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from stopped_run import DTYPES, FILES, OLDER, index_of, newest, resume, seal, use

import remuda
from remuda.runs import checkpoint
from remuda.runs.checkpoint import INDEX
from remuda.runs.film import trained_bindings


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
