"""Recorded games as arrays by name, for tests that alter them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


def read_trace(folder: Path, name: str) -> Arrays:
    """The arrays of a recorded game."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def write_trace(folder: Path, arrays: Arrays) -> Path:
    """Write a folder with one recorded game, and return it."""
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / "trace.npz", **arrays)  # type: ignore[arg-type]
    return folder
