"""Measures what a turn of one world costs, before `engine=auto` decides whether worker processes pay."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from remuda.core.errors import Stopped
from remuda.core.game import GameEntry, make_game
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MEASURED_TURNS = 200
MEASURED_S = 0.4
"""Turns are measured until either is reached."""
CAN_COUNT_PAUSES = resource is not None and hasattr(resource, "RUSAGE_THREAD")  # Linux and FreeBSD
GIVE_UP_S = 30.0
"""A game that has not answered by then is left to worker processes, which can be replaced."""


@dataclass(frozen=True)
class TurnCost:
    """Seconds of one turn of one world with random players."""

    wall_s: float
    cpu_s: float
    pauses: float = 1.0  # how often it gave up the processor by itself
    make_s: float = 0.0  # of making the world, in seconds of wall-clock time

    @property
    def waits(self) -> bool:
        """Whether a turn sleeps, or waits for another process, for most of its time.

        On a busy machine a turn that computes takes longer than its processor time, too, but it never pauses by itself.
        """
        return self.cpu_s < 0.5 * self.wall_s and self.pauses >= 0.5


def measure_turn(entry: GameEntry, options: Mapping[str, Any]) -> TurnCost | None:
    """The cost of a turn; None if the game raises or does not answer, which training will report."""
    found: list[TurnCost] = []
    thread = threading.Thread(target=_measure, args=(entry, options, found), daemon=True, name="measure a turn")
    thread.start()
    thread.join(GIVE_UP_S)
    return found[0] if found else None


def _measure(entry: GameEntry, options: Mapping[str, Any], found: list[TurnCost]) -> None:
    try:
        began = time.perf_counter()
        game = make_game(entry, options, [0])
        make_s = time.perf_counter() - began
        rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1, True))
        rollout.start(Task((0,)))
        rollout.play(rollout.empty_fragments(1))  # the first turn may load or compile something
        found.append(replace(_play(rollout, min(game.spec.turns, MEASURED_TURNS)), make_s=make_s))
    except BaseException:  # the game is the user's code; training meets the same error and reports it
        return


def _play(rollout: Rollout, max_turns: int) -> TurnCost:
    """Play episodes, the time between them included, until enough is measured."""
    turns = episode = 0
    wall, cpu, pauses = time.perf_counter(), time.thread_time(), _pauses()

    def before_turn() -> None:
        nonlocal turns
        if turns and (turns >= MEASURED_TURNS or time.perf_counter() - wall > MEASURED_S):
            raise Stopped("measured enough")
        turns += 1

    with suppress(Stopped):
        while True:  # an episode may be over after a turn
            episode += 1
            rollout.start(Task((episode,)))
            rollout.play(rollout.empty_fragments(max_turns), before_turn)
    wall_s, cpu_s, pauses = time.perf_counter() - wall, time.thread_time() - cpu, _pauses() - pauses
    return TurnCost(wall_s / turns, cpu_s / turns, pauses / turns if CAN_COUNT_PAUSES else 1.0)


def _pauses() -> int:
    """How often this thread has given up the processor by itself; 0 where the system does not say."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if CAN_COUNT_PAUSES else 0
