"""Measures what a turn of one world costs, before `engine=auto` decides whether worker processes pay."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remuda.core.errors import Stopped
from remuda.core.game import GameEntry, make_game
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

MEASURED_TURNS = 200
MEASURED_S = 0.4
"""Turns are measured until either is reached."""
GIVE_UP_S = 30.0
"""A game that has not answered by then is left to worker processes, which can be replaced."""


@dataclass(frozen=True)
class TurnCost:
    """Seconds of one turn of one world with random players."""

    wall_s: float
    cpu_s: float

    @property
    def waits(self) -> bool:
        """Whether a turn sleeps, or waits for another process, for most of its time."""
        return self.cpu_s < 0.5 * self.wall_s


def measure_turn(entry: GameEntry, options: Mapping[str, Any]) -> TurnCost | None:
    """The cost of a turn; None if the game raises or does not answer, which training will report."""
    found: list[TurnCost] = []
    thread = threading.Thread(target=_measure, args=(entry, options, found), daemon=True, name="measure a turn")
    thread.start()
    thread.join(GIVE_UP_S)
    return found[0] if found else None


def _measure(entry: GameEntry, options: Mapping[str, Any], found: list[TurnCost]) -> None:
    times: list[tuple[float, float]] = []

    def before_turn() -> None:
        times.append((time.perf_counter(), time.thread_time()))
        if len(times) > 2 and times[-1][0] - times[1][0] > MEASURED_S:
            raise Stopped("measured enough")

    try:
        game = make_game(entry, options, [0])
        rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1, True))
        rollout.start(Task((0,)))
        rollout.play(rollout.empty_fragments(min(game.spec.turns, MEASURED_TURNS)), before_turn)
    except Stopped:
        pass
    except BaseException:  # the game is the user's code; training meets the same error and reports it
        return
    times.append((time.perf_counter(), time.thread_time()))
    # The first turn may load or compile something.
    first, last = times[1 if len(times) > 2 else 0], times[-1]
    turns = len(times) - (2 if len(times) > 2 else 1)
    found.append(TurnCost((last[0] - first[0]) / turns, (last[1] - first[1]) / turns))
