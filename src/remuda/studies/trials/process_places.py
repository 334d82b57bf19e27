"""Places on this machine: each is a process of its own, started with its first trial."""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.connection import wait

from remuda.core import session
from remuda.studies.trials.places import Message, TrialLost, TrialPlace
from remuda.studies.trials.process import TrialProcess
from remuda.studies.trials.trial import Trial


class ProcessPlace(TrialPlace):
    """A process."""

    def __init__(self, objects: Iterable[str]) -> None:
        super().__init__()
        self._objects = objects
        self.process: TrialProcess | None = None  # until the first trial is there

    def send(self, trial: Trial) -> None:
        """Start a trial."""
        self.trial = trial
        if self.process is None:
            self.process = TrialProcess(session.pack(self._objects))
        self.process.send(session.to_bytes(trial))

    def stop(self) -> None:
        """Ask the trial to save and to stop."""
        assert self.process is not None
        self.process.stop()


class ProcessPlaces:
    """Up to so many processes. One that dies is forgotten."""

    def __init__(self, size: int, objects: Iterable[str]) -> None:
        self._size, self._objects = size, [*objects]
        self._places: list[ProcessPlace] = []

    def busy(self) -> list[TrialPlace]:
        """Those with a trial."""
        return [place for place in self._places if place.trial is not None]

    def idle(self) -> TrialPlace | None:
        """A process without a trial, perhaps a new one."""
        place = next((place for place in self._places if place.trial is None), None)
        if place is None and len(self._places) < self._size:
            place = ProcessPlace(self._objects)
            self._places.append(place)
        return place

    def has_idle_cores(self) -> bool:
        """Whether a process could be busy that is not."""
        return len(self.busy()) < self._size

    def receive(self, timeout_s: float) -> list[tuple[TrialPlace, Message]]:
        """What the processes that have a trial sent: at most one message of each."""
        running = [(place, place.process) for place in self._places if place.process and place.trial is not None]
        ready = wait([process.connection for _, process in running], timeout_s)
        found: list[tuple[TrialPlace, Message]] = []
        for place, process in running:
            if process.connection not in ready:
                continue
            try:
                found.append((place, session.from_bytes(process.connection.recv_bytes())))
            except (EOFError, OSError):
                self._places.remove(place)
                found.append((place, TrialLost(f"its process {process.await_end()}")))
        return found

    def close(self) -> None:
        """Kill those with a trial; the others end by themselves when their pipe is closed."""
        started = [(place, place.process) for place in self._places if place.process]
        for place, process in started:
            process.connection.close()
            if place.trial is not None:
                process.kill()
        for _, process in started:
            process.await_end()
        self._places = []
