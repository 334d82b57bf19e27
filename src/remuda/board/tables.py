"""Columns of tables that grow while they are read, and curves of them with few enough points to send."""

from __future__ import annotations

import csv
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from remuda.board import files

Column = NDArray[np.float64]
MAX_COLUMNS = 96
"""Columns that are kept in memory, over all runs."""
CHUNK = 1 << 24
VALUES_SENT = 12_000
"""About how many numbers a curve has at most, over all agents; 12,000 are 90 kB of JSON."""
MAX_AGENTS = 200
DIGITS = 6


@dataclass
class _Growing:
    """One column of one file, and how far the file was read for it."""

    offset: int = 0
    inode: int = 0
    index: int = -1
    reading: int = 0  # a number that changes when the file is read from its beginning again
    length: int = 0
    buffer: Column = field(default_factory=lambda: np.zeros(0))  # longer than the column, so that few rows cost little

    def restart(self, reading: int, inode: int, offset: int, index: int) -> None:
        """Forget the values; the array is not used again, for others may read it now."""
        self.reading, self.inode, self.offset, self.index = reading, inode, offset, index
        self.length, self.buffer = 0, np.zeros(0)

    def append(self, values: Column) -> None:
        """Add values of rows that were written since."""
        end = self.length + len(values)
        if end > len(self.buffer):
            longer = np.empty(max(2 * len(self.buffer), end))
            longer[: self.length] = self.buffer[: self.length]
            self.buffer = longer
        self.buffer[self.length : end] = values
        self.length = end


