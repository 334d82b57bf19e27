"""Lanes: how every thread of a run spent its last minutes, in one small file per process that the board reads.

Time is cut into bins. A line of the file is one bin of one thread: `[thread, number of the bin, {kind: seconds}]`; the
first line names the process. Bins of different processes can be compared: on Linux all read the same monotonic clock.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Lock

LANES_FOLDER = "lanes"
BIN_S = 0.25
WINDOW_S = 120.0
"""What the board shows; files keep up to four times as much."""
FLUSH_S = 1.0
MAX_LINES = 4 * round(WINDOW_S / BIN_S)
START_S = 1.0
"""Files that are older than the first process by more than this are of an earlier start of the run."""
KINDS = {
    "collect": "collect", "take": "learn", "update": "learn", "wait": "wait",
    "publish": "move", "snapshot": "move", "save": "move", "film": "film",
}  # fmt: skip
"""Spans that belong to a lane, and the kind of each."""


class Lanes:
    """The bins of this process."""

    def __init__(self, folder: Path, name: str, first: bool = False) -> None:
        self._path = folder / f"{os.getpid()}.jsonl"
        self._head = json.dumps({"process": name})
        self._open: dict[tuple[str, int], dict[str, float]] = {}  # bins that may still grow
        self._kept: deque[str] = deque(maxlen=MAX_LINES // 2)
        self._lines = 0  # in the file
        self._first, self._began = first, time.time()
        self._flush_at = 0.0
        self._lock = Lock()

    def add(self, thread: str, name: str, began_s: float, ended_s: float) -> None:
        """Add a span. Of nested spans the inner one ends first; what it took is not counted again for the outer."""
        kind = KINDS[name]
        began_s = max(began_s, ended_s - WINDOW_S)
        with self._lock:
            for number in range(int(began_s / BIN_S), int(ended_s / BIN_S) + 1):
                overlap = min(ended_s, (number + 1) * BIN_S) - max(began_s, number * BIN_S)
                own = self._open.setdefault((thread, number), {})
                own[kind] = own.get(kind, 0.0) + max(0.0, min(overlap, BIN_S - sum(own.values())))
            if ended_s > self._flush_at:
                self._flush_at = ended_s + FLUSH_S
                self._flush(int(ended_s / BIN_S))

    def close(self) -> None:
        """Write every bin."""
        with self._lock:
            self._flush(None)

    def _flush(self, now: int | None) -> None:
        """Write the bins before `now`; a span that ends later can hardly add to them."""
        done = [key for key in self._open if now is None or key[1] < now]
        new = [json.dumps([*key, {k: round(s, 4) for k, s in self._open.pop(key).items()}]) for key in done]
        self._kept.extend(new)
        if not self._lines and not new:
            return  # a run that is refused leaves no trace
        with suppress(OSError):  # a full disk must not end the run
            if not self._lines:
                self._prepare()
            if now is None or not self._lines or self._lines + len(new) > MAX_LINES:
                draft = self._path.with_suffix(".draft")
                draft.write_text("\n".join([self._head, *self._kept, ""]), encoding="utf-8")
                draft.replace(self._path)
                self._lines = len(self._kept) + 1
            elif new:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write("\n".join([*new, ""]))
                self._lines += len(new)

    def _prepare(self) -> None:
        """Make the folder. The first process removes files of an earlier start, whose clock may have been another."""
        self._path.parent.mkdir(exist_ok=True)
        for old in self._path.parent.iterdir() if self._first else ():
            if old.stat().st_mtime < self._began - START_S:
                old.unlink(missing_ok=True)
