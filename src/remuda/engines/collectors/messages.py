"""Messages between the loop's process and collecting workers."""

from __future__ import annotations

from dataclasses import dataclass

from remuda.core.task import InvalidSample, Task
from remuda.transport.slots import SlotToken


@dataclass(frozen=True)
class PlayTask:
    """To a worker: play this task into this slot, which is the worker's until it reports back."""

    token: SlotToken
    task: Task


@dataclass(frozen=True)
class TaskPlayed:
    """From a worker: the task is played, its fragments are in the slot."""

    token: SlotToken
    turns: int
    cpu_s: float
    waited_s: float  # for the task
    peak_bytes: int
    invalid_samples: list[InvalidSample]


@dataclass(frozen=True)
class TaskFailed:
    """From a worker: the game raised an error; the actions so far are in the slot."""

    token: SlotToken
    turn: int
    what: str
    trace: str


@dataclass(frozen=True)
class ActionRequest:
    """From a worker: agents first … last-1 of a policy binding need actions for this turn of this slot."""

    token: SlotToken
    turn: int
    binding: int
    first: int
    last: int


@dataclass(frozen=True)
class ActionsReady:
    """To a worker: the actions that it requested are in its slot."""
