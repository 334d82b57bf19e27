"""A game and a learner that sleep: what is left is what the engine itself costs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from remuda.core.game import GameEntry, Group, StepCost
from remuda.core.options import Options
from remuda.learners.ppo.learner import PPO
from remuda.testing.odd_games import OddGame

UPDATE_S = 0.05
"""Seconds that an update (a gradient step) sleeps for each agent."""


class SleepOptions(Options):
    """How many agents, and how long an episode sleeps."""

    agents: int = Field(64, ge=1, description="agents")
    turns: int = Field(4, ge=1, description="turns of an episode")
    episode_s: float = Field(0.02, ge=0, description="seconds that a task sleeps, for all its worlds together")


class Sleepers(OddGame):
    """Counts turns, and sleeps at the first one."""

    def __init__(self, options: SleepOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("sleepers", options.agents, (3,), np.int32, 3, low=0, high=1 << 20))
        self._episode_s = options.episode_s

    def begin(self) -> None:
        """Sleep once per episode."""
        if (self.turn == 0).any():
            time.sleep(self._episode_s)


class SleepingLearner(PPO):
    """Sleeps instead of learning, one agent after another."""

    def update(self, count: int) -> None:
        """Sleep, and forget the data."""
        time.sleep(UPDATE_S * self.context.agents * count)
        self.skip(count)


SLEEPERS = GameEntry("sleepers", "Sleeps.", SleepOptions, Sleepers)
SIMULATORS = GameEntry("simulators", "Sleeps, world by world.", SleepOptions, Sleepers, step_cost=StepCost.SLOW)
