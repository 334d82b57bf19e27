"""Failures as data: what a worker or a learner reports to the failure log."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.task import Task

MAX_TRACEBACK = 20_000
"""Characters of a traceback that are kept."""


@dataclass(frozen=True)
class TaskFailure:
    """A task that was not played to its end."""

    task: Task
    worker: str  # that played it
    turn: int
    message: str  # one sentence
    traceback: str  # in the process that played it; empty if that process died
    actions: list[NDArray[np.int64]]  # per group, (turns, worlds, agents): up to and including `turn`

    @classmethod
    def of(
        cls, task: Task, worker: str, turn: int, message: str, traceback: str, out: Sequence[Fragment]
    ) -> TaskFailure:
        """A failure with the actions found in `out`, the fragments that the task was being written into."""
        return cls(task, worker, turn, message, traceback, [fragment.actions[: turn + 1].copy() for fragment in out])


@dataclass(frozen=True)
class SkippedUpdates:
    """Updates that some agents did not make, or that were lost. Their weights stay as they were."""

    agents: tuple[int, int]  # herd-wide numbers, first … last-1
    updates: int
    reason: str
    traceback: str = ""  # if the learner raised
    refusal: str = ""  # what is wrong with the learner itself, if remuda says so: no later update can be made

    def __str__(self) -> str:
        first, last = self.agents
        who = f"agent {first}" if last == first + 1 else f"agents {first} to {last - 1}"
        return f"{who}: {self.updates} updates skipped, {self.reason}; the weights before them are kept"


def format_traceback(error: BaseException) -> str:
    """The traceback of an error as text, causes first; of bounded length, since messages are part of it."""
    text = "".join(traceback.format_exception(error))
    half = MAX_TRACEBACK // 2
    return text if len(text) <= MAX_TRACEBACK else f"{text[:half]}\n… ({len(text):,} characters)\n{text[-half:]}"
