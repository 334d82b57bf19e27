"""IQN for a herd: dueling, noisy, double, n-step, all agents stacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.learner import DenseFlops, Learner, LearnerContext, State
from remuda.core.options import Options
from remuda.core.policy import Policy
from remuda.core.ranges import true_ranges
from remuda.core.rng import Keys, Stream
from remuda.core.timeline import span
from remuda.learners.capacity import replay_capacity
from remuda.learners.devices import to_device
from remuda.learners.iqn.compiled import AgentRows, CompiledUpdates
from remuda.learners.iqn.flat import can_be_compiled
from remuda.learners.iqn.network import IQNNetwork, Noise
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.replay import ReplayBuffer, TransitionBatch
from remuda.learners.schedule import schedule
from remuda.learners.sequences import SequenceBatch, SequenceShape, sample_sequences
from remuda.learners.stack import Adam, chunk_agents, init_keys, pad_frame_stacks

Arrays = dict[str, Tensor]
"""Weights of some agents by name, each (agents, …)."""


class IQN(Learner):
    """IQN for neighbouring agents, each with its own network, target, optimiser, replay buffer and random streams."""

    max_lag = 1 << 30
    metrics = ("loss", "grad_norm", "epsilon")

    def __init__(self, context: LearnerContext, options: IQNOptions) -> None:
        super().__init__(context, options)
        self.options: IQNOptions = options
        self.network = IQNNetwork(context.group, options, context.precision, context.device)
        if options.compile:
            self.network.compile_passes()
        capacity = replay_capacity(context, options)
        memory = self.network.memory_size
        self.replay = ReplayBuffer(context.group, context.agents, capacity, options.frames, context.in_turn, memory)
        initial = self.network.initial_rows(init_keys(context.seed, context.agent_numbers))
        self.weights = to_device(initial, context.device)
        self.target = self.weights.clone()
        self.adam = Adam(self.weights)
        self.compiled = can_be_compiled(self.network) and not options.compile
        """Whether the compiled form learns; tests and benchmarks set it to False for the readable one."""
        self._kernels: CompiledUpdates | None = None
        self.updates = 0  # due so far, also those that an agent did not make: the clock of schedules and random streams
        self.steps = np.zeros(context.agents, np.int64)  # made
        self._reset_sums()
        self._rate = schedule("lr", options.lr, context.agent_numbers)
        self._epsilon = schedule("epsilon", options.epsilon, context.agent_numbers, high=1.0)
        self._gamma = schedule("gamma", options.gamma, context.agent_numbers, high=1.0)

    @classmethod
    def options_type(cls) -> type[Options]:
        """The class IQNOptions."""
        return IQNOptions

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """An IQNPolicy, before rows are loaded."""
        return IQNPolicy(group, agents, options, precision, device)

    @classmethod
    def dense_flops(cls, group: Group, options: Any, agent: int) -> DenseFlops | None:
        """Per update: the network at what was seen, with its gradient, the target network and the greedy choice."""
        network = IQNNetwork(group, options, "fp32", "cpu")
        return network.dense_flops() if network.plain else None

    def rows(self) -> NDArray[np.float32]:
        """Weights and, in the last column, ε for the next rollouts."""
        epsilon = self._epsilon.at(self.updates, self.context.total_updates).astype(np.float32)
        return np.concatenate([self.weights.cpu().numpy(), epsilon[:, None]], axis=1)

    def take(self, fragment: Fragment) -> None:
        """Copy it into the replay buffers."""
        self.replay.take(fragment)

    def update(self, count: int) -> None:
        """Make `count` updates per agent: all for one chunk of agents, which stays in the cache, then for the next."""
        made = np.zeros(self.context.agents, np.int64)
        starts = self.options.learning_starts or self.options.batch_size
        ready = self.replay.counts >= starts
        for start, stop in true_ranges(ready):
            for low, high in self._chunks(start, stop):
                agents = slice(low, high)
                for loss, norm in self._updates(low, high, range(self.updates, self.updates + count)):
                    finite = np.isfinite(norm)
                    self._losses[agents] += np.where(finite, loss, 0.0)
                    self._norms[agents] += np.where(finite, norm, 0.0)
                    made[agents] += finite
        self.steps += made
        self._made += made
        self.note_skipped_updates(np.where(ready, count - made, 0))
        self.updates += count

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the updates since the last report, and the current ε."""
        each = np.where(self._made > 0, self._made, np.nan)
        result = {
            "loss": self._losses / each,
            "grad_norm": self._norms / each,
            "epsilon": self._epsilon.at(self.updates, self.context.total_updates),
        }
        self._reset_sums()
        return result

    def _reset_sums(self) -> None:
        self._losses, self._norms, self._made = np.zeros((3, self.context.agents))

    def skip(self, count: int) -> None:
        """Advance schedules and random streams; the replay buffers stay as they are."""
        self.updates += count

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Ranges of agents that learn together: one by one in the compiled form."""
        step = 1 if self.compiled else chunk_agents(self.network.update_bytes())
        for first in range(start, stop, step):
            yield first, min(first + step, stop)

    def _updates(self, first: int, last: int, numbers: range) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Make updates for agents first … last-1; yields their losses and gradient norms, update by update."""
        if self.compiled:
            yield from self._compiled_updates(first, numbers)
        else:
            for update in numbers:
                yield self._update(first, last, update)

    def _compiled_updates(self, agent: int, numbers: range) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """As `_updates`, for one agent."""
        if self._kernels is None:
            self._kernels = CompiledUpdates(self.network)
        kernels, options, total = self._kernels, self.options, self.context.total_updates
        adam, one = self.adam, slice(agent, agent + 1)
        arrays = (self.weights, self.target, adam.mean, adam.square)
        rows = AgentRows(*(tensor[agent].numpy() for tensor in arrays))
        for update in numbers:
            keys, gamma = self.update_keys(one, update), self._gamma.at(update, total)[one]
            with span("sample"):
                sample = keys[Stream.SAMPLE]
                batch = self.replay.sample(agent, agent + 1, sample, options.batch_size, options.n_step, gamma)
            loss = kernels.gradient(rows, batch, keys)
            rate = float(self._rate.at(update, total)[agent])
            norm = kernels.step(rows, loss, (float(adam.counts[agent]) + 1.0, rate, options.clip, options.tau))
            adam.counts[agent] += np.isfinite(norm)
            yield np.array([loss]), np.array([norm])

    def _update(self, first: int, last: int, update: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """One gradient step for agents first … last-1; returns their losses and gradient norms."""
        agents = slice(first, last)
        keys = self.update_keys(agents, update)
        gamma = self._gamma.at(update, self.context.total_updates)[agents]
        rows = self.weights[agents].detach().requires_grad_()
        if self.network.cell is None:
            with span("sample"):
                size, n_step = self.options.batch_size, self.options.n_step
                batch = self.replay.sample(first, last, keys[Stream.SAMPLE], size, n_step, gamma)
            loss = self._loss(rows, self.target[agents], batch, keys)
        else:
            with span("sample"):
                sequences = sample_sequences(self.replay, first, last, keys[Stream.SAMPLE], self.sequences, gamma)
            loss = self.sequence_loss(rows, self.target[agents], sequences, keys)
        (grad,) = torch.autograd.grad(loss.sum(), rows)
        with torch.no_grad():
            rates = self._rate.at(update, self.context.total_updates)[agents]
            norm = self.adam.step(first, last, grad, rates, self.options.clip)
            self.target[agents].lerp_(self.weights[agents], self.options.tau)
        return loss.detach().cpu().numpy(), norm.cpu().numpy()

    def update_keys(self, agents: slice, update: int) -> dict[Stream, Keys]:
        """Keys of the random numbers of one update, per stream and agent."""
        numbers = self.context.agent_numbers[agents]
        return {
            stream: rng.keys(rng.keys(rng.key(self.context.seed, stream), numbers), update)
            for stream in (Stream.SAMPLE, Stream.TAU, Stream.NOISE)
        }

    @property
    def sequences(self) -> SequenceShape:
        """Sequences of a batch: about as many transitions as `batch_size` says, or more by a part of a sequence."""
        options = self.options
        count = -(-options.batch_size // options.sequence)
        return SequenceShape(count, options.sequence, options.burn_in, options.n_step)

    def _loss(self, rows: Tensor, target_rows: Tensor, batch: TransitionBatch, keys: dict[Stream, Keys]) -> Tensor:
        """The quantile Huber loss of each agent, (agents,)."""
        net, device = self.network, rows.device
        arrays, targets = net.layout.arrays(rows), net.layout.arrays(target_rows)
        with torch.no_grad():
            next_x = pad_frame_stacks(batch.next_obs, net.scale, net.inputs, device, min_rows=1)
            online = {name: array.detach() for name, array in arrays.items()}
            ahead = net.features(online, next_x), net.features(targets, next_x)
        x = pad_frame_stacks(batch.obs, net.scale, net.inputs, device, min_rows=1)
        goals = (batch.actions, batch.returns, batch.discounts, batch.next_mask)
        return self._errors((arrays, targets), net.features(arrays, x), ahead, goals, keys).flatten(1).mean(dim=1)

    def sequence_loss(
        self, rows: Tensor, target_rows: Tensor, batch: SequenceBatch, keys: dict[Stream, Keys]
    ) -> Tensor:
        """As `_loss`, for sequences: the mean over turns that exist. No gradient goes back through the burn-in."""
        net, device, shape = self.network, rows.device, self.sequences
        agents, size = len(rows), shape.sequences * shape.length
        arrays, targets = net.layout.arrays(rows), net.layout.arrays(target_rows)
        flat = batch.obs.reshape(agents, shape.sequences * shape.window, -1)
        x = pad_frame_stacks(flat, net.scale, net.inputs, device, min_rows=1)
        x = x.view(agents, shape.sequences, shape.window, -1)
        begun, stored = to_device(batch.begun, device), to_device(batch.memory, device)
        burn_in = (slice(None), slice(None), slice(shape.burn_in))
        learned = (slice(None), slice(None), slice(shape.burn_in, None))
        with torch.no_grad():
            before, memory = net.unroll(arrays, x[burn_in], begun[burn_in], stored)
            behind, _ = net.unroll(targets, x, begun, stored)
        features, _ = net.unroll(arrays, x[learned], begun[learned], memory)
        with torch.no_grad():
            which = to_device(batch.ahead, device)[..., None].expand(-1, -1, -1, net.width)
            whole = torch.cat([before, features], dim=2)
            ahead = tuple(own.gather(2, which).reshape(agents, size, -1) for own in (whole, behind))
        own = features[:, :, : shape.length].reshape(agents, size, -1)
        mask = None if batch.next_mask is None else batch.next_mask.reshape(agents, size, -1)
        actions, returns, discounts = (a.reshape(agents, size) for a in (batch.actions, batch.returns, batch.discounts))
        errors = self._errors((arrays, targets), own, (ahead[0], ahead[1]), (actions, returns, discounts, mask), keys)
        valid = to_device(batch.valid.reshape(agents, size), device)
        return errors.flatten(2).mean(dim=2).masked_fill(~valid, 0.0).sum(dim=1) / valid.sum(dim=1)

    def _errors(
        self,
        both: tuple[Arrays, Arrays],  # of the network and of the target network
        features: Tensor,  # (agents, rows, width)
        ahead: tuple[Tensor, Tensor],  # (agents, rows, width) each: features of what follows, by both networks
        goals: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any] | None],
        keys: dict[Stream, Keys],
    ) -> Tensor:
        """Weighted quantile Huber errors, (agents, rows, quantiles, target quantiles).

        `goals` are actions, returns and discounts, (agents, rows), and which actions are allowed after them.
        """
        net, device, q = self.network, features.device, self.options.quantiles
        agents, size, _ = features.shape
        arrays, target_arrays = both
        actions, returns, discounts = (to_device(array, device) for array in goals[:3])
        taus = to_device(rng.uniforms(keys[Stream.TAU], 2 * size * q).astype(np.float32), device)
        taus, target_taus = taus.split_with_sizes([size * q, size * q], dim=1)
        noise = Noise.draw(keys[Stream.NOISE], 0, net, device)
        target_noise = Noise.draw(keys[Stream.NOISE], 1, net, device)
        with torch.no_grad():
            online = {name: array.detach() for name, array in arrays.items()}
            advantages = net.mean_advantages(net.for_acting(online), ahead[0])
            if goals[3] is not None:
                advantages = advantages.masked_fill(~to_device(goals[3], device), -torch.inf)
            best = advantages.argmax(dim=2)  # (agents, rows): double Q-learning, the online network chooses
            future = net.quantiles(target_arrays, ahead[1], target_taus, target_noise)
            future = future.gather(3, best[:, :, None, None].expand(-1, -1, q, 1)).squeeze(3)
            targets = returns[:, :, None] + discounts[:, :, None] * future  # (agents, rows, quantiles)
        values = net.quantiles(arrays, features, taus, noise)
        values = values.gather(3, actions[:, :, None, None].expand(-1, -1, q, 1)).squeeze(3)
        error = targets[:, :, None, :] - values[:, :, :, None]  # (agents, rows, quantiles, target quantiles)
        magnitude = error.abs()
        huber = torch.where(magnitude <= 1.0, 0.5 * error.square(), magnitude - 0.5)
        return (taus.view(agents, size, q, 1) - (error.detach() < 0).float()).abs() * huber

    def state(self) -> State:
        """Weights, target, optimiser, counters and replay buffers."""
        arrays: State = {
            **self.adam.state(),
            "target": self.target.cpu().numpy(),
            "steps": self.steps,
            "updates": np.full(self.context.agents, self.updates, np.int64),
        }
        return arrays | {f"replay.{name}": array for name, array in self.replay.state().items()}

    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from."""
        self.check_state(state)
        self.adam.restore(state)
        self.target.copy_(torch.from_numpy(state["target"]))
        self.steps[:] = state["steps"]
        self.updates = int(state["updates"][0])
        prefix = "replay."
        self.replay.restore({n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)})

    def memory_bytes(self) -> int:
        """Replay buffers, and five times the weights: network, target, two moments of the optimiser, gradient."""
        return self.replay.nbytes + 5 * self.weights.numel() * self.weights.element_size()
