"""Checkpoints: directories of safetensors and JSON, written whole or not at all, and checksummed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from remuda.core.errors import CheckpointError, StorageError, first_line
from remuda.core.json_text import is_shallow
from remuda.engines.interfaces import LostRounds, StateSlices
from remuda.runs.storage import storage_reason

FORMAT = 2
INDEX = "checkpoint.json"
CHECKPOINTS = "checkpoints"
"""The directory of a run in which they lie, named by their episodes."""
MAX_INDEX_BYTES = 16 << 20
"""Of an index; the rest of a longer one is not read."""
DEEPEST = 8
"""Lists and mappings inside each other, in an index."""
Arrays = Mapping[str, NDArray[Any]]


def write(path: Path, files: Mapping[str, Arrays], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint directory: beside its place, synced to disk, then moved there at once."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path.parent)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        sums: dict[str, str] = {}
        for name, arrays in files.items():
            if isinstance(arrays, StateSlices):
                sums |= arrays.write(draft, name)
                continue
            target = draft / f"{name}.safetensors"
            save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, target)
            sums[target.name] = _sum(target)
            _sync(target)
        index = draft / INDEX
        content = {"format": FORMAT, "files": sums, **facts}
        index.write_text(json.dumps({**content, "digest": _digest(content)}, indent=1), encoding="utf-8")
        _sync(index)
        _sync(draft)
        _put(draft, path)
    except LostRounds:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise StorageError(_storage_sentence(path, error)) from error


def _put(draft: Path, path: Path) -> None:
    """Move the draft to its place; what was there is set aside meanwhile and put back if that fails."""
    old = _replaced_path(path)
    if path.exists():
        path.rename(old)
    try:
        draft.rename(path)
    except OSError:
        recover(path.parent)
        raise
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _replaced_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _name_of_replaced(old: Path) -> str:
    return old.name.removeprefix(".").removesuffix(".old")


def recover(folder: Path) -> None:
    """Put back checkpoints that were set aside by a writer that did not live to replace them; writers only."""
    for old in folder.glob(".*.old"):
        path = folder / _name_of_replaced(old)
        if (path / INDEX).exists():  # its writer may have been killed while it removed the old one
            shutil.rmtree(old, ignore_errors=True)
        elif (old / INDEX).exists() and not path.exists():  # else it is another program's
            old.rename(path)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _storage_sentence(path: Path, error: Exception) -> str:
    return f"checkpoint {path} could not be written ({storage_reason(error)}); earlier checkpoints are untouched"


def read_index(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint, after their checksum was compared."""
    try:
        with _open(where(path) / INDEX) as file:
            index = json.loads(file.read(MAX_INDEX_BYTES).decode("utf-8"), parse_int=_whole)
        if not is_shallow(index, DEEPEST):
            raise ValueError("too deep")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a checkpoint: it has no {INDEX}") from None
    except (OSError, ValueError, RecursionError):
        raise CheckpointError(f"checkpoint {path} is damaged: {INDEX} cannot be read") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT or not isinstance(index.get("files"), dict):
        raise CheckpointError(f"checkpoint {path} was not written by this version of remuda")
    digest = index.pop("digest", None)
    if digest != _digest(index):
        raise CheckpointError(f"checkpoint {path} is damaged: {INDEX} was altered")
    return index


def _whole(text: str) -> int:
    """No count of ours has more than 64 bits."""
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text[:30]} is too large")
    return number


def read(path: Path, name: str) -> dict[str, NDArray[Any]]:
    """The arrays of one file, after its checksum was compared; all numbers in them are finite.

    Learners that are elsewhere write a file each, NAME-0000 and so on: their agents are joined.
    """
    files = read_index(path)["files"]
    slices = sorted(file for file in files if re.fullmatch(rf"{name}-\d+\.safetensors", str(file)))
    if f"{name}.safetensors" in files or not slices:
        return _read_file(path, f"{name}.safetensors", files)
    columns: dict[str, list[NDArray[Any]]] = {}
    for file in slices:
        for key, array in _read_file(path, file, files).items():
            columns.setdefault(key, []).append(array)
    try:
        return {key: np.concatenate(arrays) for key, arrays in columns.items()}
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: its slices do not fit ({first_line(error)})") from None


def _read_file(path: Path, file: str, sums: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    try:
        if sums.get(file) is None or _sum(where(path) / file) != sums[file]:
            raise CheckpointError(f"checkpoint {path} is damaged: {file} was cut short or altered")
        arrays: dict[str, NDArray[Any]] = load_file(where(path) / file)
        for key, array in arrays.items():
            if array.dtype.kind not in "biu" and not np.isfinite(array).all():
                raise CheckpointError(
                    f"checkpoint {path} is damaged: {key!r} in {file} has numbers that are not finite"
                )
    except CheckpointError:
        raise
    except Exception as error:  # the file is foreign: whatever its reader raises is about the file
        raise CheckpointError(f"checkpoint {path} is damaged: {file} cannot be read ({first_line(error)})") from None
    return arrays


def intact(path: Path, only: str | None = None) -> bool:
    """Whether a checkpoint has weights and its files, or one of them, are as they were written."""
    try:
        files = read_index(path)["files"]
        wanted = [name for name in files if only is None or name == f"{only}.safetensors"]
        return "policy.safetensors" in files and all(
            _sum(where(path) / Path(name).name) == files[name] for name in wanted
        )
    except (CheckpointError, OSError, ValueError):
        return False


def every(folder: Path) -> list[Path]:
    """The checkpoints in a directory, newest first."""
    names = {path.name for path in folder.glob("[0-9]*")} | {_name_of_replaced(old) for old in folder.glob(".*.old")}
    found = [folder / name for name in names if name.isascii() and name.isdigit()]
    return sorted(found, key=lambda path: (int(path.name), path.name), reverse=True)


def newest(folder: Path) -> Path | None:
    """The newest that is intact."""
    return next((path for path in every(folder) if intact(path)), None)


def remove(folder: Path) -> None:
    """Delete a checkpoint, its index first so that half of one is never taken for a whole."""
    folder = where(folder)
    if not folder.is_dir():  # something else has its name
        folder.unlink()
        return
    with suppress(OSError):
        (folder / INDEX).unlink()
    shutil.rmtree(folder)


def where(path: Path) -> Path:
    """Where a checkpoint is now: a writer may have set it aside to replace it, or died while doing so."""
    replaced = _replaced_path(path)
    return replaced if not path.exists() and replaced.exists() else path


def _sum(path: Path) -> str:
    with _open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(path: Path) -> BufferedReader:
    """A regular file, for reading: a pipe might never say anything, a device might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.open("rb")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
