"""The Ray actor that hosts trials: it has a process that runs them, passes on its messages, and watches over it.

Training is not done in the actor's own process: there Ray has the signals and decides about threads. Its process is
that of a study on one machine.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remuda.engines.collectors.ray.cluster import require_ray
from remuda.studies.trials.process import TrialProcess

ANSWER_S = 2.0
"""Longest that the first process waits for an answer to `poll` when nothing happens."""
GATHER_S = 0.3
"""Seconds for which messages are gathered after the first: a trial reports its progress five times a second."""
LEASE_S = 15.0
"""Seconds without `poll` after which the trial is stopped: the first process, or the way to it, is gone.

The first process has the trial run again elsewhere then, and two must not write into one directory. A process that is
asked to stop saves first; after `STOP_S` more it is killed. `trial.RELEASE_S` is longer than both together.
"""
STOP_S = 5.0


@dataclass(frozen=True)
class HostStart:
    """First answer of a host."""

    node: str
    machine: str
    sees_folder: bool  # whether the directory of the study is on this machine, too


@dataclass(frozen=True)
class HostReport:
    """What has happened since the last report."""

    messages: Sequence[bytes] = ()  # pickled, as the process sent them
    died: str = ""  # how the process ended, if it did while it had a trial
    lease_over: bool = False  # whether it ended because nobody asked for reports


class TrialHost:
    """Runs in a process of Ray, perhaps on another node. `poll` runs in a thread of its own, beside the other calls."""

    def __init__(self, path: Sequence[str], here: str, seen_file: str, objects: Mapping[str, bytes]) -> None:
        """`seen_file` was just made by the first process in the study's directory, `here` is its working directory."""
        sys.path.extend(place for place in path if place not in sys.path)  # to import a user's game
        # The program of this process is Ray's. The process of the trials would import it, and Ray with it.
        vars(sys.modules["__main__"]).pop("__file__", None)
        with suppress(OSError):
            os.chdir(here)  # settings may name files relative to it
        self._sees_folder = Path(seen_file).exists()
        self._objects = objects
        self._process: TrialProcess | None = None
        self._started = threading.Event()
        self._lease_over = False
        self._polled_at = time.monotonic()
        threading.Thread(target=self._watch_lease, name="lease", daemon=True).start()

    def join(self) -> HostStart:
        """Where this actor runs."""
        return HostStart(
            str(require_ray().get_runtime_context().get_node_id()), socket.gethostname(), self._sees_folder
        )

    def run(self, trial: bytes) -> None:
        """Start a trial."""
        if self._process is None:
            self._process = TrialProcess(self._objects)
        self._process.send(trial)
        self._started.set()

    def stop(self) -> None:
        """Ask the trial to save and to stop."""
        if self._process is not None:
            self._process.stop()

    def poll(self) -> HostReport:
        """Wait for something to happen; returns soon if nothing does."""
        self._polled_at = time.monotonic()
        try:
            return self._report()
        finally:
            self._polled_at = time.monotonic()

    def _report(self) -> HostReport:
        process = self._process
        if process is None:
            self._started.wait(ANSWER_S)
            return HostReport()
        messages: list[bytes] = []
        try:
            wait_s = ANSWER_S
            while process.connection.poll(wait_s):
                messages.append(process.connection.recv_bytes())
                wait_s = GATHER_S if len(messages) == 1 else 0.0
        except (EOFError, OSError):
            return self._dead(process, messages)
        if self._lease_over:  # it may have said that it was stopped, and would not know why
            process.kill()
            return self._dead(process, messages)
        return HostReport(messages)

    def _dead(self, process: TrialProcess, messages: Sequence[bytes]) -> HostReport:
        """The last report about a process."""
        self._process = None
        self._started.clear()
        lease_over, self._lease_over = self._lease_over, False
        return HostReport(() if lease_over else messages, process.await_end(), lease_over)

    def _watch_lease(self) -> None:
        """Stop the trial if nobody has asked about it for long, then kill its process."""
        while True:
            time.sleep(1.0)
            process, unseen_s = self._process, time.monotonic() - self._polled_at
            if process is None or unseen_s < LEASE_S:
                continue
            self._lease_over = True
            if unseen_s < LEASE_S + STOP_S:
                process.stop()
            else:
                process.kill()
