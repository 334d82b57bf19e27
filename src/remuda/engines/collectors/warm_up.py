"""Warming up a worker: play a turn into a slot, so that whatever is compiled or loaded on first use is there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import session
from remuda.core.game import Game, GameEntry, GameSpec, Pace, make_game
from remuda.core.options import Options
from remuda.core.plan import Plan
from remuda.core.policy import UNVERSIONED
from remuda.core.rng import Keys
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.herd import assign, bind_policy
from remuda.learners.registry import FROZEN
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.transport.slots import SlotArray, SlotLayout

LONGEST_REQUEST = 100_000
"""Characters of a rehearsal's script: Linux allows 128 KiB for a variable."""


class ShapeOnlyGame(Game):
    """Has the shape of another game, and nothing happens in it."""

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Everybody alive."""
        for signals in self.signals:
            signals.clear(worlds)
        self.over[worlds] = False

    def begin(self) -> None:
        """Nothing."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Nothing to see."""
        out[:] = 0

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Everything is allowed."""
        out[:] = True


def warm_up_request(plan: Plan, spec: GameSpec) -> str:
    """What a rehearsal needs to know, as JSON; nothing where it is too long for an environment variable."""
    groups = [{**asdict(group), "obs_dtype": np.dtype(group.obs_dtype).str} for group in spec.groups]
    facts = {"plan": plan.model_dump(mode="json"), "groups": groups, "turns": spec.turns, "path": sys.path}
    text = json.dumps(facts)
    return text if len(text) < LONGEST_REQUEST else ""


def warm_up_rollouts(plan: Plan, spec: GameSpec) -> None:
    """Play a turn into a slot, so that whatever is compiled or loaded on first use is there.

    Of simulators that play one world at a time only the shape is used: who knows what they do when they
    are forked.
    """
    entry = find_game(plan.game)
    together = entry.pace_of(plan.options) is Pace.TOGETHER
    game = make_game(entry, plan.options, [0, 0]) if together else ShapeOnlyGame(spec, 2)
    parts = [replace(part, player="random") if part.player.startswith(FROZEN) else part for part in assign(plan, spec)]
    bindings = [bind_policy(part, plan, spec, "cpu") for part in parts]
    for binding in bindings:
        binding.policy.load(binding.policy.rows, UNVERSIONED)
    config, task = RolloutConfig.of(plan), Task((0, 1))
    rollout = Rollout(game, bindings, config)
    for worlds in (2, 3):  # a slot that is full and one that is not lie differently in memory
        rollout.start(task)
        rollout.play(SlotArray(SlotLayout.of(spec, bindings, worlds), 1).fragments(0, task, config, turns=1))


def warm_up_without_objects(plan: Plan, spec: GameSpec) -> None:
    """`warm_up_rollouts` in a process that has no objects of a Python session: its games have only their shape here."""
    if session.is_session_name(plan.game):
        stand_in = GameEntry(plan.game, "", Options, lambda options, worlds: ShapeOnlyGame(spec, len(worlds)))
        session.bind(plan.game, stand_in)  # a worker replaces it by the game that its parent sends
        plan = plan.model_copy(update={"options": {}})
    warm_up_rollouts(plan, spec)
