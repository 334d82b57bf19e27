"""Faults at random moments: a game, and a hook into the spans of every process that plays or trains it.

A fault is a timer of the kernel's that sends this process SIGKILL or SIGSTOP in the middle of a phase,
wherever it then is, also in the middle of a copy. What was armed, and what came too late to land in its
phase, is in a log that all processes append to; it survives whoever wrote it.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import timeline
from remuda.core.game import GameEntry, Group
from remuda.core.rng import Keys
from remuda.testing.odd_games import OddGame, OddOptions

FOLDER = "REMUDA_CHAOS"
"""The variable that names the directory with the wishes and the log; without it nothing happens."""
WISHES, LOG, CALM = "wishes.json", "faults.log", "calm"
"""While a file `calm` is beside them, nothing new happens."""
PHASES = {
    "collect": "collect", "take": "hand-over", "update": "update", "publish": "publish",
    "snapshot": "save", "save": "save",
}  # fmt: skip
CHANCE = 0.3
FIRST_GUESS_S = 0.002
SLOW_S = 0.3
MARKS = 1 << 12


@dataclass(frozen=True)
class Fault:
    """What was to happen, where, and when (by the monotonic clock; not compared)."""

    phase: str
    kind: str
    role: str
    when_s: float = field(default=0.0, compare=False)


def landed(folder: Path) -> list[Fault]:
    """Faults that happened in their phase, in the order they were armed."""
    faults: dict[str, Fault] = {}
    path = folder / LOG
    for line in path.read_text().splitlines() if path.exists() else []:
        word, name, *rest = line.split()
        if word == "armed":
            faults[name] = Fault(*rest, when_s=float(name.partition(".")[2]) / 1e9)
        else:
            faults.pop(name, None)  # it missed
    return list(faults.values())


class Event(ctypes.Structure):
    """sigevent, as timer_create takes it."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    )


