"""Plans, and what a run printed and learned, for the tests of engines."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import remuda
from remuda.core.plan import Plan
from remuda.runs.settings import make_plan

ONE_WORLD_AT_A_TIME: dict[str, Any] = {
    "game": "remuda.testing:BUSY", "turns": 6, "work": 0, "worlds": 2, "total_episodes": 4, "evaluate_episodes": 2,
    "layer": 8, "quantiles": 4, "acting_quantiles": 4, "frames": 1, "batch_size": 4, "replay_size": 64,
    "deterministic": True, "device": "cpu", "pictures": False,
}  # fmt: skip
"""A plan with a game that plays one world at a time."""


def plan_of(**settings: Any) -> Plan:
    return make_plan({"game": "treasurehunt", "worlds": 5, **settings})


def console_lines(run: remuda.Run, text: str) -> list[str]:
    """Lines of the console log that contain a text."""
    return [line for line in (run.path / "console.log").read_text().splitlines() if text in line]


def fingerprint(run: remuda.Run) -> str:
    return str(run.result["weights_sha256"])


def refuse(number: int) -> Callable[..., Any]:
    """A function that fails as a system call does that has run out of something."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call
