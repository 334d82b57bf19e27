"""A game that takes its time, and that does something terrible once; what it computes depends on neither."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from remuda.core.game import GameEntry
from remuda.testing.odd_games import OddGame, OddOptions


class FaultOptions(OddOptions):
    """How slow, and what is to go wrong when."""

    brake: str = Field("", description="turns are slow while this file exists")
    pause_s: float = Field(0.05, ge=0, description="seconds a slow turn takes")
    fault: Literal["none", "kill", "segfault", "exit", "fail", "hang", "spin"] = "none"
    fault_turn: int = Field(6, ge=3, description="the turn it happens in; the first two are also played to warm up")
    fault_file: str = Field("", description="it happens once, to whoever makes this file; without one, always")


class Faulty(OddGame):
    """Counts turns, some of them its last."""

    def __init__(self, options: FaultOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds)
        self.options = options

    def begin(self) -> None:
        """Perhaps sleep, perhaps never wake up."""
        if self.options.brake and Path(self.options.brake).exists():
            time.sleep(self.options.pause_s)
        if self.options.fault != "none" and (self.turn == self.options.fault_turn).any() and self._is_my_turn():
            getattr(self, f"_{self.options.fault}")()

    def _is_my_turn(self) -> bool:
        if not self.options.fault_file:
            return True
        try:
            Path(self.options.fault_file).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _segfault(self) -> None:
        ctypes.string_at(0)

    def _exit(self) -> None:
        os._exit(3)

    def _fail(self) -> None:
        raise ZeroDivisionError("a bug of the game's author")

    def _hang(self) -> None:
        time.sleep(1_000_000)

    def _spin(self) -> None:
        """Hang with the interpreter's lock held: no other thread of this process runs any more."""
        ctypes.PyDLL(None).sleep(1_000_000)


FAULTY = GameEntry("faulty", "Counts turns, some of them its last.", FaultOptions, Faulty)
