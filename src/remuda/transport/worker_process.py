"""The program of every worker process, and its first and last messages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from remuda.core import timeline
from remuda.core.errors import GameError, RemudaError, WorkerError, message_of
from remuda.core.failures import format_traceback
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.transport.heartbeat import WorkerStatus
from remuda.transport.processes import answer_stop_signals, die_with_parent


class Job(Protocol):
    """What a worker does; pickled once, when the worker starts."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Work until the connection closes."""


@dataclass(frozen=True)
class Ready:
    """A worker's first message: it has started."""


@dataclass(frozen=True)
class WorkerFailed:
    """A worker's last message: an error that ended it."""

    text: str
    trace: str
    is_game_error: bool

    def error(self, name: str) -> RemudaError:
        """The error to raise in the first process, with the worker's traceback attached."""
        error = (GameError if self.is_game_error else WorkerError)(f"{name}: {self.text}")
        error.__cause__ = WorkerError(f"in {name}:\n{self.trace}")
        return error


def run_worker(job: Job, connection: Connection, status: WorkerStatus) -> None:
    """The program of every worker: run its job, and report the error if it raises one."""
    die_with_parent()
    # A terminal or a scheduler may signal all processes at once. The parent decides when workers end: it may need them
    # to save first. Not SIG_IGN, which programs started by a game would inherit: they could not be terminated.
    answer_stop_signals(lambda number, frame: None)
    if status.timeline is not None:
        timeline.begin(status.timeline, status.name)
    try:
        keep_freed_memory()
        with one_thread_each():
            job.run(connection, status)
    except Exception as error:
        # EOFError also comes here: the parent closes the pipe when there is no more work. Sending then fails.
        text = str(error) if isinstance(error, RemudaError) else f"{type(error).__name__}: {message_of(error)}"
        with suppress(OSError):
            connection.send(WorkerFailed(text, format_traceback(error), isinstance(error, GameError)))
    finally:
        timeline.end()
