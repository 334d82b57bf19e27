"""What can go wrong in a task or an update, as data that travels from a worker to the failure log."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.task import Task


@dataclass(frozen=True)
class TaskFailure:
    """A task that was not played to its end."""

    task: Task
    who: str  # played it
    turn: int
    what: str  # in a sentence
    trace: str  # of the program that played it, if it could still say
    actions: list[NDArray[np.int64]]  # per group, (turns, worlds, agents): up to that turn

    @classmethod
    def of(cls, task: Task, who: str, turn: int, what: str, trace: str, out: Sequence[Fragment]) -> TaskFailure:
        """With the actions from the fragments it was being played into."""
        return cls(task, who, turn, what, trace, [fragment.actions[: turn + 1].copy() for fragment in out])


@dataclass(frozen=True)
class SkippedUpdates:
    """Updates that some agents did not make, or that were lost."""

    agents: tuple[int, int]  # herd-wide numbers, first … last-1
    updates: int
    what: str
    trace: str = ""  # where a learner raised

    def __str__(self) -> str:
        first, last = self.agents
        who = f"agent {first}" if last == first + 1 else f"agents {first} to {last - 1}"
        return f"{who}: {self.updates} updates left out, {self.what}; the weights before them are kept"


def trace_of(error: BaseException) -> str:
    """The traceback of an error, causes first."""
    return "".join(traceback.format_exception(error))