class Span(ctypes.Structure):
    """itimerspec: interval, then value, each in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class Timer:
    """Sends this process a signal that nobody can catch, after a while; the kernel does it."""

    def __init__(self, number: int, delay_s: float) -> None:
        self._libc, self._id = ctypes.CDLL("libc.so.6", use_errno=True), ctypes.c_void_p()
        event = Event(signo=number)
        if self._libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create")
        nanoseconds = max(1, int(delay_s * 1e9))
        span = Span(value_s=nanoseconds // 10**9, value_ns=nanoseconds % 10**9)
        if self._libc.timer_settime(self._id, 0, ctypes.byref(span), None):
            raise OSError(ctypes.get_errno(), "timer_settime")

    def disarm(self) -> None:
        """It happens no more."""
        self._libc.timer_delete(self._id)


class Chaos:
    """In place of a process's timeline: is told when a phase begins and when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wishes: dict[str, Any] = json.loads((folder / WISHES).read_text())
        in_ray = Path(sys.argv[0]).name == "default_worker.py"
        self._main = 0 if in_ray else os.getpid()  # or the fork server, from which only workers come
        self._born = time.monotonic()
        self._pid = 0
        self._armed = False
        self._usual: dict[str, float] = {}

    def close(self) -> None:
        """Nothing to write."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A phase, and perhaps the end of this process in the middle of it."""
        phase = PHASES.get(name)
        kind = self.choose(phase, ("kill", "stop")) if phase else None
        if phase is None or kind is None:
            yield
            return
        usual = self._usual.get(phase, FIRST_GUESS_S)
        delay_s, began, fault = self._dice.uniform(0, 0.9 * usual), time.monotonic(), self._log(phase, kind)
        self._armed = True
        timer = Timer(signal.SIGKILL if kind == "kill" else signal.SIGSTOP, delay_s)
        try:
            yield
        finally:
            timer.disarm()
            self._armed = False
            took = time.monotonic() - began
            if took < delay_s:
                self.note(f"missed {fault}")
                self._usual[phase] = took

    def choose(self, phase: str, kinds: Sequence[str]) -> str | None:
        """What is to happen now, if anything."""
        if os.getpid() != self._pid:  # after a fork: other dice
            self._pid, self._dice = os.getpid(), random.Random(os.urandom(8))
        if self._armed or self._dice.random() > CHANCE:
            return None
        role = self.role
        log = self.folder / LOG
        # The kernel's own clock: somebody may have replaced `time.time`.
        if log.exists() and time.clock_gettime(time.CLOCK_REALTIME) - log.stat().st_mtime < self.wishes.get(
            "every_s", 0.0
        ):
            return None
        kinds = [kind for kind in kinds if f"{role}-{kind}" in self.wishes["kinds"] and self._is_old_enough(role, kind)]
        faults = landed(self.folder)
        counts = Counter(fault.phase for fault in faults)
        if not kinds or counts[phase] >= self.wishes["phases"].get(phase, 0) or (self.folder / CALM).exists():
            return None
        if phase == "collect" and self._might_hit_an_episode_again(role, kinds, faults):
            return None  # three times the same episode would set it aside
        return self._dice.choice(kinds)

    def _might_hit_an_episode_again(self, role: str, kinds: Sequence[str], faults: Sequence[Fault]) -> bool:
        """Whether an episode that failed is perhaps being played again: by the order of faults, or by their time."""
        spacing_s = self.wishes.get("spacing_s")
        if spacing_s is None:
            return role == "worker" and any(fault.phase == "collect" for fault in faults[-2:])
        costs_an_attempt = role == "worker" or not {"raise", "exit"}.isdisjoint(kinds)
        recent = [fault for fault in faults if fault.phase == "collect" and fault.kind != "slow"]
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        return costs_an_attempt and any(now - fault.when_s < spacing_s[fault.kind] for fault in recent[-2:])

    def _is_old_enough(self, role: str, kind: str) -> bool:
        """Whether this process has lived as long as it is to live before such a thing happens to it."""
        return time.monotonic() - self._born >= self.wishes.get("after_s", {}).get(f"{role}-{kind}", 0.0)

    @property
    def role(self) -> str:
        """The first process, or one of its workers."""
        return "main" if os.getpid() == self._main else "worker"

    def _log(self, phase: str, kind: str) -> str:
        name = f"{os.getpid()}.{time.monotonic_ns()}"
        self.note(f"armed {name} {phase} {kind} {self.role}")
        return name

    def strike(self, phase: str, kind: str) -> None:
        """Something that happens at once."""
        self._log(phase, kind)
        if kind == "slow":
            time.sleep(SLOW_S)
        elif kind == "exit":
            sys.exit("chaos")
        else:
            raise ZeroDivisionError("chaos")

    def note(self, line: str) -> None:
        """One write, which no other process's can be mixed with."""
        descriptor = os.open(self.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


class Chaotic(OddGame):
    """Counts turns, in which anything may happen; every episode has a mark of its own in the metrics."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        group = Group("odd", options.agents, (3,), np.int32, 3, ("mark",), low=0, high=1 << 20)
        super().__init__(options, worlds, group)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Mark the episode."""
        super().reset(worlds, keys)
        self.signals[0].metrics[worlds, :, 0] = (keys % np.uint64(MARKS)).astype(np.float32)[:, None]

    def begin(self) -> None:
        """Perhaps fail, perhaps take long."""
        if isinstance(timeline._current, Chaos) and (self.turn == self.spec.turns // 2).any():
            kind = timeline._current.choose("collect", ("raise", "exit", "slow"))
            if kind is not None:
                timeline._current.strike("collect", kind)


CHAOTIC = GameEntry("chaotic", "Counts turns, in which anything may happen.", OddOptions, Chaotic)

if FOLDER in os.environ:
    timeline._current = Chaos(Path(os.environ[FOLDER]))  # type: ignore[assignment]
