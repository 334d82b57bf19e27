"""Where the trials of a pool run: the interface of a place. `opening.py` makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from remuda.core.errors import ConfigError
from remuda.core.plan import Plan
from remuda.studies.trials.trial import Trial, TrialOutcome, TrialProgress

PROCESSES, RAY = "processes", "ray"
ON_HELP = (
    "where trials run: processes (of this machine), ray (a new cluster on this machine), "
    "ray:HOST:PORT or ray:auto (a cluster that exists)"
)


@dataclass(frozen=True)
class TrialLost:
    """A trial's process, or its node, is gone; the trial goes on from its last checkpoint elsewhere."""

    why: str
    counts: bool = True  # whether the trial may be to blame: after several of these it counts as failed


Message = str | TrialProgress | TrialOutcome | TrialLost
"""What arrives from a place: `process.READY`, or about its trial."""


class TrialPlace(ABC):
    """Runs one trial after the other."""

    def __init__(self) -> None:
        self.trial: Trial | None = None  # that it runs; the pool clears it when the trial has ended
        self.wider: Trial | None = None  # the same trial with more threads; it was asked to save and to stop for it
        self.stopping = False  # whether it was asked to save and to stop because the pool ends

    @abstractmethod
    def send(self, trial: Trial) -> None:
        """Start a trial."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the trial to save and to stop."""


class Places(Protocol):
    """All places of a pool."""

    def busy(self) -> list[TrialPlace]:
        """Those with a trial."""

    def idle(self) -> TrialPlace | None:
        """One without a trial, or None if there is none at the moment."""

    def has_idle_cores(self) -> bool:
        """Whether trials that are under way could use more threads."""

    def receive(self, timeout_s: float) -> Sequence[tuple[TrialPlace, Message]]:
        """What has arrived; waits so long for it."""

    def close(self) -> None:
        """Kill what still runs, and give everything back."""


def on_ray(on: str) -> bool:
    """Whether trials run on a Ray cluster; refuses what is no place."""
    kind, _, address = on.partition(":")
    if on in (PROCESSES, RAY) or (kind == RAY and address):
        return kind == RAY
    raise ConfigError(f"on={on!r} should be processes, ray, ray:auto or ray:HOST:PORT")


def threads_on_cluster(plan: Plan) -> int:
    """Threads or processes of a trial's engine where the cores of this machine do not decide."""
    return plan.n_workers or max(1, int(plan.actor_cpus))
