"""The learner that the conformance suite checks, with rounds of a bandit to learn from."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment, copy_fragment
from remuda.core.game import GameSpec, make_game
from remuda.core.learner import Learner, LearnerContext
from remuda.core.policy import Policy, PolicyBinding
from remuda.core.task import Task
from remuda.learners.registry import find_learner
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing.bandit import BANDIT

WORLDS, ROUNDS, UPDATES = 8, 3, 3
Arrays = dict[str, NDArray[Any]]


class LearnerSuite:
    """One learner, rounds of a bandit that its agents played, and what it learns from them."""

    folder: Path

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.given = name, options
        self.kind = find_learner(name)

    @cached_property
    def options(self) -> Any:
        """The learner's options."""
        return self.kind.options_type().read(self.given, f"learner {self.name}")

    @property
    def spec(self) -> GameSpec:
        """Of the bandit."""
        return make_game(BANDIT, {}, [0]).spec

    def make(self, first: int = 0, last: int | None = None) -> Learner:
        """A new learner for agents first … last-1."""
        spec = self.spec
        last = spec.agents if last is None else last
        context = LearnerContext(
            spec.groups[0], 0, first, last, first, 0, spec.turns, WORLDS, ROUNDS * UPDATES, "fp32", "cpu"
        )
        return self.kind(context, self.options)

    def policy(self, own: Learner) -> Policy:
        """A policy with the rows of a learner of the whole herd."""
        policy = self.kind.make_policy(own.context.group, own.context.agents, self.options, "fp32", "cpu")
        policy.load(own.rows(), 0)
        return policy

    @cached_property
    def rounds(self) -> list[Fragment]:
        """Rounds played with the first weights."""
        policy = self.policy(self.make())
        game = make_game(BANDIT, {}, range(WORLDS))
        rollout = Rollout(game, [PolicyBinding(0, 0, policy.agents, policy)], RolloutConfig(0, WORLDS))
        played = []
        for number in range(ROUNDS):
            rollout.start(Task(tuple(range(number * WORLDS, (number + 1) * WORLDS))))
            played.append(copy_fragment(rollout.play(rollout.empty_fragments())[0]))
        return played

    def learn(self, own: Learner, rounds: list[Fragment] | None = None) -> Arrays:
        """State, report and rows after learning from some rounds (default: all)."""
        report: Arrays = {}
        for fragment in self.rounds if rounds is None else rounds:
            own.take(own.context.select([copy_fragment(fragment)]))
            own.update(UPDATES)
            report = dict(own.report())
        return {name: np.array(array) for name, array in {**own.state(), **report, "rows": own.rows()}.items()}

    @cached_property
    def learned(self) -> Arrays:
        """What a learner of the whole herd has after all rounds."""
        return self.learn(self.make())
