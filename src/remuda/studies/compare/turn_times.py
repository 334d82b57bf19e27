"""Measures how a game spends its turns: how many an episode has, and how long each sleeps."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import make_game
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

MEASURE_S = 3.0
"""Seconds for which turns are measured."""
MIN_SLEEP_S = 0.0005
"""A shorter sleep counts as none: it comes from the clock or an interruption."""


@dataclass(frozen=True)
class TurnTimes:
    """How a world of a game spends its time."""

    per_episode: float  # turns
    asleep_s: NDArray[np.float64]  # of each turn that was measured

    @property
    def any_sleep(self) -> bool:
        """Whether turns sleep at all."""
        return bool(self.asleep_s.any())


def measure_turns(plan: Plan) -> TurnTimes:
    """Play one world with random policies for a while; a turn sleeps for its wall time minus its processor time."""
    game = make_game(find_game(plan.game), plan.options, [0])
    rollout = Rollout(game, random_bindings(game), RolloutConfig.of(plan))
    asleep: list[float] = []
    turns: list[int] = []
    last = [0.0, 0.0]  # wall and processor time when the turn before began; 0: there was none

    def before_turn() -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        if last[0]:
            asleep.append(max(0.0, (wall - last[0]) - (cpu - last[1])))
        last[:] = [wall, cpu]

    began, episode = time.monotonic(), 0
    with one_thread_each():
        while episode < 2 or time.monotonic() - began < MEASURE_S:
            last[0] = 0.0
            rollout.start(Task((episode * plan.worlds,)))
            turns.append(rollout.play(rollout.empty_fragments(), before_turn)[0].turns)
            episode += 1
    asleep_s = np.array(asleep or [0.0])
    asleep_s[asleep_s < MIN_SLEEP_S] = 0.0
    if np.count_nonzero(asleep_s) < len(asleep_s) / 20:  # the game does not sleep; other programs used the processor
        asleep_s[:] = 0.0
    return TurnTimes(float(np.mean(turns)), asleep_s)
