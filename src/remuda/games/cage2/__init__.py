"""CAGE Challenge 2: the rules, compiled, and compared step by step with recorded games of the original.

- `options`: the options of the game. `game`: the game itself.
- `network`: hosts, ports, exploits, decoys. `state`: the state of a world. `simulator`: one step. `red`: the attackers.
- `attacker`: red as a player that learns.
- `observation`: what blue sees now. `memory`: what it remembers. `belief`: what it can conclude. `truth`: all of it.
- `compact`: fewer actions. `useful`: those of them that make a difference. `turn`: what every side does in a turn.
- `exported`: memory, belief and actions as a file of their own, for an exported agent.
- `workflow`: orders of repair. `defenders`: scripted blue players. `planner`: one of them, by rollouts from the belief.
- `picture`: pictures.
- `traces`, `verify`: recorded games of the original, and the comparison with them; see DIFFERENCES.md.
- `cyborg`: the original simulator behind the same game.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remuda.core.game import Game, GameEntry, StepCost, count_distinct_worlds
from remuda.games.cage2 import cyborg
from remuda.games.cage2.defenders import DEFENDERS
from remuda.games.cage2.exported import exported_files
from remuda.games.cage2.game import Cage2
from remuda.games.cage2.options import Cage2Options, workflow_orders
from remuda.games.cage2.red import AGENTS
from remuda.games.shipped import SHIPPED

__all__ = ["ENTRY"]


def _make(options: Cage2Options, worlds: Sequence[int]) -> Game:
    """Worlds of our simulator, or of the original one if the options ask for it."""
    return Cage2(options, worlds) if options.simulator == "own" else cyborg.build(options, worlds)


def _kinds(options: Cage2Options) -> int:
    """How many different worlds these options give."""
    reds = len(AGENTS) if options.red == "mixed" else 1
    return math.lcm(count_distinct_worlds(options), reds, max(1, len(workflow_orders(options))))


ENTRY = GameEntry(
    name="cage2",
    summary=SHIPPED["cage2"].summary,
    options=Cage2Options,
    make=_make,
    players=DEFENDERS,
    distinct_worlds=_kinds,
    step_cost=lambda options: StepCost.BATCHED if options.simulator == "own" else StepCost.SLOW,
    exported_files=exported_files,
)
