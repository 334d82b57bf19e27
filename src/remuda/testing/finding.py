"""Findings: what a conformance suite says about each promise."""

from __future__ import annotations

import bdb
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remuda.core.errors import RemudaError, message_of

Check = tuple[str, str, Callable[..., str | None]]
"""A promise, what breaking it means for training, and a function that returns what is wrong."""


class Note(str):
    """What a check returns if nothing is wrong for certain, but its author should know something."""


@dataclass(frozen=True)
class Finding:
    """One promise: whether it holds, and what it means for training if it does not."""

    promise: str
    problem: str | None
    meaning: str
    note: str = ""  # what else there is to say

    @property
    def good(self) -> bool:
        """Whether the promise holds."""
        return self.problem is None


def findings(checks: Sequence[Check], *subject: Any, necessary: int) -> list[Finding]:
    """Run every check on the subject; what the user's code raises becomes a finding.

    If one of the first `necessary` checks fails, the others would only repeat its problem: they are left out.
    """
    found: list[Finding] = []
    for number, (promise, meaning, test) in enumerate(checks):
        problem = None
        try:
            problem = test(*subject)
        except RemudaError as error:
            problem = _indented(str(error))
        except bdb.BdbQuit:  # from a breakpoint
            raise
        except Exception as error:  # the user's code may raise anything
            problem = _indented(f"raised {type(error).__name__}: {message_of(error)}")
        note = problem if isinstance(problem, Note) else ""
        problem = None if note else problem
        found.append(Finding(promise, problem, meaning, note))
        if problem is not None and number < necessary:
            break
    return found


def _indented(message: str) -> str:
    """A message of several lines that stands under its promise."""
    return message.replace("\n", "\n     ") if "nopython" in message else message
