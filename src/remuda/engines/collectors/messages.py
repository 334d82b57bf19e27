"""Messages between the loop's process and collecting workers."""

from __future__ import annotations

from dataclasses import dataclass

from remuda.core.task import InvalidSample, Task
from remuda.transport.slots import SlotToken


@dataclass(frozen=True)
class PlayTask:
    """Play this task into this slot."""

    token: SlotToken
    task: Task


@dataclass(frozen=True)
class TaskPlayed:
    """The slot is filled."""

    token: SlotToken
    turns: int
    cpu_s: float
    waited_s: float  # for the task
    peak_bytes: int
    invalid_samples: list[InvalidSample]


@dataclass(frozen=True)
class TaskFailed:
    """The game failed over this slot; the actions so far are in it."""

    token: SlotToken
    turn: int
    what: str
    trace: str


@dataclass(frozen=True)
class ActionRequest:
    """Agents first … last-1 of a seat want to know what to do in this turn of this slot."""

    token: SlotToken
    turn: int
    binding: int
    first: int
    last: int


@dataclass(frozen=True)
class ActionsReady:
    """It is written in the slot."""
