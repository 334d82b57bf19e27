"""Every error remuda raises on purpose.

RemudaError
├── UsageError          the user asked for something impossible; exit code 2
│   ├── ConfigError     an option, key or size is wrong
│   ├── UnknownName     no such game, engine, learner, option; names the nearest valid one
│   ├── RunError        a run directory is missing, not a run, in use, or exists already
│   ├── CheckpointError a checkpoint is damaged, not a checkpoint, or belongs to another plan
│   └── TraceError      a recorded trace is missing, damaged or not a trace
├── GameError           a game broke its contract or raised; names world, agent, turn
├── LearnerError        a learner raised in too many rounds
├── WorkerError         a worker process failed and the game is not the cause
├── OrderError          methods were called in the wrong order
├── StorageError        the disk is full or read-only
└── Stopped             a user or a callback asked the run to end; not a failure
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from traceback import FrameSummary, extract_tb

PACKAGE = Path(__file__).parents[1]
MAX_MESSAGE = 4000
"""Characters of a foreign error's message that are passed on: a simulator may put its whole state there."""

MAX_TYPING_LINES = 4
"""Lines of numba's message about a type error that are passed on, besides the first."""


def message_of(error: BaseException) -> str:
    """The message of an error that foreign code raised: of bounded length, and also where asking for it raises."""
    try:
        text = str(error)
    except Exception as second:  # __str__ of a foreign class may do anything
        return f"(its message cannot be read: {type(second).__name__})"
    text = _plain(text)
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)"


def _plain(text: str) -> str:
    """A message without colours and repetitions: numba says where a type error is once for each calling function."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    if "nopython" not in text:
        return text
    lines = text.splitlines()
    repeated = re.compile(r"^(Failed in nopython|During: |\s*\^?$)")
    told = list(dict.fromkeys(line for line in lines[1:] if not repeated.match(line)))
    return "\n".join([lines[0], *told[:MAX_TYPING_LINES]])


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class name if the message is empty."""
    return (message_of(error).splitlines() or [type(error).__name__])[0]


def user_frame(error: BaseException) -> FrameSummary | None:
    """The innermost line that raised in code of the user's own; None if all lines are remuda's or a library's."""
    return next((frame for frame in _foreign_frames(error) if not _is_of_library(frame.filename)), None)


def place_of(error: BaseException) -> str:
    """File and line of `user_frame`, or else of a library's code, as ` (file, line 3)`; empty if there is none."""
    frame = user_frame(error) or next(_foreign_frames(error), None)
    return f" ({frame.filename}, line {frame.lineno})" if frame else ""


def _foreign_frames(error: BaseException) -> Iterator[FrameSummary]:
    """Lines that are not remuda's, innermost first."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not Path(frame.filename).is_relative_to(PACKAGE):
            yield frame


def _is_of_library(file: str) -> bool:
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return bool(installed) or file.startswith("<frozen") or Path(file).is_relative_to(sysconfig.get_path("stdlib"))


LISTED_BY = {"setting": "`remuda settings`, `remuda games NAME` and `remuda learners NAME`"}
"""Commands that list names, of kinds with too many for a message."""


class RemudaError(Exception):
    """The root: catch this to catch every error that remuda raises on purpose."""


class UsageError(RemudaError):
    """The request is impossible; the message is one sentence that says what to change."""


class ConfigError(UsageError):
    """An option, key or size is wrong."""


class UnknownName(UsageError):
    """The name does not exist; the message offers the nearest valid one, or says which there are."""

    def __init__(self, kind: str, name: str, valid: Iterable[str]) -> None:
        names = sorted(valid)
        by_case = {own.lower(): own for own in names}
        near = get_close_matches(name.lower(), by_case, n=1, cutoff=0.55)
        listed = f"valid: {', '.join(names)}." if kind not in LISTED_BY else f"{LISTED_BY[kind]} list all."
        hint = f"did you mean {by_case[near[0]]!r}?" if near else listed
        super().__init__(f"unknown {kind} {name!r}: {hint}")


class RunError(UsageError):
    """A run directory is missing, not a run, in use, or exists already."""


class CheckpointError(UsageError):
    """A checkpoint is damaged, not a checkpoint, or belongs to another plan."""


class TraceError(UsageError):
    """A recorded trace is missing, damaged or not a trace."""


class GameError(RemudaError):
    """A game broke its contract or raised. `turn` is the turn of the episode, 0 if it is not known."""

    def __init__(self, text: str, turn: int = 0) -> None:
        super().__init__(text)
        self.turn = turn


class LearnerError(RemudaError):
    """A learner raised in too many rounds."""


class WorkerError(RemudaError):
    """A worker process failed and the game is not the cause, or too many workers failed."""


class OrderError(RemudaError):
    """Methods were called in the wrong order."""


class StorageError(RemudaError):
    """A file could not be written: the disk is full or read-only."""


class Stopped(RemudaError):
    """A user or a callback asked the run to end."""
