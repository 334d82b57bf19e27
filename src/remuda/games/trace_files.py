"""Files of recorded games (.npz): found, and read as plain data."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import TraceError, first_line
from remuda.core.paths import is_file, is_folder

MAX_BYTES = 1 << 28  # of one file, unpacked; replaying it takes several times as much memory


def find_traces(folder: Path) -> list[Path]:
    """Every .npz file below a folder, or the file itself."""
    if is_file(folder):
        return [folder]
    if not is_folder(folder):
        raise TraceError(f"{folder} does not exist: give a folder of recorded traces (.npz)")
    paths = sorted(path for path in folder.rglob("*.npz") if path.is_file())
    if not paths:
        raise TraceError(f"no .npz file below {folder}")
    return paths


def read_arrays(path: Path, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays of a file that have one of these names; raises TraceError for a file that cannot be read."""
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > MAX_BYTES:
            raise TraceError(f"trace {path} unpacks to {size:,} bytes: more than {MAX_BYTES:,} are not read")
        with warnings.catch_warnings(action="error"), np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in wanted}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise TraceError(f"trace {path}: {name} is not an array")
        return arrays
    except TraceError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds of errors for a damaged file
        raise TraceError(f"trace {path} cannot be read: {first_line(error)}") from None
