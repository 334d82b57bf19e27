"""How many episodes a task holds, and how many tasks a worker has at once."""

from __future__ import annotations

from remuda.core.game import StepCost
from remuda.core.plan import Plan
from remuda.games.registry import find_game

TASKS_PER_WORKER = 2
"""Tasks a worker has at once: one that it plays, and one to go on with while the loop is busy."""


def task_size(plan: Plan, workers: int) -> int:
    """Episodes in a task: a worker's share of the worlds, which it plays as one batch; one episode of a slow game."""
    slow = find_game(plan.game).step_cost_of(plan.options) is StepCost.SLOW
    return 1 if slow else min(plan.round_episodes, -(-plan.worlds // workers))
