"""On-policy learners for one agent: a network with a critic, and a loss over the agent's own rollouts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.learner import LearnerContext, State
from remuda.core.policy import Policy
from remuda.core.ranges import split_evenly
from remuda.core.rng import Stream
from remuda.learners.devices import to_device
from remuda.learners.ppo.experience import frame_stacks, next_frame_stacks, rows_of
from remuda.learners.ppo.policy import LOG_PROB
from remuda.learners.schedule import counts
from remuda.learners.single_agent.base import LossTerms, SingleAgentLearner, autocast
from remuda.learners.single_agent.options import OnPolicyOptions, SingleAgentOptions
from remuda.learners.single_agent.policy import SampledPolicy
from remuda.learners.single_agent.stacking import HerdMap
from remuda.learners.stack import input_scale
from remuda.learners.transitions import find_transitions


class RolloutBatch(NamedTuple):
    """Turns of one agent, played with its newest weights. Observations are float32."""

    obs: Tensor  # (rows, frames, *obs)
    actions: Tensor  # (rows,)
    advantages: Tensor  # (rows,): generalised advantage estimates
    returns: Tensor  # (rows,): advantages plus the critic's values, the targets of the critic
    log_probs: Tensor  # (rows,): of the actions, by the policy that acted
    mask: Tensor  # (rows, actions): whether each action was allowed


class AgentRounds(NamedTuple):
    """What one agent did in a round, world after world in the order of time; (rows, …), or (cuts, …)."""

    stacks: NDArray[Any]  # (rows, frames * obs)
    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    mask: NDArray[np.bool_]  # (rows, actions)
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    elapsed: NDArray[np.int64]  # turns until the next observation
    ends: NDArray[np.bool_]  # the last row of a life
    next_stacks: NDArray[Any]  # (cuts, frames * obs): after each row that ends without being terminated


class OnPolicyLearner(SingleAgentLearner):
    """Learns from each round once. A subclass defines `network` and `loss` for one agent; actions are sampled.

    In each round an agent makes `passes` × `minibatches` gradient steps, whatever the plan's updates_per_episode.
    """

    options_class: ClassVar[type[SingleAgentOptions]] = OnPolicyOptions
    keeps_views = True
    incremental = False
    max_lag = 0  # a loss that corrects for older data by `batch.log_probs` may set 1

    def __init__(self, context: LearnerContext, options: Any) -> None:
        super().__init__(context, options)
        self._passes = counts("passes", options.passes, context.agent_numbers)  # per round, (agents,)
        self.passes = np.zeros(context.agents, np.int64)  # made so far: the clock of the random streams
        self._fragments: list[Fragment] = []
        self._values = HerdMap(self._values_of_agent, stack=options.stack)
        self._scale = input_scale(context.group)

    @staticmethod
    @abstractmethod
    def loss(net: nn.Module, batch: RolloutBatch, options: Any) -> LossTerms:
        """The loss of one agent over turns of its own: one number, and metrics beside it if you like.

        In `options` an option marked "per agent" is the agent's value at this time.
        """

    @staticmethod
    def logits_and_values(net: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (rows, actions), and the critic's values (rows,). Default: what the network returns."""
        found = net(obs)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(
                f"the network of an on-policy learner should return logits and values, not a {type(found).__name__}: "
                "or override logits_and_values(net, obs)"
            )
        return found

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """A policy that samples from the logits, before rows are loaded."""
        return SampledPolicy(cls, group, agents, options, precision, device)

    def _loss(self, nets: list[nn.Module], batch: Any, options: Any) -> LossTerms:
        return self.loss(nets[0], RolloutBatch(*batch), options)

    def rows(self) -> NDArray[np.float32]:
        """Weights."""
        return self.weights.cpu().numpy().copy()

    def planned_steps(self, count: int) -> NDArray[np.int64]:
        """Its own passes and minibatches."""
        del count
        return self._passes * int(self.options.minibatches)

    def take(self, fragment: Fragment) -> None:
        """Keep the fragment until the next update."""
        self._fragments.append(fragment)

    def update(self, count: int) -> None:
        """Learn `passes` times from what was taken; `count` only advances the schedules."""
        if not self._fragments:
            self._advance(count)
            return
        rounds = [self._round(agent) for agent in range(self.context.agents)]
        self._fragments = []
        before = self.steps.copy()
        learned = np.zeros(self.context.agents, np.bool_)
        for low, high in self._equal_length_ranges(rounds):
            self._learn(self._batch(rounds[low:high], low), low, high)
            learned[low:high] = True
        self.note_skipped_updates(np.where(learned, self.planned_steps(count) - (self.steps - before), 0))
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.passes += self._passes
        self.updates += count

    def skip(self, count: int) -> None:
        """Advance schedules and random streams; drop what was taken."""
        self._fragments = []
        self._advance(count)

    def _round(self, agent: int) -> AgentRounds:
        """What one agent did in the fragments taken. The order of rows does not depend on how the round is cut up."""
        parts: list[list[NDArray[Any]]] = []
        for fragment in self._fragments:
            mask = fragment.mask
            allowed = mask[:-1] if mask is not None else np.ones((*fragment.alive.shape, self._actions), np.bool_)
            found = find_transitions(fragment, self.context.in_turn)
            arrays = (
                frame_stacks(fragment, self.options.frames), fragment.actions, fragment.extras[LOG_PROB], allowed,
                fragment.rewards, fragment.terminated, found.elapsed, found.ends,
            )  # fmt: skip
            worlds, turns = np.nonzero((found.ends & ~fragment.terminated)[:, :, agent].T)
            after = next_frame_stacks(fragment, found.after, self.options.frames, (turns, worlds), agent)
            parts.append([*(rows_of(array, found.learnable, agent) for array in arrays), after])
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return AgentRounds(*columns)

    @property
    def _actions(self) -> int:
        return self.context.group.actions

    def _equal_length_ranges(self, rounds: list[AgentRounds]) -> Iterator[tuple[int, int]]:
        """Ranges of neighbours with equally many rows and passes: padding to one length would give other bits."""
        first = 0
        lengths = [(len(one.actions), len(one.next_stacks)) for one in rounds]
        for ((rows, _), _), own in groupby(zip(lengths, self._passes.tolist(), strict=True)):
            size = len(list(own))
            if rows >= self.options.minibatches:
                for low, high in self._chunks(size, rows):
                    yield first + low, first + high
            first += size

    def _batch(self, rounds: list[AgentRounds], first: int) -> tuple[Tensor, ...]:
        """A `RolloutBatch` of each agent, with a first axis for the agents."""
        columns = map(np.stack, zip(*rounds, strict=True))
        stacks, actions, log_probs, mask, rewards, terminated, elapsed, ends, after = columns
        gamma = self._schedules["gamma"].at(self.updates, self.context.total_updates)[first : first + len(rounds)]
        obs, rows = self._observations(np.concatenate([stacks, after], axis=1)), rewards.shape[1]
        with torch.no_grad():
            values = self._values(self.weights[first : first + len(rounds)], obs).cpu().numpy()
        next_values = np.zeros_like(rewards)
        next_values[:, :-1] = values[:, 1:rows]
        next_values[ends & ~terminated] = values[:, rows:].reshape(-1)
        advantages = np.zeros_like(rewards)
        _advantages(
            rewards,
            values[:, :rows],
            next_values,
            (terminated, elapsed, ends),
            gamma,
            self.options.gae_lambda,
            advantages,
        )
        others = (actions, advantages, advantages + values[:, :rows], log_probs, mask)
        return (obs[:, :rows], *(to_device(array, obs.device) for array in others))

    def try_stacking(self) -> str:
        """As above; the critic's values are computed, too."""
        (weights,), (obs, *_) = self._example()
        with torch.no_grad():
            self._values.one_by_one(weights, obs)
        return super().try_stacking()

    def _example(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        agents, group = self.context.agents, self.context.group
        numbers = torch.zeros((agents, self.context.turns), device=self.weights.device)
        obs = numbers.new_zeros((*numbers.shape, self.options.frames, *group.obs_shape))
        mask = numbers.new_ones((*numbers.shape, group.actions), dtype=torch.bool)
        return (self.weights,), (obs, numbers.long(), numbers, numbers, numbers, mask)

    def _values_of_agent(self, row: Tensor, obs: Tensor) -> Tensor:
        with autocast(self.context.precision, self.context.device):
            _, values = self.module.call(self.logits_and_values, (row,), obs)
        if values.shape != (len(obs),):
            raise ConfigError(
                f"the values of {type(self).__name__} have shape {tuple(values.shape)} for {len(obs)} rows; "
                f"they should have {(len(obs),)}, a number for each row"
            )
        return torch.as_tensor(values).float()

    def _observations(self, stacks: NDArray[Any]) -> Tensor:
        """Frame stacks (agents, rows, frames * obs) as network input, (agents, rows, frames, *obs)."""
        shape = (*stacks.shape[:2], self.options.frames, *self.context.group.obs_shape)
        return to_device(stacks, self.weights.device).float().mul_(self._scale).view(shape)

    def _learn(self, batch: tuple[Tensor, ...], low: int, high: int) -> None:
        """Make all passes for agents low … high-1."""
        rows, parts = batch[0].shape[1], self.options.minibatches
        agents = torch.arange(high - low)[:, None]
        for epoch in range(int(self._passes[low])):
            order = torch.from_numpy(self._order(low, high, epoch, rows))
            for a, b in split_evenly(rows, parts):
                own = batch if parts == 1 else tuple(array[agents, order[:, a:b]] for array in batch)
                self._step(low, high, (self.weights[low:high],), own, self.updates)

    def _order(self, low: int, high: int, epoch: int, rows: int) -> NDArray[np.int64]:
        """A random order of each agent's rows, (agents, rows)."""
        keys = rng.keys(rng.key(self.context.seed, Stream.SAMPLE), self.context.agent_numbers[low:high])
        return rng.uniforms(rng.keys(keys, self.passes[low:high] + epoch), rows).argsort(axis=1, kind="stable")

    def state(self) -> State:
        """Weights, optimiser and counters; between rounds there is nothing else."""
        return {**super().state(), "passes": self.passes}

    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from."""
        super().restore(state)
        self.passes[:] = state["passes"]

    def memory_bytes(self) -> int:
        """A round of frame stacks as floats, and four times the weights: network, two moments, gradient."""
        group, context = self.context.group, self.context
        stack = self.options.frames * int(np.prod(group.obs_shape, dtype=np.int64))
        rows = context.agents * context.turns * context.round_episodes
        weights = 4 * self.weights.numel() * self.weights.element_size()
        return int(4 * rows * (2 * stack + 8 + self._actions) + weights)


@kernel
def _advantages(rewards: Any, values: Any, next_values: Any, flags: Any, gamma: Any, decay: float, out: Any) -> None:
    """Generalised advantage estimation (Schulman et al. 2016), backwards through rows; all (agents, rows)."""
    terminated, elapsed, ends = flags
    for a in range(rewards.shape[0]):
        advantage = 0.0
        for t in range(rewards.shape[1] - 1, -1, -1):
            discount = gamma[a]
            for _ in range(1, elapsed[a, t]):
                discount *= gamma[a]
            future = 0.0 if terminated[a, t] else discount * next_values[a, t]
            carry = 0.0 if ends[a, t] else discount * decay * advantage
            advantage = rewards[a, t] + future - values[a, t] + carry
            out[a, t] = advantage
