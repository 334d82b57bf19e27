"""What every process and thread did when, as a trace that Perfetto and chrome://tracing open as it is.

Each process appends spans to a file of its own, in the background of nobody; the first process joins
them in the end. Clocks agree: on Linux the monotonic clock is one for all processes.
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

MOST_EVENTS = 400_000
"""Spans a process writes before it stops: a trace that no viewer opens helps nobody."""
FLUSH_EVENTS = 2_000
PARTS = "timeline"
JOINED = "timeline.json"


class Timeline:
    """The spans of this process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{os.getpid()}.jsonl"
        self._events: list[dict[str, Any]] = []
        self._written = 0
        self._threads: set[int] = set()
        self._lock = threading.Lock()  # of the list and the file; what is being timed never waits for the disk long
        self._note({"name": "process_name", "ph": "M", "tid": 0, "args": {"name": name}})

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Note how long this takes."""
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(name, began)

    def _add(self, name: str, began_ns: int) -> None:
        """A span from `began_ns` until now."""
        thread = threading.get_ident() % 1_000_000
        span = {"name": name, "ph": "X", "tid": thread, "ts": began_ns / 1e3}
        span["dur"] = (time.monotonic_ns() - began_ns) / 1e3
        if thread not in self._threads:
            self._threads.add(thread)
            named = {"name": threading.current_thread().name}
            self._note({"name": "thread_name", "ph": "M", "tid": thread, "args": named})
        self._note(span)

    def _note(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._written + len(self._events) < MOST_EVENTS:
                self._events.append({"pid": os.getpid(), **event})
            if len(self._events) >= FLUSH_EVENTS:
                self._flush()

    def _flush(self) -> None:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # a full disk must not end the run
            file.writelines(json.dumps(event) + "\n" for event in self._events)
        self._written += len(self._events)
        self._events = []

    def close(self) -> None:
        """Write the rest."""
        with self._lock:
            self._flush()


_here: Timeline | None = None
NOTHING = nullcontext()


def begin(folder: Path, name: str) -> None:
    """Time this process from now on; `folder` is where its part goes."""
    global _here
    _here = Timeline(folder, name)


def end() -> None:
    """Stop timing this process."""
    global _here
    if _here is not None:
        _here.close()
        _here = None


def span(name: str) -> AbstractContextManager[None]:
    """Note how long this takes, if anybody wants to know."""
    return NOTHING if _here is None else _here.span(name)


@contextmanager
def recording(run: Path, wanted: bool) -> Iterator[Path | None]:
    """Time a run: parts are written below it, and joined into one file when it ends, however it ends."""
    if not wanted:
        yield None
        return
    folder = run / PARTS
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    begin(folder, "loop")
    try:
        yield folder
    finally:
        end()
        join(folder, run / JOINED)


def join(folder: Path, target: Path) -> None:
    """Put the parts of all processes into one file; a line that a dying process left half is left out."""
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
