"""Checkpoints: directories of safetensors and JSON, written whole or not at all, and checksummed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from remuda.errors import CheckpointError, StorageError

FORMAT = 1
INDEX = "checkpoint.json"
Arrays = Mapping[str, NDArray[Any]]


def write(path: Path, files: Mapping[str, Arrays], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint directory: beside its place, synced to disk, then moved there at once."""
    draft = path.with_name(f".{path.name}.draft")
    old = path.with_name(f".{path.name}.old")
    try:
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
        draft.mkdir(parents=True)
        sums = {}
        for name, arrays in files.items():
            target = draft / f"{name}.safetensors"
            save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, target)
            sums[target.name] = _sum(target)
            _sync(target)
        index = draft / INDEX
        index.write_text(json.dumps({"format": FORMAT, "files": sums, **facts}, indent=1), encoding="utf-8")
        _sync(index)
        _sync(draft)
        if path.exists():
            path.rename(old)
        draft.rename(path)
        _sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise StorageError(_storage_sentence(path, error)) from error


def _storage_sentence(path: Path, error: Exception) -> str:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    reason = "the disk is full" if full or "No space left" in str(error) else str(error)
    return f"checkpoint {path} could not be written ({reason}); earlier checkpoints are untouched"


def read_index(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint."""
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a checkpoint: it has no {INDEX}") from None
    except (OSError, ValueError, RecursionError):
        raise CheckpointError(f"checkpoint {path} is damaged: {INDEX} cannot be read") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT or not isinstance(index.get("files"), dict):
        raise CheckpointError(f"checkpoint {path} was not written by this version of remuda")
    return index


def read(path: Path, name: str) -> dict[str, NDArray[Any]]:
    """The arrays of one file, after its checksum was compared."""
    file = path / f"{name}.safetensors"
    expected = read_index(path)["files"].get(file.name)
    try:
        if expected is None or _sum(file) != expected:
            raise CheckpointError(f"checkpoint {path} is damaged: {file.name} was cut short or altered")
        arrays: dict[str, NDArray[Any]] = load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {file.name} cannot be read ({error})") from None
    return arrays


def intact(path: Path) -> bool:
    """Whether every file of a checkpoint is as it was written."""
    try:
        files = read_index(path)["files"]
        return all(_sum(path / Path(name).name) == expected for name, expected in files.items())
    except (CheckpointError, OSError):
        return False


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
