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

from remuda.placement.supervise import Life, Phase, Ready

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

    def run(self, connection: Connection, life: Life) -> None:
        connection.send(Ready())
        while True:
            life.beat(Phase.WAITING)
            command, *values = connection.recv()
            getattr(self, command)(connection, life, *values)

    def echo(self, connection: Connection, life: Life, value: Any) -> None:
        connection.send(value)

    def call(self, connection: Connection, life: Life, function: Callable[..., Any], *values: Any) -> None:
        connection.send(function(*values))

    def fail(self, connection: Connection, life: Life, error: Exception) -> None:
        fail_deep_inside(error)

    def kill(self, connection: Connection, life: Life, signal: int, turn: int = 0, last_words: int = 0) -> None:
        life.beat(Phase.PLAYING, turn)
        self.say(connection, life, last_words)
        os.kill(os.getpid(), signal)
        time.sleep(LONG_S)

    def segfault(self, connection: Connection, life: Life) -> None:
        life.beat(Phase.LEARNING, 3)
        ctypes.string_at(0)

    def exit(self, connection: Connection, life: Life, code: int) -> None:
        life.beat(Phase.TAKING, 1)
        os._exit(code)

    def say(self, connection: Connection, life: Life, words: int) -> None:
        for word in range(words):
            connection.send(word)

    def rest(self, connection: Connection, life: Life, seconds: float) -> None:
        time.sleep(seconds)
        connection.send("rested")

    def chatter(self, connection: Connection, life: Life, every_s: float) -> None:
        while True:
            life.beat(Phase.PLAYING)
            connection.send("bla")
            time.sleep(every_s)


@dataclass(frozen=True)
class DieAtOnce:
    """Never says a word."""

    def run(self, connection: Connection, life: Life) -> None:
        os._exit(7)


@dataclass(frozen=True)
class SayNothing:
    """Lives, but is never ready."""

    def run(self, connection: Connection, life: Life) -> None:
        connection.recv()
