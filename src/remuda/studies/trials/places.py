"""Where the trials of a pool run: the interface of a place, and the kinds of places there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from remuda.core.errors import ConfigError
from remuda.core.plan import Plan
from remuda.studies.trials.trial import Trial, TrialOutcome, TrialProgress

if TYPE_CHECKING:
    from remuda.studies.trials.ray_places import RayPlaces

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


def open_places(
    on: str,
    size: int,
    folder: Path,
    plans: Sequence[Plan],
    objects: Iterable[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Places | None:
    """Places for `size` trials of these plans, with directories below `folder`; None: run them here, one by one.

    `objects` are names of games and networks of this Python session, which the processes get.
    """
    from remuda.studies.trials.process_places import ProcessPlaces

    if on_ray(on) and plans:
        return _open_ray(on, size, folder, plans, objects, say)
    return None if size == 1 or not plans else ProcessPlaces(size, objects)


def _open_ray(
    on: str, size: int, folder: Path, plans: Sequence[Plan], objects: Iterable[str], say: Callable[[str], None]
) -> RayPlaces:
    from remuda.studies.trials.ray_places import RayPlaces

    if any(plan.engine == RAY for plan in plans):
        raise ConfigError(
            f"on={on} has each trial on one node, and engine=ray would spread it again: choose another engine, "
            "or leave out on"
        )
    return RayPlaces(on.partition(":")[2] or None, size, folder, plans, objects, say)
