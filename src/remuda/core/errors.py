"""Every error remuda raises on purpose.

RemudaError
├── UsageError          the person asked for something that cannot be; exit code 2
│   ├── ConfigError     an option, key or size is wrong
│   ├── UnknownName     no such game, engine, learner, option; names the nearest
│   ├── RunError        a run directory is missing, foreign, in use or already there
│   ├── CheckpointError a checkpoint is damaged, foreign or of another plan
│   └── TraceError      a recorded trace is missing, damaged or not a trace
├── GameError           a game broke its contract or raised; names world, agent, turn
├── LearnerError        a learner keeps failing to learn
├── WorkerError         a worker process failed in a way that is not a game's fault
├── OrderError          calls came in an order that makes no sense
├── StorageError        the disk refused (full, read-only)
└── Stopped             a person or a callback asked the run to end; not a failure
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def first_line(error: BaseException) -> str:
    """What somebody else's error says, in one line; its name where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class RemudaError(Exception):
    """The root: catch this to catch all of ours."""


class UsageError(RemudaError):
    """What was asked cannot be done; the message is one sentence with the remedy."""


class ConfigError(UsageError):
    """An option, key or size is wrong."""


class UnknownName(UsageError):
    """There is no such name; the nearest valid one is offered."""

    def __init__(self, kind: str, name: str, valid: Iterable[str]) -> None:
        names = sorted(valid)
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(names)}."
        super().__init__(f"unknown {kind} {name!r}: {hint}")


class RunError(UsageError):
    """A run directory is missing, foreign, in use or already there."""


class CheckpointError(UsageError):
    """A checkpoint is damaged, foreign or belongs to another plan."""


class TraceError(UsageError):
    """A recorded trace is missing, damaged or not a trace."""


class GameError(RemudaError):
    """A game broke its contract or raised, in a turn if that is known."""

    def __init__(self, text: str, turn: int = 0) -> None:
        super().__init__(text)
        self.turn = turn


class LearnerError(RemudaError):
    """A learner keeps failing to learn."""


class WorkerError(RemudaError):
    """A worker process failed in a way that is not a game's fault, or too many of them did."""


class OrderError(RemudaError):
    """Calls came in an order that makes no sense."""


class StorageError(RemudaError):
    """The disk refused to take what had to be written."""


class Stopped(RemudaError):
    """A person or a callback asked the run to end."""
