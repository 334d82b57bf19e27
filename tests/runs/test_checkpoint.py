"""Checkpoints are whole or not there, checked before they are used, and never executed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core.errors import CheckpointError, StorageError
from remuda.runs import checkpoint

SOURCES = Path(remuda.__file__).parent
GOOD, NEWEST = "000000009", "000000012"


class Crash(BaseException):
    """The process dies here: nothing may be tidied up afterwards."""


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], list[int]]:
    """Let the n-th thing that touches the disk raise; the list returned holds the count."""

    def arm(step: int, error: BaseException) -> list[int]:
        count = [0]

        def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                count[0] += 1
                if count[0] == step:
                    raise error
                return real(*args, **kwargs)

            return call

        monkeypatch.setattr(checkpoint, "save_file", wrap(checkpoint.save_file))
        monkeypatch.setattr(os, "fsync", wrap(os.fsync))
        for name in ("rename", "replace", "write_text", "mkdir"):
            monkeypatch.setattr(Path, name, wrap(getattr(Path, name)))
        return count

    return arm


def write(path: Path, value: float) -> None:
    arrays = {"a": np.full(4, value, np.float32)}
    checkpoint.write(path, {"learner": arrays, "policy": arrays}, {"value": value})


def attempt(path: Path, value: float) -> BaseException | None:
    """Write, and return what went wrong."""
    try:
        write(path, value)
    except (Crash, StorageError) as error:
        return error
    return None


def value_of(path: Path) -> float:
    """The value in every file of a checkpoint, which must be one and the same."""
    assert checkpoint.intact(path)
    values = {float(v) for name in ("learner", "policy") for v in checkpoint.read(path, name)["a"]}
    assert values == {checkpoint.read_index(path)["value"]}
    return values.pop()


STEPS = range(1, 13)
FAR = 1000  # beyond the step that breaks


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "b/c": np.array([True, False]), "d": np.zeros((0, 3), np.uint8)}
    checkpoint.write(tmp_path / "c", {"learner": arrays}, {"rounds": 3})
    assert checkpoint.read_index(tmp_path / "c")["rounds"] == 3
    back = checkpoint.read(tmp_path / "c", "learner")
    assert {name: (a.dtype, a.tolist()) for name, a in back.items()} == {
        name: (a.dtype, a.tolist()) for name, a in arrays.items()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_a_whole_checkpoint(tmp_path: Path, breaking: Any, step: int) -> None:
    path = tmp_path / "best"
    write(path, 1.0)
    count = breaking(step, Crash())
    assert isinstance(attempt(path, 2.0), Crash) or count[0] < step, "the crash was swallowed"
    count[0] = FAR
    assert value_of(path) in (1.0, 2.0)
    write(path, 3.0)
    assert value_of(path) == 3.0
    assert [entry.name for entry in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_error_at_any_step_leaves_a_whole_checkpoint(tmp_path: Path, breaking: Any, step: int) -> None:
    path = tmp_path / "best"
    write(path, 1.0)
    count = breaking(step, OSError(28, "No space left on device"))
    error = attempt(path, 2.0)
    if count[0] >= step:
        assert isinstance(error, StorageError)
        assert re.fullmatch(r"checkpoint .*best could not be written \(the disk is full\).*untouched", str(error))
    count[0] = FAR
    assert value_of(path) in (1.0, 2.0)


def test_nothing_is_cut_by_too_few_steps(tmp_path: Path, breaking: Any) -> None:
    count = breaking(0, Crash())
    write(tmp_path / "best", 1.0)
    write(tmp_path / "best", 2.0)
    assert count[0] <= 2 * len(STEPS), "raise STEPS: not every step is tried"


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def flip_digit(path: Path) -> None:
    """Alter a number so that the JSON stays valid."""
    text = path.read_text()
    altered = re.sub(r'("agent_steps": )(\d)', lambda m: f"{m[1]}{(int(m[2]) + 1) % 9 + 1}", text)
    assert altered != text
    path.write_text(altered)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


INDEX = checkpoint.INDEX
DAMAGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "learner flipped": ("learner.safetensors", flip),
    "learner header flipped": ("learner.safetensors", lambda path: flip(path, 0.0)),
    "policy flipped": ("policy.safetensors", flip),
    "learner cut short": ("learner.safetensors", cut_short),
    "learner empty": ("learner.safetensors", lambda path: path.write_bytes(b"")),
    "learner missing": ("learner.safetensors", Path.unlink),
    "policy missing": ("policy.safetensors", Path.unlink),
    "index missing": (INDEX, Path.unlink),
    "index cut short": (INDEX, cut_short),
    "index empty": (INDEX, lambda path: path.write_text("")),
    "index a list": (INDEX, lambda path: path.write_text("[1, 2]")),
    "index foreign": (INDEX, lambda path: path.write_text('{"hello": 1}')),
    "index not text": (INDEX, lambda path: path.write_bytes(b"\xff\xfe\x00")),
    "index deep": (INDEX, deep),
    "index number altered": (INDEX, flip_digit),
    "index lists no files": (
        INDEX, lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "files": {}})),
    ),
    "index of a later format": (
        INDEX, lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99})),
    ),
}  # fmt: skip


def shell(script: str, *arguments: str | Path, wrap: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a shell script with `$0` the interpreter and `$1…` the arguments."""
    command = [*wrap, "sh", "-c", script, sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def assert_one_sentence(done: subprocess.CompletedProcess[str], match: str) -> None:
    last = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr, done.stderr
    assert re.search(match, last), done.stderr
    assert last.startswith("error: ")


def everything_but(run: remuda.Run, name: str) -> dict[str, bytes]:
    """All files of a run besides one checkpoint and what every attempt writes."""
    files = [path for path in run.path.rglob("*") if path.is_file() and path.name not in (".lock", "console.log")]
    kept = {str(path.relative_to(run.path)): path.read_bytes() for path in files if name not in path.parts}
    return {name: content for name, content in kept.items() if not name.startswith("tensorboard")}


def assert_refused(run: remuda.Run, match: str, name: str | None = None) -> str:
    """Resuming gives one sentence and changes nothing."""
    before = everything_but(run, NEWEST)
    with pytest.raises(CheckpointError, match=match) as refusal:
        remuda.resume(run.path, checkpoint_name=name, quiet=True)
    assert "\n" not in str(refusal.value)
    assert everything_but(run, NEWEST) == before, "a refused checkpoint changed the run"
    return str(refusal.value)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(
    trained: Any, copy_of: Any, csv_rows: Any, name: str
) -> None:
    whole = trained()
    run = copy_of(whole)
    (run.path / "result.json").unlink()
    file, damage = DAMAGES[name]
    damage(run.path / "checkpoints" / NEWEST / file)
    assert_refused(run, f"the last good one is {GOOD}: use --checkpoint {GOOD}")
    again = remuda.resume(run.path, checkpoint_name=GOOD, quiet=True)
    assert again.result["weights_sha256"] == whole.result["weights_sha256"]
    assert csv_rows(again) == csv_rows(whole)


def test_all_checkpoints_damaged(trained: Any, copy_of: Any) -> None:
    run = copy_of(trained())
    for path in run.checkpoints():
        flip(path / "learner.safetensors")
    assert_refused(run, "none is left")


@pytest.mark.parametrize("name", ["000000004", "nonsense", "../../elsewhere"])
def test_a_checkpoint_that_is_not_there(trained: Any, copy_of: Any, name: str) -> None:
    assert_refused(copy_of(trained()), f"the last good one is {NEWEST}", name)


def test_the_best_checkpoint_is_for_playing_not_for_going_on(trained: Any, copy_of: Any) -> None:
    """It holds weights only."""
    assert_refused(copy_of(trained()), "best", "best")


COUNTS = {"loop.rounds": 3, "episodes": 9, "loop.settled": 3, "loop.published": 3}


def put(index: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The index with other values, under names such as loop.rounds."""
    index = json.loads(json.dumps(index))
    for name, value in values.items():
        *path, last = name.split(".")
        place = index
        for part in path:
            place = place[part]
        place[last] = value
    return index


def remake(run: remuda.Run, learner: Callable[[dict[str, Any]], Any], facts: Mapping[str, Any] | None = None) -> None:
    """Write the newest checkpoint anew, altered, with checksums that are right."""
    path = run.path / "checkpoints" / NEWEST
    index = checkpoint.read_index(path)
    files = {name.removesuffix(".safetensors"): None for name in index.pop("files")}
    arrays = {name: {n: a.copy() for n, a in checkpoint.read(path, name).items()} for name in files}
    learner(arrays["learner"])
    checkpoint.write(path, arrays, put(index, {**COUNTS, **(facts or {})}))


def keep(arrays: dict[str, Any]) -> None:
    """Alter nothing."""


def test_remaking_alone_is_accepted(trained: Any, copy_of: Any) -> None:
    run = copy_of(trained())
    remake(run, keep)
    assert remuda.resume(run.path, quiet=True).result["finished"]


@pytest.mark.parametrize(
    "facts",
    [
        {"plan": "{}"}, {"plan": "x"}, {"agents": 3}, {"players": ["random"]}, {"loop.rounds": "3"},
        {"loop.rounds": -1}, {"loop.rounds": 10**9}, {"loop.published": None}, {"loop.published": 2},
        {"collectors": 5}, {"more": 1},
        {"recorder.agent_steps": "many"}, {"recorder.best": "good"}, {"failures.attempts": [["train", 1]]},
    ],
    ids=str,
)  # fmt: skip
def test_facts_that_do_not_fit_are_refused(trained: Any, copy_of: Any, facts: dict[str, Any]) -> None:
    run = copy_of(trained())
    remake(run, keep, facts)
    assert_refused(run, NEWEST)


@pytest.mark.parametrize("facts", [{"loop": None}, {"loop.rounds": "many"}, {"loop.rounds": None}], ids=str)
def test_facts_that_do_not_fit_are_refused_when_a_run_is_extended(
    trained: Any, copy_of: Any, facts: dict[str, Any]
) -> None:
    run = copy_of(trained())
    remake(run, keep, facts)
    with pytest.raises(CheckpointError, match=f"{NEWEST} cannot be resumed: its loop"):
        remuda.resume(run.path, total_episodes=10**6, quiet=True)


def not_finite(arrays: dict[str, Any]) -> None:
    arrays["0/weights"][1, 5] = np.nan


def too_narrow(arrays: dict[str, Any]) -> None:
    arrays["0/target"] = arrays["0/target"][:, :-1].copy()


def one_row(arrays: dict[str, Any]) -> None:
    arrays["0/weights"] = arrays["0/weights"][:1].copy()


def without_optimiser(arrays: dict[str, Any]) -> None:
    del arrays["0/adam.mean"]


def a_larger_memory(arrays: dict[str, Any]) -> None:
    arrays["0/replay.obs"] = arrays["0/replay.obs"].repeat(2, axis=1)


def stretches_beyond_the_end(arrays: dict[str, Any]) -> None:
    arrays["0/replay.lengths"][:, 0] = 1 << 30


def a_head_beyond_the_end(arrays: dict[str, Any]) -> None:
    arrays["0/replay.heads"][:] = 1 << 40


def a_lead_that_wraps(arrays: dict[str, Any]) -> None:
    arrays["0/replay.leads"][arrays["0/replay.lengths"] > 0] = (1 << 31) - 1


@pytest.mark.parametrize(
    "alter", [not_finite, too_narrow, one_row, without_optimiser, a_larger_memory, a_lead_that_wraps]
)
def test_arrays_that_do_not_fit_are_refused(
    trained: Any, copy_of: Any, alter: Callable[[dict[str, Any]], None]
) -> None:
    run = copy_of(trained())
    remake(run, alter)
    assert_refused(run, NEWEST)


@pytest.mark.promise
@pytest.mark.parametrize("alter", [stretches_beyond_the_end, a_head_beyond_the_end])
def test_a_memory_that_points_outside_itself_is_refused(
    trained: Any, copy_of: Any, alter: Callable[[dict[str, Any]], None]
) -> None:
    """In a process of its own: compiled code that believed such a memory would read whatever lies there."""
    run = copy_of(trained())
    remake(run, alter)
    done = shell('exec "$0" -m remuda resume "$1"', run.path)
    assert done.returncode == 2, done.stderr
    assert_one_sentence(done, NEWEST)


def header(entries: Any, length: int | None = None) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


HEADERS = {
    "longer than the file": header({}, 1 << 60),
    "huge array": header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
    "overflowing shape": header({"a": {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]}}) + b"1234",
    "unknown dtype": header({"a": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 4]}}) + b"1234",
    "dtype numpy lacks": header({"a": {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]}}) + b"1234",
    "overlapping arrays": header(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "ab"}
    ) + b"1234",
    "a list": header([1, 2]),
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_made_up_file_is_refused(tmp_path: Path, name: str) -> None:
    """Its checksum is right: whoever made it made the index too."""
    path = tmp_path / "c"
    write(path, 1.0)
    real = (path / "learner.safetensors").read_bytes()
    (path / "learner.safetensors").write_bytes(HEADERS[name])
    index = (path / INDEX).read_text()
    (path / INDEX).write_text(index.replace(_sum(real), _sum(HEADERS[name])))
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.read(path, "learner")
    assert "\n" not in str(refusal.value)


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def stopped_at(train: Any, episodes: int) -> remuda.Run:
    return train(callback=lambda rows: rows[0]["episodes"] < episodes)


def test_a_limit_on_files_is_one_sentence(train: Any, trained: Any) -> None:
    run = stopped_at(train, 6)
    before = checkpoint.read_index(run.checkpoint())
    done = shell('ulimit -f 100; exec "$0" -m remuda resume "$1"', run.path)
    assert done.returncode == 2
    assert_one_sentence(done, "could not be written .*; earlier checkpoints are untouched")
    assert run.checkpoint().name == "000000006"
    assert checkpoint.read_index(run.checkpoint()) == before
    assert not list((run.path / "checkpoints").glob(".*")), "a draft was left"
    assert remuda.resume(run.path, quiet=True).result["weights_sha256"] == trained().result["weights_sha256"]


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return shell('mount -t tmpfs none "$1"', "/mnt", wrap=("unshare", "-rm")).returncode == 0


FULL = """
mount -t tmpfs -o size="$1" none "$2" && cd "$2" || exit 99
out="$3"; shift 3
"$0" -m remuda train "$@" --out run; code=$?
cp -r run "$out" 2>/dev/null
exit $code
"""


@pytest.mark.parametrize("size", [*(pytest.param(size, marks=pytest.mark.slow) for size in ("16k", "48k")), "1500k"])
def test_a_full_disk_is_one_sentence(words: list[str], trained: Any, tmp_path: Path, size: str) -> None:
    """From hardly any room (the metrics fill it) to room for the first checkpoints."""
    if not _can_mount():
        pytest.skip("no permission to make a small disk here")
    empty_fragments = tmp_path / "empty"
    empty_fragments.mkdir()
    kept = tmp_path / "kept"
    done = shell(FULL, size, empty_fragments, kept, *words, "total_episodes=300", wrap=("unshare", "-rm"))
    assert done.returncode == 2, done.stderr
    assert_one_sentence(done, "full|No space left")
    if size == "1500k":
        run = remuda.Run(kept)
        assert checkpoint.intact(run.checkpoint())
        assert remuda.resume(kept, quiet=True, callbacks=[lambda rows: False]).result["episodes"] > 0


def test_nothing_is_unpickled() -> None:
    """Invariant 8, in so far as a scan of the sources can tell."""
    suspects = re.compile(
        r"\b(import|from) (pickle|dill|cloudpickle|shelve|marshal|joblib)\b|torch\.load\b|allow_pickle=True"
        r"|np\.load\((?!.*allow_pickle=False)|yaml\.(load|unsafe_load|full_load)\b|(?<!\.)\beval\(|\bexec\("
    )
    pipes_only = SOURCES / "core" / "session.py"  # objects from Python on their way to a worker; it opens no file
    assert not re.search(r"open\(|read_|write_|\bload\(|\bdump\(", pipes_only.read_text(encoding="utf-8"))
    files = sorted(path for path in SOURCES.rglob("*.py") if path != pipes_only)
    assert len(files) > 20
    found = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if suspects.search(line)
    ]
    assert found == []


def test_removing_what_lies_where_a_checkpoint_was(tmp_path: Path) -> None:
    file, folder, odd = tmp_path / "000000001", tmp_path / "000000002", tmp_path / "000000003"
    file.write_text("no checkpoint")
    write(folder, 1.0)
    (folder / "more" / "deep").mkdir(parents=True)
    (odd / INDEX).mkdir(parents=True)
    for path in (file, folder, odd):
        checkpoint.remove(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["000000003.bak", "000000003.old", "9abc", "0notes"])
def test_what_a_user_puts_beside_checkpoints_is_neither_counted_nor_removed(
    train: Any, tmp_path: Path, name: str
) -> None:
    run = train(keep_checkpoints=2, callback=lambda rows: rows[0]["round"] < 2)
    copy = run.path / "checkpoints" / name
    shutil.copytree(run.checkpoints()[0], copy)
    other = run.path / "checkpoints" / ".notes.old"
    other.write_text("of an editor")
    whole = remuda.resume(run.path, quiet=True)
    assert [path.name for path in whole.checkpoints()] == [NEWEST, GOOD]
    again = remuda.resume(run.path, checkpoint_name=GOOD, total_episodes=15, quiet=True)
    assert [path.name for path in again.checkpoints()] == ["000000015", NEWEST]
    assert checkpoint.intact(copy)
    assert other.read_text() == "of an editor"


@pytest.mark.parametrize("beside", ["000000003", "000000001"])
def test_half_of_a_checkpoint_that_was_replaced_ends_no_run(train: Any, beside: str) -> None:
    """Its writer was killed while it removed the old one, which has no index any more."""
    run = train(keep_checkpoints=2, callback=lambda rows: rows[0]["round"] < 1)
    half = run.path / "checkpoints" / f".{beside}.old"
    half.mkdir()
    (half / "learner.safetensors").write_bytes(b"half")
    assert remuda.resume(run.path, quiet=True).checkpoints()[0].name == NEWEST
    assert not half.exists()


def test_checkpoints_of_more_than_a_billion_episodes_are_in_order(tmp_path: Path) -> None:
    names = ["1000000000", "999999999", "000000012"]
    for name in names:
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoint.every(tmp_path)] == names
