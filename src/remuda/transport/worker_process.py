"""The program of every worker process, and its first and last messages."""

from __future__ import annotations

import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from remuda.core import timeline
from remuda.core.errors import GameError, RemudaError, WorkerError
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.transport.heartbeat import WorkerStatus
from remuda.transport.processes import ENDINGS, die_with_parent


class Job(Protocol):
    """What a worker is to do; pickled once, when the worker starts."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Work until the connection closes."""


@dataclass(frozen=True)
class Ready:
    """A worker's first word."""


@dataclass(frozen=True)
class WorkerFailed:
    """A worker's last words: an error it could not deal with."""

    text: str
    trace: str
    of_the_game: bool

    def error(self, name: str) -> RemudaError:
        """The error to raise here, with the worker's traceback attached."""
        error = (GameError if self.of_the_game else WorkerError)(f"{name}: {self.text}")
        error.__cause__ = WorkerError(f"in {name}:\n{self.trace}")
        return error


def run_worker(job: Job, connection: Connection, status: WorkerStatus) -> None:
    """The program of every worker."""
    die_with_parent()
    for number in ENDINGS:  # a terminal or a scheduler may tell all of us at once
        signal.signal(number, signal.SIG_IGN)  # our parent decides when we end, and it may have to save first
    if status.timeline is not None:
        timeline.begin(status.timeline, status.name)
    try:
        keep_freed_memory()
        with one_thread_each():
            job.run(connection, status)
    except Exception as error:
        # Also where our parent closed the pipe because it has no more work: then nobody hears this.
        text = str(error) if isinstance(error, RemudaError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            connection.send(WorkerFailed(text, traceback.format_exc(), isinstance(error, GameError)))
    finally:
        timeline.end()
