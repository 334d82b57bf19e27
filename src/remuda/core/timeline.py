"""Timeline: what every process and thread did when: lanes of the last minutes, and on request a trace file.

The trace is for Perfetto and chrome://tracing. Each process appends its spans to its own file; when the run ends, the
first process joins the files into one. The times of different processes can be compared: on Linux all of them read the
same monotonic clock.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from remuda.core.lanes import KINDS, LANES_FOLDER, Lanes

MAX_EVENTS = 400_000
"""Events a process writes before it stops: viewers cannot open larger traces."""
FLUSH_EVENTS = 2_000
"""Events kept in memory before they are written to the file."""
FLUSH_S = 1.0
"""They are written after this time at the latest."""
PARTS_FOLDER = "timeline"
JOINED_FILE = "timeline.json"


class TimelineFolders(NamedTuple):
    """Where the processes of a run write."""

    lanes: Path
    trace: Path | None  # only where a trace was asked for


class Timeline:
    """The spans of this process."""

    def __init__(self, folders: TimelineFolders, name: str, first: bool) -> None:
        self._lanes = Lanes(folders.lanes, name, first)
        self._path = folders.trace and folders.trace / f"{os.getpid()}.jsonl"
        self._events: list[dict[str, Any]] = []
        self._written = 0
        self._flush_at = 0.0
        self._threads: set[int] = set()
        self._lock = threading.Lock()  # for the list and the file; held while FLUSH_EVENTS are written
        self._append({"name": "process_name", "ph": "M", "tid": 0, "args": {"name": name}})

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record how long the block takes."""
        return self._span(name) if self._path is not None or name in KINDS else _NO_SPAN

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(name, began)

    def _add(self, name: str, began_ns: int) -> None:
        """Append a span from `began_ns` until now."""
        ended_ns = time.monotonic_ns()
        if name in KINDS:
            self._lanes.add(threading.current_thread().name, name, began_ns / 1e9, ended_ns / 1e9)
        if self._path is None:
            return
        thread = threading.get_ident() % 1_000_000
        span = {"name": name, "ph": "X", "tid": thread, "ts": began_ns / 1e3, "dur": (ended_ns - began_ns) / 1e3}
        if thread not in self._threads:
            self._threads.add(thread)
            arguments = {"name": threading.current_thread().name}
            self._append({"name": "thread_name", "ph": "M", "tid": thread, "args": arguments})
        self._append(span)

    def _append(self, event: dict[str, Any]) -> None:
        if self._path is None:
            return
        with self._lock:
            if self._written + len(self._events) < MAX_EVENTS:
                self._events.append({"pid": os.getpid(), **event})
            if len(self._events) >= FLUSH_EVENTS or time.monotonic() > self._flush_at:
                self._flush()

    def _flush(self) -> None:
        assert self._path is not None
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # a full disk must not end the run
            file.writelines(json.dumps(event) + "\n" for event in self._events)
        self._written += len(self._events)
        self._events = []
        self._flush_at = time.monotonic() + FLUSH_S

    def close(self) -> None:
        """Write what is still in memory."""
        self._lanes.close()
        if self._path is not None:
            with self._lock:
                self._flush()


_current: Timeline | None = None
_NO_SPAN = nullcontext()


def begin(folders: TimelineFolders, name: str, first: bool = False) -> None:
    """Record spans of this process (the `first` of its run?) from now on. A listener that a test put in place stays."""
    global _current
    if _current is None or isinstance(_current, Timeline):
        _current = Timeline(folders, name, first)


def end() -> None:
    """Stop recording spans of this process."""
    global _current
    if isinstance(_current, Timeline):
        _current.close()
        _current = None


def span(name: str) -> AbstractContextManager[None]:
    """Record how long the block takes, if this process records spans."""
    return _NO_SPAN if _current is None else _current.span(name)


@contextmanager
def recording(run: Path, trace: bool) -> Iterator[TimelineFolders]:
    """Record a run; a trace's files are joined when it ends or fails. Yields the folders for other processes."""
    folders = TimelineFolders(run / LANES_FOLDER, run / PARTS_FOLDER if trace else None)
    if folders.trace is not None:
        folders.trace.mkdir(exist_ok=True)
        for old in folders.trace.iterdir():
            old.unlink()
    begin(folders, "loop", first=True)
    try:
        yield folders
    finally:
        end()
        if folders.trace is not None:
            join(folders.trace, run / JOINED_FILE)


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
