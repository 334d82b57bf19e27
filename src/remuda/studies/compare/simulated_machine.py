"""A discrete-event simulation of processes on a machine with a number of cores.

Processes that compute share the cores equally; processes that sleep or wait use none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

MAX_EVENTS = 400_000
"""A simulation ends after at most so many steps of time."""


@dataclass(frozen=True)
class Work:
    """Seconds of processor time."""

    seconds: float


@dataclass(frozen=True)
class Sleep:
    """Seconds without a processor."""

    seconds: float


Step = Work | Sleep | Callable[[], bool]
"""What a process does next; a function: wait until it returns True."""
SimulatedProcess = Generator[Step, None, None]


class SimulatedMachine:
    """Runs simulated processes; `now` is the simulated time in seconds."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.now = 0.0
        self._working: dict[SimulatedProcess, float] = {}  # seconds of processor time left
        self._sleeping: dict[SimulatedProcess, float] = {}  # seconds left
        self._waiting: dict[SimulatedProcess, Callable[[], bool]] = {}

    def add(self, process: SimulatedProcess) -> None:
        """Start a process."""
        self._resume(process)

    def _resume(self, process: SimulatedProcess) -> None:
        step = next(process, None)
        if isinstance(step, Work):
            self._working[process] = max(step.seconds, 1e-9)
        elif isinstance(step, Sleep):
            self._sleeping[process] = max(step.seconds, 1e-9)
        elif step is not None:
            self._waiting[process] = step

    def run(self, done: Callable[[], bool]) -> None:
        """Run until `done`, or until no process can continue."""
        for _ in range(MAX_EVENTS):
            while ready := [process for process, test in self._waiting.items() if test()]:
                for process in ready:
                    if self._waiting[process]():  # ask again: the others that were ready may have changed it
                        del self._waiting[process]
                        self._resume(process)
            if done() or not (self._working or self._sleeping):
                return
            self._advance()

    def _advance(self) -> None:
        """Let time pass until the next process has finished its step."""
        speed = min(1.0, self.cores / max(len(self._working), 1))
        ends = [left / speed for left in self._working.values()] + list(self._sleeping.values())
        passed = min(ends)
        self.now += passed
        finished = []
        for processes, step_cost in ((self._working, speed), (self._sleeping, 1.0)):
            for process in processes:
                processes[process] -= passed * step_cost
                if processes[process] <= 1e-12:
                    finished.append((processes, process))
        for processes, process in finished:
            del processes[process]
            self._resume(process)
