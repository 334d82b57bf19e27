"""Timeline: what every process and thread did when, as a trace file for Perfetto and chrome://tracing.

Each process appends its spans to its own file; when the run ends, the first process joins the files into one. The times
of different processes can be compared: on Linux all of them read the same monotonic clock.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

MAX_EVENTS = 400_000
"""Events a process writes before it stops: viewers cannot open larger traces."""
FLUSH_EVENTS = 2_000
"""Events kept in memory before they are written to the file."""
FLUSH_S = 1.0
"""They are written after this time at the latest, so that the board can show them."""
PARTS_FOLDER = "timeline"
JOINED_FILE = "timeline.json"


class Timeline:
    """The spans of this process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{os.getpid()}.jsonl"
        self._events: list[dict[str, Any]] = []
        self._written = 0
        self._flush_at = 0.0
        self._threads: set[int] = set()
        self._lock = threading.Lock()  # for the list and the file; held while FLUSH_EVENTS are written
        self._append({"name": "process_name", "ph": "M", "tid": 0, "args": {"name": name}})

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(name, began)

    def _add(self, name: str, began_ns: int) -> None:
        """Append a span from `began_ns` until now."""
        thread = threading.get_ident() % 1_000_000
        span = {"name": name, "ph": "X", "tid": thread, "ts": began_ns / 1e3}
        span["dur"] = (time.monotonic_ns() - began_ns) / 1e3
        if thread not in self._threads:
            self._threads.add(thread)
            arguments = {"name": threading.current_thread().name}
            self._append({"name": "thread_name", "ph": "M", "tid": thread, "args": arguments})
        self._append(span)

    def _append(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._written + len(self._events) < MAX_EVENTS:
                self._events.append({"pid": os.getpid(), **event})
            if len(self._events) >= FLUSH_EVENTS or time.monotonic() > self._flush_at:
                self._flush()

    def _flush(self) -> None:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # a full disk must not end the run
            file.writelines(json.dumps(event) + "\n" for event in self._events)
        self._written += len(self._events)
        self._events = []
        self._flush_at = time.monotonic() + FLUSH_S

    def close(self) -> None:
        """Write the events that are still in memory."""
        with self._lock:
            self._flush()


_current: Timeline | None = None
_NO_SPAN = nullcontext()


def begin(folder: Path, name: str) -> None:
    """Record spans of this process from now on, in a file in `folder`."""
    global _current
    _current = Timeline(folder, name)


def end() -> None:
    """Stop recording spans of this process."""
    global _current
    if _current is not None:
        _current.close()
        _current = None


def span(name: str) -> AbstractContextManager[None]:
    """Record how long the block takes, if this process records spans."""
    return _NO_SPAN if _current is None else _current.span(name)


@contextmanager
def recording(run: Path, wanted: bool) -> Iterator[Path | None]:
    """Record a run if `wanted`, and join the files when it ends or fails; yields the folder for other processes."""
    if not wanted:
        yield None
        return
    folder = run / PARTS_FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    begin(folder, "loop")
    try:
        yield folder
    finally:
        end()
        join(folder, run / JOINED_FILE)


def join(folder: Path, target: Path) -> None:
    """Join the files of all processes into one, without lines that a dying process left incomplete."""
    with suppress(OSError), target.open("w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        first = True
        for part in sorted(folder.glob("*.jsonl")):
            for line in part.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):
                    out.write(("" if first else ",\n") + line)
                    first = False
            part.unlink()
        out.write("\n]}\n")
        folder.rmdir()
