"""Which worker gets the next task, and what becomes of a task whose worker is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from remuda.core.failures import TaskFailure
from remuda.core.fragment import Fragment
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig

WorkerT = TypeVar("WorkerT")


def shortest_queue(workers: Iterable[WorkerT], pending: Callable[[WorkerT], int], limit: int) -> WorkerT | None:
    """The worker with the fewest pending tasks; None if each has `limit` of them already."""
    worker = min(workers, key=pending, default=None)
    return None if worker is None or pending(worker) >= limit else worker


def lost_with_worker(
    task: Task, worker: str, reason: str, turn: int, config: RolloutConfig, out: Sequence[Fragment] = ()
) -> TaskFailure:
    """The failure of the task that a worker was playing when it ended.

    `out` is what it was playing into, where that is still readable: the actions so far are kept for a replay.
    """
    where = f"turn {turn} of {task}, {config.describe_worlds(task)}, seed {config.seed}"
    return TaskFailure.of(task, worker, turn, f"{worker}: {reason} in {where}", "", out)
