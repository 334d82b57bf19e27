"""Messages between the loop's process and learner processes."""

from __future__ import annotations

from dataclasses import dataclass

from remuda.core.failures import SkippedUpdates
from remuda.core.task import Task
from remuda.engines.interfaces import TimeSpent
from remuda.transport.slots import SlotToken

AgentSlice = tuple[int, int, int]
"""A part of the herd, and which of its agents."""


@dataclass(frozen=True)
class TakeFragments:
    """Learn from these worlds of this slot, in this round."""

    token: SlotToken
    task: Task
    turns: int
    worlds: tuple[int, int]
    round: int


@dataclass(frozen=True)
class FragmentsTaken:
    """The slot is not needed here any more."""

    token: SlotToken
    worlds: tuple[int, int]
    versions: list[int]  # of each slice when it took it


@dataclass(frozen=True)
class RoundLearned:
    """A round is learned; rows are on the board."""

    round: int
    metrics: list[dict[str, list[float]]]  # per slice
    steps: list[int]  # per agent, slice after slice
    lags: dict[int, int]
    spent: TimeSpent
    waited_s: float
    peak_bytes: int
    skipped_updates: list[SkippedUpdates]


@dataclass(frozen=True)
class SendState:
    """Send everything the next update depends on."""


@dataclass(frozen=True)
class StateFollows:
    """It follows, as arrays."""


@dataclass(frozen=True)
class RestoreState:
    """Become what follows, as arrays, which was so after `saved` rounds, and go on after `rounds`."""

    saved: int
    rounds: int
    have: int = 0  # episodes of the next round that are not to be waited for
    report: bool = False  # somebody waits to hear that the last of these rounds is learned
