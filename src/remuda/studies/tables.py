"""Tables of a study as CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remuda.runs.callbacks.tables import CsvTable
from remuda.runs.storage import storage_errors


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with a column for each name; an existing file is replaced."""
    with storage_errors(path.parent):
        path.unlink(missing_ok=True)
        table = CsvTable(path, list(rows[0]) if rows else [], keys=())
        table.write(rows)
        table.close()
