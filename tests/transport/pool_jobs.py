"""The jobs of the workers of `test_worker_pool.py`; in a file of their own, so that workers need not import pytest."""

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
    """Whether modules are imported from this folder."""
    return place in sys.path


def threads_after_products() -> dict[str, int]:
    """Threads of this process after torch, then numpy, multiplied matrices large enough for several threads."""
    big = np.ones((600, 600), np.float32)
    found = {"before": _threads()}
    torch.matmul(torch.from_numpy(big), torch.from_numpy(big))
    found["torch"] = _threads()
    np.matmul(big, big)
    return {**found, "numpy": _threads()}


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def fail_deep_inside(error: Exception) -> None:
    raise error


@dataclass(frozen=True)
class CommandJob:
    """Sends Ready, then runs the commands it gets, one after another."""

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

    def kill(self, connection: Connection, status: WorkerStatus, signal: int, turn: int = 0, messages: int = 0) -> None:
        status.beat(Phase.PLAYING, turn)
        self.send(connection, status, messages)
        os.kill(os.getpid(), signal)
        time.sleep(LONG_S)

    def segfault(self, connection: Connection, status: WorkerStatus) -> None:
        status.beat(Phase.LEARNING, 3)
        ctypes.string_at(0)

    def exit(self, connection: Connection, status: WorkerStatus, code: int) -> None:
        status.beat(Phase.TAKING, 1)
        os._exit(code)

    def send(self, connection: Connection, status: WorkerStatus, messages: int) -> None:
        for number in range(messages):
            connection.send(number)

    def sleep(self, connection: Connection, status: WorkerStatus, seconds: float) -> None:
        time.sleep(seconds)
        connection.send("slept")

    def send_for_ever(self, connection: Connection, status: WorkerStatus, interval_s: float) -> None:
        while True:
            status.beat(Phase.PLAYING)
            connection.send("alive")
            time.sleep(interval_s)


@dataclass(frozen=True)
class ExitJob:
    """Ends before it is ready."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        os._exit(7)


@dataclass(frozen=True)
class NeverReadyJob:
    """Runs, but is never ready."""

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        connection.recv()
