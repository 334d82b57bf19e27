"""Learners that each break one promise of the conformance suite, in `BROKEN_LEARNERS` by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.learner import State
from remuda.core.policy import Policy, PolicyInput, PolicyOutput
from remuda.learners.schedule import PerAgent
from remuda.learners.single_agent.off_policy import OffPolicyLearner, ReplayBatch
from remuda.learners.single_agent.options import OffPolicyOptions
from remuda.learners.single_agent.policy import GreedyPolicy


class SoundOptions(OffPolicyOptions):
    """Options with which a linear network learns the bandit within seconds."""

    lr: PerAgent = 0.02
    gamma: PerAgent = 0.0
    batch_size: int = 16
    epsilon: PerAgent = 0.3


class Sound(OffPolicyLearner):
    """Breaks nothing: a linear network that predicts rewards."""

    options_class = SoundOptions

    @staticmethod
    def network(group: Group, options: Any) -> nn.Module:
        """One linear layer."""
        return nn.Sequential(nn.Flatten(), nn.Linear(options.frames * group.obs_shape[0], group.actions))

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: ReplayBatch, options: Any) -> Tensor:
        """The squared error."""
        values = net(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        error: Tensor = (values - batch.rewards).square().mean()
        return error


class RaisesAtOnce(Sound):
    """Cannot be made."""

    @staticmethod
    def network(group: Group, options: Any) -> nn.Module:
        """Raise what a bug of its author would raise."""
        raise ZeroDivisionError("a bug of the learner's author")


class CountsTwice(Sound):
    """Says that it made twice as many steps."""

    def update(self, count: int) -> None:
        """Count the steps once more."""
        before = self.steps.copy()
        super().update(count)
        self.steps += self.steps - before


class OncePerCall(Sound):
    """Moves its target once per call of update, however many updates that are."""

    def update(self, count: int) -> None:
        """Decay the weights once per call."""
        super().update(count)
        self.weights.mul_(0.999)


class ForgetsAMetric(Sound):
    """Reports less than it declares."""

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Leave the loss out."""
        report = super().report()
        del report["loss"]
        return report


class SharesRewards(Sound):
    """Pays each agent a little of what the first neighbours in its slice got."""

    def take(self, fragment: Fragment) -> None:
        """Add the mean over agents to every reward."""
        mean = fragment.rewards.mean(axis=2, keepdims=True)
        super().take(replace(fragment, rewards=fragment.rewards + 0.01 * mean))


class DrawsByPlace(Sound):
    """Draws by the place in its slice, not by the number in the herd."""

    def _batch(self, first: int, last: int, clock: int) -> tuple[Tensor, ...]:
        """Use the update as a key that depends on the place."""
        return super()._batch(first, last, clock + self.context.agents)


class ForgetsTheOptimiser(Sound):
    """Saves no moments of Adam."""

    def state(self) -> State:
        """Leave the moments out."""
        return {name: array for name, array in super().state().items() if name not in ("adam.mean", "adam.square")}

    def restore(self, state: State) -> None:
        """Start with new moments."""
        self.check_state(state)
        new = {name: np.zeros_like(state["weights"]) for name in ("adam.mean", "adam.square")}
        complete = {**state, **new}
        checked, self.check_state = self.check_state, lambda state: None  # type: ignore[method-assign]
        super().restore(complete)
        self.check_state = checked  # type: ignore[method-assign]


class TakesAnything(Sound):
    """Restores whatever it is given."""

    def check_state(self, state: State) -> None:
        """Check nothing."""

    def restore(self, state: State) -> None:
        """Use what is there."""
        if state.keys() == self.state().keys() and len(state["weights"]) == self.context.agents:
            super().restore(state)


class StandsStill(Sound):
    """Does not advance its clocks when updates are skipped."""

    def skip(self, count: int) -> None:
        """Do nothing."""


class DrawsGlobally(Sound):
    """Adds noise of torch's global generator to its weights."""

    def update(self, count: int) -> None:
        """Disturb the weights after each update."""
        super().update(count)
        self.weights.add_(torch.randn(self.weights.shape[1]), alpha=1e-6 * count)


class KeepsFragments(Sound):
    """Reads the fragments when it updates, without saying so."""

    def __init__(self, context: Any, options: Any) -> None:
        super().__init__(context, options)
        self._kept: list[Fragment] = []

    def take(self, fragment: Fragment) -> None:
        """Keep the fragment itself."""
        self._kept.append(fragment)

    def update(self, count: int) -> None:
        """Copy it only now."""
        for fragment in self._kept:
            super().take(fragment)
        self._kept = []
        super().update(count)


class PublishesItsOwn(Sound):
    """Publishes the array that it goes on writing to."""

    def rows(self) -> NDArray[np.float32]:
        """Return a kept array, refreshed."""
        if not hasattr(self, "_published"):
            self._published = super().rows()
        self._published[:] = super().rows()
        return self._published

    def update(self, count: int) -> None:
        """Change what was published."""
        super().update(count)
        self.rows()


class LooksAround(GreedyPolicy):
    """Standardises observations over the worlds that it is given together."""

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Subtract the mean over worlds."""
        centred = inputs.obs - inputs.obs.mean(axis=1, keepdims=True)
        return super().act(PolicyInput(centred, inputs.ages, inputs.mask, inputs.keys, inputs.exploration), first, last)


class ActsByBatch(Sound):
    """Has a policy whose actions depend on the other worlds."""

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """The policy that looks around."""
        return LooksAround(cls, group, agents, options, precision, device)


class LearnsBackwards(Sound):
    """Predicts the opposite of the reward."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: ReplayBatch, options: Any) -> Tensor:
        """The error with the wrong sign."""
        return Sound.loss(net, target, batch._replace(rewards=-batch.rewards), options)


BROKEN_LEARNERS = {
    own.__name__: own
    for own in (
        RaisesAtOnce, CountsTwice, OncePerCall, ForgetsAMetric, SharesRewards, DrawsByPlace, ForgetsTheOptimiser,
        TakesAnything, StandsStill, DrawsGlobally, KeepsFragments, PublishesItsOwn, ActsByBatch, LearnsBackwards,
    )
}  # fmt: skip
