"""The tables of a run as CSV files: metrics, evaluations, and how the engine is doing.

The board and studies read these files, so every run has them. Another format is a callback of its own (`registry.py`);
its `start` drops the rows of rounds that come again after a resume, as `keep_rounds` does here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import RunError, first_line
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.storage import storage_errors

METRICS, EVALUATIONS, SYSTEM = "metrics.csv", "evaluations.csv", "system.csv"
Table = dict[str, NDArray[Any]]
SYSTEM_COLUMNS = (
    "round", "episodes", "wall_s", "lag_mean", "lag_max", "episodes_dropped", "versions_published",
    "loop_waited_s", "collectors_waited_s", "learners_waited_s", "slots_used",
    "collect_wall_s", "collect_cpu_s", "learn_wall_s", "learn_cpu_s",
)  # fmt: skip
KEYS = ("round", "episodes", "agent_steps", "wall_s", "group", "agent", "player")
WHOLE = ("round", "episodes", "agent_steps", "agent")
"""Columns of whole numbers."""


class CsvTable:
    """A CSV file that rows are appended to; a new file gets its header."""

    def __init__(self, path: Path, columns: Sequence[str], keys: Sequence[str] = KEYS) -> None:
        self.path = path
        self.columns = [*keys, *columns]
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, self.columns, restval="")
        if fresh:
            self._writer.writeheader()
            self._file.flush()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append and flush."""
        for row in rows:
            self._writer.writerow({name: as_written(value) for name, value in row.items()})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Tables(Callback):
    """Writes metrics.csv, evaluations.csv and system.csv."""

    is_internal = True

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        self._files: dict[str, CsvTable] = {}

    def start(self, training: Training) -> None:
        """Open the files; when a run goes on, rows of rounds that will be trained again are removed."""
        columns = {
            METRICS: ([*KEYS, *training.metrics], training.rounds, training.agents),
            EVALUATIONS: ([*KEYS, *training.evaluation_metrics], training.settled, training.agents),
            SYSTEM: (SYSTEM_COLUMNS, training.rounds, 1),
        }
        with storage_errors(training.path):
            for name, (names, rounds, size) in columns.items():
                lost = keep_rounds(training.path / name, names, rounds, size)
                if lost and name != EVALUATIONS:
                    self._say(f"{name}: {lost} of {rounds} rounds are not in it any more; training is not affected")
                self._files[name] = CsvTable(training.path / name, names, keys=())

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        """One row per agent, and one about the engine."""
        with storage_errors(training.path):
            self._files[METRICS].write(rows)
            self._files[SYSTEM].write([system])

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        """One row per agent."""
        with storage_errors(training.path):
            self._files[EVALUATIONS].write(rows)

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        """Close the files; rows that a full disk did not take are lost."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()


def as_written(value: Any) -> Any:
    """A value as the tables have it: numbers with six digits."""
    return f"{value:.6g}" if isinstance(value, float | np.floating) else value


def keep_rounds(path: Path, columns: Sequence[str], rounds: int, size: int) -> int:
    """Bring a table to the end of round `rounds`: later rows are removed, for they will be written again.

    A power failure may leave rows that are missing, cut short or zeroed; only rounds with all `size` rows are kept.
    A column that the version which began the table did not have is empty in its rows.
    Returns how many of the rounds before are not in the table any more (evaluations do not have a row for each).
    """
    if not path.exists() or path.stat().st_size == 0:
        return rounds
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines(keepends=True)
    header = _cells(lines[0])
    began_with = header if "round" in header and set(header) < set(columns) else columns
    by_round: dict[int, list[list[str]]] = {}
    for row in (_cells(line) for line in lines[1:] if "\0" not in line and line.endswith("\n")):
        if _is_whole(row, began_with):
            own = dict(zip(began_with, row, strict=True))
            by_round.setdefault(int(own["round"]), []).append([own.get(name, "") for name in columns])
    whole = {number: rows for number, rows in by_round.items() if len(rows) == size and 0 <= number <= rounds}
    draft = path.with_suffix(".draft")
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number in sorted(whole):
            writer.writerows(whole[number])
    draft.replace(path)
    return rounds - len(whole)


def _cells(line: str) -> list[str]:
    """The values in a line; none if it cannot be read."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _is_whole(row: list[str], columns: Sequence[str]) -> bool:
    return len(row) == len(columns) and row[columns.index("round")].isascii() and row[columns.index("round")].isdigit()


def read_table(path: Path) -> Table:
    """A CSV file as columns: numbers where every entry is one (an empty entry is nan), else text.

    Columns in `WHOLE` are integers. Others are floats, also where a run happens to have only whole numbers in them.
    """
    header, *body = _whole_lines(path) or [[]]
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise RunError(f"{path} is damaged: row {number} has {len(row)} of {len(header)} values; remove this row")
    return {name: _column(name, [row[i] for row in body]) for i, name in enumerate(header)}


def _whole_lines(path: Path) -> list[list[str]]:
    """The rows of a CSV file, the header among them. Training may be in the middle of writing the last one."""
    try:
        text = path.read_bytes().decode("utf-8")
        return [row for row in csv.reader(StringIO(text[: text.rfind("\n") + 1], newline="")) if row]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise RunError(f"{path} is damaged: {first_line(error)}") from None


def _column(name: str, values: list[str]) -> NDArray[Any]:
    try:
        if name in WHOLE and all(values):
            return np.array([int(value) for value in values], np.int64)
        return np.array([float(value) if value else np.nan for value in values])
    except (ValueError, OverflowError):
        return np.array(values)


def by_agent(table: Table, column: str) -> NDArray[np.float64]:
    """A column as (rounds, agents)."""
    agents = len(np.unique(table["agent"]))
    values: NDArray[np.float64] = table[column].reshape(-1, agents)
    return values
