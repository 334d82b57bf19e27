"""Stopping a run: by a signal, or because a callback asks for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from remuda.core.errors import Stopped


class StopRequest:
    """Set once somebody wants the run to end; the loop checks it after every round and while it waits."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        self.signal: int | None = None

    def __call__(self, reason: str) -> None:
        """Ask the run to end."""
        self.reason = self.reason or reason
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise Stopped if somebody asked."""
        if self._event.is_set():
            raise Stopped(self.reason)


@contextmanager
def stop_on_signals(request: StopRequest, shout: Callable[[str], None]) -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or hang-up stops and saves; the second ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.is_set:
            os._exit(128 + number)
        request.signal = number
        request(signal.Signals(number).name)
        shout("stopping: saving the last complete round (again to exit at once, without saving)")

    # A signal that the caller ignores stays ignored: nohup ignores SIGHUP, a shell's background job SIGINT.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
