"""Metrics for TensorBoard."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.callbacks.tables import KEYS
from remuda.runs.storage import storage_errors

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_S = 30


class QuietWriters:
    """Silences a full disk in TensorBoard's own threads while runs are trained: the tables report it.

    Several runs may be trained at once: the first installs the hook of this process, the last one removes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = threading.excepthook

    def enter(self) -> None:
        """A run begins."""
        with self._lock:
            if not self._users:
                self._before, threading.excepthook = threading.excepthook, self._thread_failed
            self._users += 1

    def leave(self) -> None:
        """A run has ended."""
        with self._lock:
            self._users -= 1
            if not self._users:
                threading.excepthook = self._before

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard")):
            self._before(args)


_quiet_writers = QuietWriters()


class TensorBoard(Callback):
    """Writes one scalar per metric and agent, and the mean of the herd beside them, against episodes."""

    is_internal = True

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None

    def start(self, training: Training) -> None:
        """Open the event file; when a run goes on, later points of the file are hidden."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

        later = training.config.episodes_after(training.rounds) + 1
        _quiet_writers.enter()
        with storage_errors(training.path):
            self._writer = SummaryWriter(
                str(training.path / "tensorboard"), purge_step=later if training.rounds else None, flush_secs=FLUSH_S
            )

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        """Write the round."""
        self._write(training, "train", rows)

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        """Write the evaluation."""
        self._write(training, "evaluate", rows)

    def _write(self, training: Training, kind: str, rows: Sequence[Row]) -> None:
        assert self._writer is not None
        values: dict[str, list[float]] = {}
        with storage_errors(training.path):
            for row in rows:
                for name, value in row.items():
                    if name not in KEYS and not math.isnan(value):
                        tag = f"{kind}/{name}/{row['group']}{row['agent']}"
                        self._writer.add_scalar(tag, float(value), int(row["episodes"]))
                        values.setdefault(name, []).append(float(value))
            for name, own in values.items():
                self._writer.add_scalar(f"{kind}/{name}/mean", sum(own) / len(own), int(rows[0]["episodes"]))

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        """Flush and close."""
        if self._writer is None:
            return
        try:
            with suppress(OSError):
                self._writer.close()
        finally:
            self._writer = None
            _quiet_writers.leave()
