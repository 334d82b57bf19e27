"""IQN for a herd: dueling, noisy, double, n-step, all agents stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.learner import Learner, LearnerContext, State
from remuda.core.options import Options
from remuda.core.policy import Policy
from remuda.core.ranges import true_ranges
from remuda.core.rng import Keys, Stream
from remuda.core.timeline import span
from remuda.learners.capacity import replay_capacity
from remuda.learners.iqn.network import IQNNetwork, Noise
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.replay import ReplayBuffer, TransitionBatch
from remuda.learners.schedule import schedule
from remuda.learners.stack import Adam, chunks, init_keys, pad_frame_stacks


class IQN(Learner):
    """IQN for neighbouring agents, each with its own network, target, optimiser, replay buffer and random streams."""

    max_lag = 1 << 30
    metrics = ("loss", "grad_norm", "epsilon")

    def __init__(self, context: LearnerContext, options: IQNOptions) -> None:
        super().__init__(context, options)
        self.options: IQNOptions = options
        self.network = IQNNetwork(context.group, options, context.precision, context.device)
        self.replay = ReplayBuffer(context.group, context.agents, replay_capacity(context, options), options.frames)
        initial = self.network.initial_rows(init_keys(context.seed, context.agent_numbers))
        self.weights = torch.from_numpy(initial).to(context.device)
        self.target = self.weights.clone()
        self.adam = Adam(self.weights)
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
            for low, high in chunks(stop - start, self.network.update_bytes()):
                first, last = start + low, start + high
                for i in range(count):
                    loss, norm = self._update(first, last, self.updates + i)
                    finite = np.isfinite(norm)
                    self._losses[first:last] += np.where(finite, loss, 0.0)
                    self._norms[first:last] += np.where(finite, norm, 0.0)
                    made[first:last] += finite
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

    def _update(self, first: int, last: int, update: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """One gradient step for agents first … last-1; returns their losses and gradient norms."""
        agents = slice(first, last)
        keys = self._keys(agents, update)
        with span("sample"):
            batch = self.replay.sample(
                first,
                last,
                keys[Stream.SAMPLE],
                self.options.batch_size,
                self.options.n_step,
                self._gamma.at(update, self.context.total_updates)[agents],
            )
        rows = self.weights[agents].detach().requires_grad_()
        loss = self._loss(rows, self.target[agents], batch, keys)
        (grad,) = torch.autograd.grad(loss.sum(), rows)
        with torch.no_grad():
            rates = self._rate.at(update, self.context.total_updates)[agents]
            norm = self.adam.step(first, last, grad, rates, self.options.clip)
            self.target[agents].lerp_(self.weights[agents], self.options.tau)
        return loss.detach().cpu().numpy(), norm.cpu().numpy()

    def _keys(self, agents: slice, update: int) -> dict[Stream, Keys]:
        numbers = self.context.agent_numbers[agents]
        return {
            stream: rng.keys(rng.keys(rng.key(self.context.seed, stream), numbers), update)
            for stream in (Stream.SAMPLE, Stream.TAU, Stream.NOISE)
        }

    def _loss(self, rows: Tensor, target_rows: Tensor, batch: TransitionBatch, keys: dict[Stream, Keys]) -> Tensor:
        """The quantile Huber loss of each agent, (agents,)."""
        net, device = self.network, rows.device
        q = self.options.quantiles
        size = self.options.batch_size
        agents = len(rows)
        taus = torch.from_numpy(rng.uniforms(keys[Stream.TAU], 2 * size * q).astype(np.float32)).to(device)
        taus, target_taus = taus.split_with_sizes([size * q, size * q], dim=1)
        noise = Noise.draw(keys[Stream.NOISE], 0, net, device)
        target_noise = Noise.draw(keys[Stream.NOISE], 1, net, device)
        arrays = net.layout.arrays(rows)
        with torch.no_grad():
            next_x = pad_frame_stacks(batch.next_obs, net.scale, net.inputs, device, min_rows=1)
            online = {name: array.detach() for name, array in arrays.items()}
            advantages = net.mean_advantages(net.for_acting(online), next_x)
            if batch.next_mask is not None:
                advantages = advantages.masked_fill(~torch.from_numpy(batch.next_mask).to(device), -torch.inf)
            best = advantages.argmax(dim=2)  # (agents, batch): double Q-learning, the online network chooses
            future = net.quantiles(net.layout.arrays(target_rows), next_x, target_taus, target_noise)
            future = future.gather(3, best[:, :, None, None].expand(-1, -1, q, 1)).squeeze(3)
            returns = torch.from_numpy(batch.returns).to(device)
            discounts = torch.from_numpy(batch.discounts).to(device)
            targets = returns[:, :, None] + discounts[:, :, None] * future  # (agents, batch, quantiles)
        x = pad_frame_stacks(batch.obs, net.scale, net.inputs, device, min_rows=1)
        values = net.quantiles(arrays, x, taus, noise)
        actions = torch.from_numpy(batch.actions).to(device)
        values = values.gather(3, actions[:, :, None, None].expand(-1, -1, q, 1)).squeeze(3)
        error = targets[:, :, None, :] - values[:, :, :, None]  # (agents, batch, quantiles, target quantiles)
        magnitude = error.abs()
        huber = torch.where(magnitude <= 1.0, 0.5 * error.square(), magnitude - 0.5)
        weight = (taus.view(agents, size, q, 1) - (error.detach() < 0).float()).abs()
        return (weight * huber).flatten(1).mean(dim=1)

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
