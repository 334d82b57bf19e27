"""Warming up a worker: playing one turn into a slot compiles and loads everything that is needed later."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import session
from remuda.core.game import Game, GameEntry, GameSpec, StepCost, make_game
from remuda.core.options import Options
from remuda.core.plan import FROZEN, Plan
from remuda.core.policy import UNVERSIONED
from remuda.core.rng import Keys
from remuda.core.spaces import space_to_json
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.herd import assign, bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.transport.slots import SlotArray, SlotLayout

MAX_REQUEST_CHARS = 100_000
"""Longest warm-up request: Linux allows 128 KiB for an environment variable."""


class ShapeOnlyGame(Game):
    """Has the shape of another game, but nothing ever happens in it."""

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """All agents are alive."""
        for signals in self.signals:
            signals.clear(worlds)
        self.over[worlds] = False

    def begin(self) -> None:
        """Nothing happens."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Observations are zero."""
        out[:] = 0

    def act(self, group: int, first: int, last: int, actions: NDArray[Any]) -> None:
        """Nothing happens."""

    def end(self) -> None:
        """Nothing happens."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Every action is allowed."""
        out[:] = True

    def observe_state(self, group: int, out: NDArray[Any]) -> None:
        """Zeros."""
        out[:] = 0


def warm_up_request(plan: Plan, spec: GameSpec) -> str:
    """What a fork server needs for a warm-up, as JSON; empty if it is too long for an environment variable."""
    groups = [
        {
            **vars(group),
            "obs_dtype": np.dtype(group.obs_dtype).str,
            "state_dtype": np.dtype(group.state_dtype).str,
            "action_space": space_to_json(group.action_space),
            "observation_space": None,
            "raw_space": None,
        }
        for group in spec.groups
    ]
    facts = {"plan": plan.model_dump(mode="json"), "groups": groups, "turns": spec.turns, "path": sys.path}
    text = json.dumps(facts)
    return text if len(text) < MAX_REQUEST_CHARS else ""


def warm_up_rollouts(plan: Plan, spec: GameSpec) -> None:
    """Play one turn into a slot, so that everything that is compiled or loaded on first use is ready.

    A game that plays one world at a time may wrap a simulator with threads, files or sockets, whose state after a fork
    is unknown. It is not started here; a game of the same shape plays in its place.
    """
    entry = find_game(plan.game)
    together = entry.step_cost_of(plan.options) is StepCost.BATCHED
    game = make_game(entry, plan.options, [0, 0]) if together else ShapeOnlyGame(spec, 2)
    parts = [replace(part, player="random") if part.player.startswith(FROZEN) else part for part in assign(plan, spec)]
    bindings = [bind_policy(part, plan, spec, "cpu") for part in parts]
    for binding in bindings:
        binding.policy.load(binding.policy.rows, UNVERSIONED)
    config, task = RolloutConfig.of(plan), Task((0, 1))
    rollout = Rollout(game, bindings, config)
    # Twice: arrays of a slot that is full are contiguous, those of a slot that is not are strided, and numba compiles
    # for each of them.
    for worlds in (2, 3):
        rollout.start(task)
        rollout.play(SlotArray(SlotLayout.of(spec, bindings, worlds), 1).fragments(0, task, config, turns=1))


def warm_up_without_objects(plan: Plan, spec: GameSpec) -> None:
    """`warm_up_rollouts` in a process that has no objects of a Python session: its games have only their shape here."""
    if session.is_session_name(plan.game):
        stand_in = GameEntry(plan.game, "", Options, lambda options, worlds: ShapeOnlyGame(spec, len(worlds)))
        session.bind(plan.game, stand_in)  # a worker replaces it by the game that its parent sends
        plan = plan.model_copy(update={"options": {}})
    if any(map(session.is_session_name, (plan.learner, *plan.learners.values()))):
        plan = plan.model_copy(update={"learner": "random", "learners": {}})
    warm_up_rollouts(plan, spec)