class ColumnCache:
    """Reads columns of CSV files; what was read before is not read again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._columns: OrderedDict[tuple[str, str, str], _Growing] = OrderedDict()
        self._lock = threading.Lock()
        self._readings = itertools.count(1)

    def names(self, run: str, file: str) -> list[str]:
        """The header of a table."""
        head, _ = files.read_tail(self.root, run, file, 0)
        return next(iter(csv.reader([head.decode("utf-8", "replace").strip()])), [])

    def column(self, run: str, file: str, name: str) -> Column:
        """A column as numbers, nan where there is none; empty if the table does not have it."""
        return self.columns(run, file, (name,))[0]

    def columns(self, run: str, file: str, names: Sequence[str]) -> list[Column]:
        """Several columns of a table, with one look at its file: opening it takes as long as reading a few rows."""
        with self._lock:
            found = [self._columns.setdefault((run, file, name), _Growing()) for name in names]
            for name in names:
                self._columns.move_to_end((run, file, name))
            while len(self._columns) > max(MAX_COLUMNS, len(names)):
                self._columns.popitem(last=False)
            try:
                with files.opened(self.root, run, file) as stream:
                    self._grow(dict(zip(names, found, strict=True)), stream)
            except OSError:
                for column in found:
                    column.restart(next(self._readings), 0, 0, -1)
            return [column.buffer[: column.length] for column in found]

    def reading(self, run: str, file: str, name: str) -> int:
        """A number that changes when a column was read anew, because its file was written anew."""
        with self._lock:
            found = self._columns.get((run, file, name))
            return found.reading if found is not None else 0

    def _grow(self, columns: dict[str, _Growing], stream: BinaryIO) -> None:
        state = os.fstat(stream.fileno())
        for name, column in columns.items():
            if state.st_ino != column.inode or state.st_size < column.offset:
                # A new file: a run that goes on writes its tables anew.
                stream.seek(0)
                head = stream.readline(1 << 16)
                header = next(iter(csv.reader([head.decode("utf-8", "replace").strip()])), [])
                index = header.index(name) if name in header else -1
                column.restart(next(self._readings), state.st_ino, len(head), index)
        there = [column for column in columns.values() if column.index >= 0]
        for offset in sorted({column.offset for column in there}):
            behind = [column for column in there if column.offset == offset]
            stream.seek(offset)
            while chunk := stream.read(CHUNK):
                end = chunk.rfind(b"\n") + 1
                if not end:
                    break
                for column in behind:
                    column.append(_numbers(chunk[:end], column.index))
                    column.offset += end
                stream.seek(behind[0].offset)


def _numbers(chunk: bytes, index: int) -> Column:
    """Column `index` of whole lines; of lines that no CSV reader takes, nothing."""
    if b'"' in chunk:
        try:
            rows = list(csv.reader(chunk.decode("utf-8", "replace").splitlines()))
        except csv.Error:
            return np.zeros(0)
        return np.array([_number(row[index] if index < len(row) else "") for row in rows])
    lines = chunk[:-1].split(b"\n")
    try:
        cells = np.array([line.split(b",", index + 1)[index] for line in lines])
        return np.where(cells == b"", b"nan", cells).astype(np.float64)
    except (IndexError, ValueError):
        parts = (line.split(b",", index + 1) for line in lines)
        return np.array([_number(cells[index] if index < len(cells) else "") for cells in parts])


def _number(text: Any) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


@dataclass(frozen=True)
class CurveRequest:
    """What a page asks for."""

    run: str
    table: str  # metrics.csv, evaluations.csv or system.csv
    metric: str
    x: str  # episodes, agent_steps or wall_s
    first: float = -np.inf
    last: float = np.inf
    points: int = 400


def curve(cache: ColumnCache, asked: CurveRequest, step: int = 0, known: int = 0) -> dict[str, Any]:
    """A metric against x: mean, smallest and largest per point, and the mean of each agent.

    A point is the mean of `step` rows, a power of two: points stay what they are while rows are added, until there are
    so many that the step is doubled. Whoever has the first `known` points at this step gets only those after them;
    `from` is the number of the first one.
    """
    names = (asked.metric, asked.x, "agent", f"{asked.metric}_se")
    values, x, agent, errors = cache.columns(asked.run, asked.table, names)
    agents = _agents(agent) if asked.table != "system.csv" else 1
    rows = min(len(values), len(x)) // agents
    table = values[: rows * agents].reshape(rows, agents)
    at = x[: rows * agents : agents]
    errors = errors[: rows * agents]
    inside = (at >= asked.first) & (at <= asked.last) & np.isfinite(at)
    if not inside.all():
        table, at = table[inside], at[inside]
    shown = min(agents, MAX_AGENTS)
    count = int(np.clip(VALUES_SENT // (shown + 4), 20, max(20, min(asked.points, 2000))))
    own_step = 1 << max(0, -(-len(at) // count) - 1).bit_length()
    first = known if own_step == step and known * step <= len(at) else 0
    table, at = table[first * own_step :], at[first * own_step :]
    edges = np.arange(0, len(at), own_step)
    result: dict[str, Any] = {
        "rows": rows,
        "agent_count": agents,
        "reading": cache.reading(asked.run, asked.table, asked.metric),
        "inside": first * own_step + len(at),
        "step": own_step,
        "from": first,
        "x": [],
        "mean": [],
        "low": [],
        "high": [],
        "agents": [],
        "error": [],
    }
    if not len(edges):
        return result
    means = _means(table, edges)
    with np.errstate(all="ignore"):
        low, high = np.fmin.reduce(table, axis=1), np.fmax.reduce(table, axis=1)
        parts = (
            _means(at[:, None], edges)[:, 0], _mean_known(means), np.fmin.reduceat(low, edges),
            np.fmax.reduceat(high, edges), *(means[:, :shown].T if agents > 1 else ()),
        )  # fmt: skip
    numbers = six_digits(np.concatenate(parts))
    lists = [numbers[first : first + len(edges)] for first in range(0, len(numbers), len(edges))]
    result["x"], result["mean"], result["low"], result["high"], *result["agents"] = lists
    if len(errors) == rows * agents and own_step == 1:
        result["error"] = six_digits(1.96 * _mean_known(errors.reshape(rows, agents)[inside][first:]))
    return result


def _agents(agent: Column) -> int:
    """How many rows a round has: until the first agent comes again."""
    again = np.flatnonzero(agent[1:] == agent[:1])
    return int(again[0]) + 1 if len(again) else max(1, len(agent))


def _means(table: NDArray[np.float64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean of each column between edges, of what is known; (edges, columns)."""
    if not len(edges):
        return np.zeros((0, table.shape[1]))
    known = np.isfinite(table)
    sums = np.add.reduceat(np.where(known, table, 0.0), edges, axis=0)
    counts = np.add.reduceat(known.astype(np.float64), edges, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = sums / counts
    return means


def _mean_known(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the columns of what is known in each row."""
    known = np.isfinite(table)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = np.where(known, table, 0.0).sum(axis=1) / known.sum(axis=1)
    return means


def six_digits(values: NDArray[np.float64]) -> list[float | None]:
    """Six digits, and null for what is not finite: JSON has no nan."""
    known = np.isfinite(values)
    size = np.abs(np.where(known & (values != 0), values, 1.0))
    digits = DIGITS - 1 - np.floor(np.log10(size))
    # Powers of ten are exact up to 1e22; multiplying by one or dividing by one gives the nearest number.
    up, down = 10.0 ** np.clip(digits, 0, 22), 10.0 ** np.clip(-digits, 0, 22)
    rounded = np.round(np.where(known, values, 0.0) / down * up) / up * down
    if known.all():
        return list(rounded.tolist())
    return [value if ok else None for value, ok in zip(rounded.tolist(), known.tolist(), strict=True)]
