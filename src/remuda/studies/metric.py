"""Which metrics runs can be compared by: the columns of their evaluations."""

from __future__ import annotations

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.plan import Plan
from remuda.core.rewards import GAME_RETURN
from remuda.runs.settings import spec_of

CLOCKS = ("episodes", "agent_steps", "wall_s")
"""Columns of evaluations that count what a run has used; they can be compared, too."""


def check_metric(metric: str, plan: Plan, group: str | None = None) -> None:
    """Refuse a metric that the evaluations of this plan will not have, before anything is trained."""
    groups = spec_of(plan).groups
    names = [own.name for own in groups]
    if group is not None and group not in names:
        raise ConfigError(f"group={group!r}: the game has {', '.join(names)}")
    of_game = [name for own in groups if group in (None, own.name) for name in own.metrics]
    if metric not in (*of_game, "return", GAME_RETURN, "return_se", *CLOCKS):
        raise UnknownName("metric", metric, {"return", GAME_RETURN, *of_game})
