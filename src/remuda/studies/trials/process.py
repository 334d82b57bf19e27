"""A process that runs trials, and the pipe to it.

It dies with the process that started it, in whatever way that ends. Nothing heavy is imported here, and what goes
through the pipe is bytes: an actor on a cluster, too, starts such a process, and passes on what it neither reads nor
could read without importing torch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

from remuda.core import session
from remuda.transport.heartbeat import Limits
from remuda.transport.processes import (
    UNGUARDED,
    answer_stop_signals,
    await_end,
    die_with_parent,
    missing_guard,
    process_context,
    signal_name,
    start_process,
)

READY = "ready"
"""First message of the process: signals reach it from now on. It is forked from a server that ignores them."""


class TrialProcess:
    """The process, seen from the one that started it."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        """`objects` are games and networks of a Python session, packed."""
        context = process_context()
        self.connection, there = context.Pipe()
        args = (there, dict(objects))
        self._process = start_process(lambda: context.Process(target=_serve, args=args), "", Limits().start)
        there.close()

    def send(self, trial: bytes) -> None:
        """Start a pickled trial."""
        with suppress(OSError):  # that the process is dead shows when its messages are read
            self.connection.send_bytes(trial)

    def stop(self) -> None:
        """Ask the trial to save and to stop."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def await_end(self) -> str:
        """Wait until it has ended; returns how."""
        self.connection.close()
        await_end(self._process)
        code = self._process.exitcode
        if code == UNGUARDED:
            raise missing_guard()
        return (
            f"was killed by {signal_name(-code)}" if code is not None and code < 0 else f"ended with exit code {code}"
        )


def _serve(connection: Connection, objects: Mapping[str, bytes]) -> None:
    """The program of the process: run the trials that come. Ctrl-C in a terminal reaches only the first process."""
    os.setpgrp()
    die_with_parent()
    answer_stop_signals(signal.SIG_DFL)  # the fork server ignores them; training must not
    with suppress(OSError):
        connection.send(READY)
    from remuda.studies.trials.trial import run_trial  # torch, which the fork server has imported already

    session.unpack(objects)
    while True:
        try:
            trial = connection.recv()
        except EOFError:
            return
        outcome = run_trial(trial, connection.send)
        with suppress(OSError):
            connection.send(outcome)
