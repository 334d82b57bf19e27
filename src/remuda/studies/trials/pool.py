"""Runs trials side by side, each in a place of its own: a process of this machine, or an actor on a cluster.

A trial whose place is lost goes on from its last checkpoint in another one.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

from remuda.studies.trials.places import Message, Places, TrialLost, TrialPlace
from remuda.studies.trials.process import READY
from remuda.studies.trials.trial import Tell, Trial, TrialOutcome, TrialProgress, run_trial
from remuda.transport.processes import STOP_SIGNALS

MAX_DEATHS = 3
"""How often the process of one trial may die before the trial counts as failed."""
POLL_S = 0.5
"""Seconds between two looks at whether somebody asked to stop."""

NextTrial = Callable[[int], Trial | None]
"""Returns the next trial to start while so many run; None: none now, or, if none runs, none any more."""
Widen = Callable[[Trial, int], Trial | None]
"""Returns a trial under way with more threads, while so many run and cores are idle; None: it is to go on as it is."""


class TrialPool:
    """Runs trials. After a signal the trials under way save and stop, and `run` ends; `stopped_by` is the signal."""

    def __init__(self, places: Places | None, tell: Tell = lambda progress: None) -> None:
        """Without places trials run one after the other in this process."""
        self.stopped_by: int | None = None
        self._places, self._tell = places, tell
        self._again: list[Trial] = []  # those that lost their place
        self._deaths: Counter[str] = Counter()
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # A signal that is ignored stays ignored: nohup ignores SIGHUP for us. Only the main thread may set handlers.
        with suppress(ValueError):
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers_before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._places is not None:
            self._places.close()
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets the trials save and stop; the second exits at once, and the processes die with us."""
        if self.stopped_by is not None:
            os._exit(128 + number)
        self.stopped_by = (
            number  # `run` passes it on: a handler may have interrupted Ray, which must not be called then
        )

    def run(self, next_trial: NextTrial, widen: Widen = lambda trial, busy: None) -> Iterator[TrialOutcome]:
        """Run trials until there are no more; yields how each ended, in the order in which they end."""
        if self._places is None:
            yield from self._run_here(next_trial)
            return
        while True:
            may_start = self._start_trials(self._places, next_trial)
            busy = self._places.busy()
            if not busy and not may_start:
                return
            if self.stopped_by is not None:
                _stop_all(busy)
            elif self._places.has_idle_cores():
                _widen_trials(busy, widen)
            for place, message in self._places.receive(POLL_S):
                outcome = self._handle(place, message)
                if outcome is not None:
                    yield outcome

    def _run_here(self, next_trial: NextTrial) -> Iterator[TrialOutcome]:
        while self.stopped_by is None and (trial := next_trial(0)) is not None:
            outcome = run_trial(trial, self._tell)
            if outcome.status == "stopped" and self.stopped_by is None:
                self.stopped_by = signal.SIGINT  # training took the signal
            yield outcome

    def _start_trials(self, places: Places, next_trial: NextTrial) -> bool:
        """Give every idle place a trial; returns whether there may be more trials than places."""
        while self.stopped_by is None:
            place = places.idle()
            if place is None:
                return True
            trial = self._again.pop(0) if self._again else next_trial(len(places.busy()))
            if trial is None:
                return False
            place.send(trial)
        return False

    def _handle(self, place: TrialPlace, message: Message) -> TrialOutcome | None:
        """The outcome of a trial; None after a message about its progress, and if it goes on elsewhere."""
        if message == READY:
            if place.stopping or place.wider is not None:
                place.stop()  # the first signal came while it was ignored
            return None
        if isinstance(message, TrialProgress):
            self._tell(message)
            return None
        trial, wider = place.trial, place.wider
        assert trial is not None
        place.trial = place.wider = None
        if isinstance(message, TrialLost):
            return self._run_again(wider or trial, message, blameless=wider is not None)
        assert isinstance(message, TrialOutcome)
        if wider is not None and message.status == "stopped" and self.stopped_by is None:
            place.send(wider)
            return None
        return message

    def _run_again(self, trial: Trial, lost: TrialLost, blameless: bool) -> TrialOutcome | None:
        """Have a trial go on elsewhere, unless that happened too often."""
        if self.stopped_by is not None:
            return TrialOutcome(trial, "stopped")
        # One that was to be widened died of our signal, which came before training could take it.
        self._deaths[trial.name] += lost.counts and not blameless
        if self._deaths[trial.name] >= MAX_DEATHS:
            return TrialOutcome(trial, "failed", f"{lost.why}, {MAX_DEATHS} times")
        self._again.append(trial)
        return None


def _stop_all(busy: Sequence[TrialPlace]) -> None:
    """Ask all trials to save and to stop, once."""
    for place in busy:
        if not place.stopping:
            place.stopping = True
            place.stop()


def _widen_trials(busy: Sequence[TrialPlace], widen: Widen) -> None:
    """Ask trials that can use idle cores to save and to stop; they go on with more threads."""
    for place in busy:
        if place.trial is not None and place.wider is None:
            place.wider = widen(place.trial, len(busy))
            if place.wider is not None:
                place.stop()
