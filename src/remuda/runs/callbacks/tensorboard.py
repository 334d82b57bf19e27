"""Metrics for TensorBoard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from remuda.runs.callbacks.tables import KEYS


class TensorBoard:
    """Scalars for TensorBoard, one tag per metric and agent."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

        self._hook = threading.excepthook
        threading.excepthook = self._thread_failed
        self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=30)

    def write(self, kind: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Every number of every row, against episodes."""
        for row in rows:
            for name, value in row.items():
                if name not in KEYS and value == value:
                    self._writer.add_scalar(
                        f"{kind}/{name}/{row['group']}{row['agent']}", float(value), int(row["episodes"])
                    )

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread of its own; that the disk is full is said once, by us."""
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard")):
            self._hook(args)

    def close(self) -> None:
        """Flush and close."""
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._hook
