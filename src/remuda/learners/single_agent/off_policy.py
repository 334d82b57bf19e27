"""Off-policy learners for one agent: a network, a target network and a loss over a batch of replayed transitions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.learner import LearnerContext, State
from remuda.core.policy import Policy
from remuda.core.ranges import true_ranges
from remuda.core.rng import Stream
from remuda.learners.capacity import replay_capacity
from remuda.learners.devices import to_device
from remuda.learners.replay import ReplayBuffer
from remuda.learners.single_agent.base import LossTerms, SingleAgentLearner
from remuda.learners.single_agent.options import OffPolicyOptions, SingleAgentOptions
from remuda.learners.single_agent.policy import GreedyPolicy
from remuda.learners.stack import input_scale


class ReplayBatch(NamedTuple):
    """Transitions of one agent, drawn at random from its own replay buffer. Observations are float32."""

    obs: Tensor  # (rows, frames, *obs)
    actions: Tensor  # (rows,)
    rewards: Tensor  # (rows,): discounted sum over n_step turns, or up to the end of the episode
    next_obs: Tensor  # (rows, frames, *obs): after those turns
    discounts: Tensor  # (rows,): of the value of next_obs; 0 where the episode terminated
    next_mask: Tensor  # (rows, actions): whether each action is allowed at next_obs


class OffPolicyLearner(SingleAgentLearner):
    """Learns from a replay buffer. A subclass defines `network` and `loss` for one agent; it acts ε-greedily."""

    options_class: ClassVar[type[SingleAgentOptions]] = OffPolicyOptions
    max_lag = 1 << 30  # transitions may be as old as the replay buffer
    metrics: tuple[str, ...] = ("loss", "grad_norm", "epsilon")

    def __init__(self, context: LearnerContext, options: Any) -> None:
        super().__init__(context, options)
        capacity = replay_capacity(context, options)
        self.replay = ReplayBuffer(context.group, context.agents, capacity, options.frames, context.in_turn)
        self.target = self.weights.clone()
        self._scale = input_scale(context.group)

    @staticmethod
    @abstractmethod
    def loss(net: nn.Module, target: nn.Module, batch: ReplayBatch, options: Any) -> LossTerms:
        """The loss of one agent over a batch of its own transitions: one number, and metrics beside it if you like.

        `target` is the network as it was some updates ago; it gets no gradient. In `options` an option marked "per
        agent" is the agent's value at this time.
        """

    @staticmethod
    def q_values(net: nn.Module, obs: Tensor) -> Tensor:
        """The value of each action, (rows, actions); the agent takes the largest. Default: what the network returns."""
        values: Tensor = net(obs)
        return values

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """An ε-greedy policy, before rows are loaded."""
        return GreedyPolicy(cls, group, agents, options, precision, device)

    def _loss(self, nets: list[nn.Module], batch: Any, options: Any) -> LossTerms:
        return self.loss(nets[0], nets[1], ReplayBatch(*batch), options)

    def rows(self) -> NDArray[np.float32]:
        """Weights and, in the last column, ε for the next rollouts."""
        return np.concatenate([self.weights.cpu().numpy(), self._epsilon()[:, None].astype(np.float32)], axis=1)

    def _epsilon(self) -> NDArray[np.float64]:
        return self._schedules["epsilon"].at(self.updates, self.context.total_updates)

    def take(self, fragment: Fragment) -> None:
        """Copy it into the replay buffers."""
        self.replay.take(fragment)

    def update(self, count: int) -> None:
        """Make `count` gradient steps for each agent that has enough transitions."""
        ready = self.replay.counts >= (self.options.learning_starts or self.options.batch_size)
        before = self.steps.copy()
        for start, stop in true_ranges(ready):
            for low, high in self._chunks(stop - start, self.options.batch_size):
                for clock in range(self.updates, self.updates + count):
                    self._update(start + low, start + high, clock)
        self.note_skipped_updates(np.where(ready, count - (self.steps - before), 0))
        self.updates += count

    def _update(self, first: int, last: int, clock: int) -> None:
        """One gradient step for agents first … last-1, and a step of their target networks."""
        own, target = self.weights[first:last], self.target[first:last]
        self._step(first, last, (own, target), self._batch(first, last, clock), clock)
        target.lerp_(own, self.options.tau)

    def _batch(self, first: int, last: int, clock: int) -> tuple[Tensor, ...]:
        """A `ReplayBatch` of each agent, with a first axis for the agents."""
        keys = rng.keys(rng.key(self.context.seed, Stream.SAMPLE), self.context.agent_numbers[first:last])
        gamma = self._schedules["gamma"].at(clock, self.context.total_updates)[first:last]
        size = self.options.batch_size
        drawn = self.replay.sample(first, last, rng.keys(keys, clock), size, self.options.n_step, gamma)
        mask = drawn.next_mask
        if mask is None:
            mask = np.ones((last - first, size, self.context.group.actions), np.bool_)
        arrays = (drawn.actions, drawn.returns, self._observations(drawn.next_obs), drawn.discounts, mask)
        return tuple(to_device(array, self.weights.device) for array in (self._observations(drawn.obs), *arrays))

    def _example(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        agents, size, group = self.context.agents, self.options.batch_size, self.context.group
        numbers = torch.zeros((agents, size), device=self.weights.device)
        obs = numbers.new_zeros((agents, size, self.options.frames, *group.obs_shape))
        mask = numbers.new_ones((agents, size, group.actions), dtype=torch.bool)
        return (self.weights, self.target), (obs, numbers.long(), numbers, obs, numbers, mask)

    def _observations(self, stacks: NDArray[Any]) -> Tensor:
        """Frame stacks (agents, rows, frames * obs) as network input, (agents, rows, frames, *obs)."""
        shape = (*stacks.shape[:2], self.options.frames, *self.context.group.obs_shape)
        return torch.from_numpy(stacks).float().mul_(self._scale).view(shape)

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the gradient steps since the last report, and the current ε."""
        return {**super().report(), "epsilon": self._epsilon()}

    @property
    def _computed(self) -> tuple[str, ...]:
        return tuple(name for name in self.metrics if name != "epsilon")

    def skip(self, count: int) -> None:
        """Advance schedules and random streams; the replay buffers stay as they are."""
        self.updates += count

    def state(self) -> State:
        """Weights, optimiser, counters, target networks and replay buffers."""
        replay = {f"replay.{name}": array for name, array in self.replay.state().items()}
        return {**super().state(), "target": self.target.cpu().numpy(), **replay}

    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from."""
        super().restore(state)
        self.target.copy_(torch.from_numpy(state["target"]))
        self.replay.restore({n.removeprefix("replay."): a for n, a in state.items() if n.startswith("replay.")})

    def memory_bytes(self) -> int:
        """Replay buffers, and five times the weights: network, target, two moments of the optimiser, gradient."""
        return self.replay.nbytes + 5 * self.weights.numel() * self.weights.element_size()
