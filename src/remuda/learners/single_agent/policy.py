"""Policies of learners for one agent: greedy on values, or sampled from logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core.errors import ConfigError
from remuda.core.game import Group
from remuda.core.policy import PolicyInput, PolicyOutput, explore
from remuda.learners.ppo.policy import LOG_PROB, log_probabilities, sample
from remuda.learners.single_agent.base import activation_bytes, agent_module, autocast
from remuda.learners.single_agent.stacking import HerdMap
from remuda.learners.stack import MIN_ROWS, StackedPolicy, chunks, input_scale, stack_frames

if TYPE_CHECKING:
    from remuda.learners.single_agent.off_policy import OffPolicyLearner
    from remuda.learners.single_agent.on_policy import OnPolicyLearner


class SingleAgentPolicy(StackedPolicy):
    """Acts with the networks of a learner for one agent."""

    source: ClassVar[str]
    """The method of the learner that `scores` come from, as an error names it."""

    def __init__(
        self, learner: type[Any], group: Group, agents: int, options: Any, precision: str, device: str, columns: int
    ) -> None:
        self.learner, self.options = learner, options
        self.module = agent_module(learner, group, options)
        super().__init__(group, agents, self.module.layout, columns, device)
        self.frames = options.frames
        self._precision, self._device = precision, device
        self._forward = HerdMap(self._forward_agent, stack=options.stack)

    def scores(self, net: nn.Module, obs: Tensor) -> Tensor:
        """What one agent's actions are chosen by, (rows, actions)."""
        raise NotImplementedError

    def try_network(self) -> None:
        """Raise ConfigError if the network cannot be used, before anything is played."""
        self.module.try_input(lambda obs: self._forward_agent(self._weights[0], obs))

    def _forward_agent(self, row: Tensor, obs: Tensor) -> Tensor:
        with autocast(self._precision, self._device):
            scores: Tensor = self.module.call(self.scores, (row,), obs)
        if scores.shape != (len(obs), self.group.actions):
            raise ConfigError(
                f"the network of {self.learner.__name__} gives {tuple(scores.shape)} for {len(obs)} rows; "
                f"it should give {(len(obs), self.group.actions)}, a number for each action, "
                f"or {self.learner.__name__} should override {self.source}"
            )
        return scores.float()

    @torch.no_grad()
    def _all_scores(self, inputs: PolicyInput, first: int, last: int) -> NDArray[np.float32]:
        """Scores of agents first … last-1, (worlds, last-first, actions); -inf for forbidden actions."""
        worlds, agents = inputs.keys.shape
        out = np.empty((worlds, agents, self.group.actions), np.float32)
        for low, high in chunks(agents, activation_bytes(self.module, max(worlds, MIN_ROWS))):
            x = self._input(inputs.obs[:, :, low:high], inputs.ages[:, low:high])
            scores = self._forward(self._weights[first + low : first + high], x.to(self._weights.device))
            out[:, low:high] = scores[:, :worlds].transpose(0, 1).cpu().numpy()
        return out if inputs.mask is None else np.where(inputs.mask, out, np.float32(-np.inf))

    def _input(self, obs: NDArray[Any], ages: NDArray[np.int64]) -> Tensor:
        """Observations as network input (agents, rows, frames, *obs), with a multiple of MIN_ROWS rows.

        Measured with torch 2.13 on an AVX512 CPU, linear layers of 1 to 512 inputs and 1 to 128 outputs, rows alone
        against the same rows in a batch of 300: with a multiple of 16 rows no bit differs; with 17 or 33 rows the bits
        of a single output do.
        """
        size = int(np.prod(self.group.obs_shape, dtype=np.int64))
        x = stack_frames(obs, ages, input_scale(self.group), self.frames * size)  # (agents, rows, frames * obs)
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % MIN_ROWS))
        return x.view(*x.shape[:2], self.frames, *self.group.obs_shape)


class GreedyPolicy(SingleAgentPolicy):
    """ε-greedy on the values of actions. The last column of a row is ε."""

    source = "q_values(net, obs)"

    def __init__(
        self, learner: type[OffPolicyLearner], group: Group, agents: int, options: Any, precision: str, device: str
    ) -> None:
        super().__init__(learner, group, agents, options, precision, device, columns=1)

    def scores(self, net: nn.Module, obs: Tensor) -> Tensor:
        """The learner's `q_values`."""
        values: Tensor = self.learner.q_values(net, obs)
        return values

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose ε-greedily, with the row's ε unless `inputs.exploration` is given."""
        greedy = self._all_scores(inputs, first, last).argmax(axis=-1)
        if inputs.exploration is None:
            epsilon = self._rows[first:last, -1].astype(np.float64)
        else:
            epsilon = np.full(last - first, inputs.exploration)
        return PolicyOutput(explore(greedy, epsilon, inputs, self.group.actions))


class SampledPolicy(SingleAgentPolicy):
    """Samples from the softmax of logits, and stores the log-probability of the action."""

    extras = (LOG_PROB,)
    source = "logits_and_values(net, obs)"

    def __init__(
        self, learner: type[OnPolicyLearner], group: Group, agents: int, options: Any, precision: str, device: str
    ) -> None:
        super().__init__(learner, group, agents, options, precision, device, columns=0)

    def scores(self, net: nn.Module, obs: Tensor) -> Tensor:
        """The logits of the learner's `logits_and_values`."""
        logits, _ = self.learner.logits_and_values(net, obs)
        return torch.as_tensor(logits)

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Sample actions; if `inputs.exploration` is given, take the likeliest ε-greedily instead."""
        probs = torch.from_numpy(self._all_scores(inputs, first, last)).softmax(dim=-1).numpy()
        if inputs.exploration is None:
            actions = np.empty(inputs.keys.shape, np.int64)
            sample(probs, inputs.keys, actions)
        else:
            actions = explore(
                probs.argmax(axis=-1), np.full(last - first, inputs.exploration), inputs, self.group.actions
            )
        log_probs = np.empty(actions.shape, np.float32)
        log_probabilities(probs, actions, log_probs)
        return PolicyOutput(actions, {LOG_PROB: log_probs})
