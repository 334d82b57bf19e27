"""Messages between the loop's process and learner processes."""

from __future__ import annotations

from dataclasses import dataclass

from remuda.core.failures import SkippedUpdates
from remuda.core.task import Task
from remuda.engines.interfaces import TimeSpent
from remuda.transport.slots import SlotToken


@dataclass(frozen=True)
class TakeFragments:
    """To a learner process: take these worlds of this slot, which belong to this round."""

    token: SlotToken
    task: Task
    turns: int
    worlds: tuple[int, int]
    round: int


@dataclass(frozen=True)
class FragmentsTaken:
    """From a learner process: it has what it needs of the slot."""

    token: SlotToken
    worlds: tuple[int, int]
    versions: list[int]  # of each slice when it took them


@dataclass(frozen=True)
class RoundLearned:
    """From a learner process: a round is learned, and its rows are published."""

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
    """To a learner process: send everything the next update depends on."""


@dataclass(frozen=True)
class StateFollows:
    """From a learner process: its state follows, as arrays."""


@dataclass(frozen=True)
class RestoreState:
    """To a learner process: restore the state that follows, as arrays, and go on after `rounds` rounds.

    The state was saved after `saved` rounds. The updates between the two are lost: only the clocks move on.
    """

    saved: int
    rounds: int
    episodes: int = 0  # of the next round that will not be sent again
    report: bool = False  # send RoundLearned for the last of these rounds: it was never reported
