"""CAGE Challenge 2: the rules, compiled, and compared step by step with recorded games of the original."""

from __future__ import annotations

import math
from collections.abc import Sequence

from remuda.core.game import Game, GameEntry, StepCost, count_distinct_worlds
from remuda.games.cage2 import cyborg
from remuda.games.cage2.defenders import DEFENDERS
from remuda.games.cage2.game import Cage2, Cage2Options, workflows
from remuda.games.cage2.red import AGENTS

__all__ = ["ENTRY"]


def _make(options: Cage2Options, worlds: Sequence[int]) -> Game:
    """Our simulator, or the original one where the options ask for it."""
    return Cage2(options, worlds) if options.simulator == "own" else cyborg.build(options, worlds)


def _distinct_worlds(options: Cage2Options) -> int:
    reds = len(AGENTS) if options.red == "mixed" else 1
    return math.lcm(count_distinct_worlds(options), reds, max(1, len(workflows(options))))


ENTRY = GameEntry(
    name="cage2",
    summary="CAGE Challenge 2: defend a network of 13 hosts against scripted intruders",
    options=Cage2Options,
    make=_make,
    players=DEFENDERS,
    distinct_worlds=_distinct_worlds,
    step_cost=lambda options: StepCost.BATCHED if options.simulator == "own" else StepCost.SLOW,
)
