"""What the workers of `test_supervise.py` do; apart from it, so that they need not import pytest."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from remuda.transport.heartbeat import Phase, WorkerStatus
from remuda.transport.worker_process import Ready

LONG_S = 3600.0


def imports_from(place: str) -> bool:
    """Whether modules are looked for there."""
    return place in sys.path


def threads_after_products() -> dict[str, int]:
    """Threads of this process after torch, then numpy, had a product large enough to share."""
    big = np.ones((600, 600), np.float32)
    found = {"at first": _threads()}
    torch.matmul(torch.from_numpy(big), torch.from_numpy(big))
    found["torch"] = _threads()
    np.matmul(big, big)
    return {**found, "numpy": _threads()}


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def fail_deep_inside(error: Exception) -> None:
    raise error


@dataclass(frozen=True)
class Obey:
    """Says Ready, then does as it is told, one command after another."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        connection.send(Ready())
        while True:
            status.beat(Phase.WAITING)
            command, *values = connection.recv()
            getattr(self, command)(connection, status, *values)

    def echo(self, connection: Connection, status: WorkerStatus, value: Any) -> None:
        connection.send(value)

    def call(self, connection: Connection, status: WorkerStatus, function: Callable[..., Any], *values: Any) -> None:
        connection.send(function(*values))

    def fail(self, connection: Connection, status: WorkerStatus, error: Exception) -> None:
        fail_deep_inside(error)

    def kill(
        self, connection: Connection, status: WorkerStatus, signal: int, turn: int = 0, last_words: int = 0
    ) -> None:
        status.beat(Phase.PLAYING, turn)
        self.say(connection, status, last_words)
        os.kill(os.getpid(), signal)
        time.sleep(LONG_S)

    def segfault(self, connection: Connection, status: WorkerStatus) -> None:
        status.beat(Phase.LEARNING, 3)
        ctypes.string_at(0)

    def exit(self, connection: Connection, status: WorkerStatus, code: int) -> None:
        status.beat(Phase.TAKING, 1)
        os._exit(code)

    def say(self, connection: Connection, status: WorkerStatus, words: int) -> None:
        for word in range(words):
            connection.send(word)

    def rest(self, connection: Connection, status: WorkerStatus, seconds: float) -> None:
        time.sleep(seconds)
        connection.send("rested")

    def chatter(self, connection: Connection, status: WorkerStatus, every_s: float) -> None:
        while True:
            status.beat(Phase.PLAYING)
            connection.send("bla")
            time.sleep(every_s)


@dataclass(frozen=True)
class DieAtOnce:
    """Never says a word."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        os._exit(7)


@dataclass(frozen=True)
class SayNothing:
    """Lives, but is never ready."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        connection.recv()
