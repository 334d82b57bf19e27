"""Implicit quantile networks for a herd: dueling, noisy, double, n-step, all agents stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from remuda import rng
from remuda.config import Options
from remuda.errors import ConfigError
from remuda.fragment import Fragment
from remuda.game import Group
from remuda.learners.iqn_network import IQNNetwork, Noise
from remuda.learners.learner import Learner, Post, State
from remuda.learners.memory import Batch, Memory
from remuda.learners.schedule import PerAgent, schedule
from remuda.learners.stack import Adam, StackedPolicy, chunks, init_keys, pad_windows, stack_frames
from remuda.policy import Choice, Policy, Sight, explore
from remuda.rng import Keys, Stream
from remuda.telemetry.timeline import span

LEAST_MEMORY = 16_384


class IQNOptions(Options):
    """What can be tuned. Values marked per agent may be lists, or "from:to:share" of the run."""

    layer: int = Field(250, ge=1, description="width of the hidden layers")
    frames: int = Field(5, ge=1, description="observations the network sees at once")
    quantiles: int = Field(12, ge=1, description="quantiles in the loss")
    acting_quantiles: int = Field(8, ge=1, description="fixed quantiles whose mean chooses actions")
    batch_size: int = Field(64, ge=4, description="transitions per update and agent")
    memory: int | None = Field(None, ge=1, description="observations kept per agent; default: at least 4 rounds")
    n_step: int = Field(1, ge=1, description="turns of reward before the bootstrap")
    learning_starts: int | None = Field(None, ge=1, description="transitions before learning; default: batch_size")
    lr: PerAgent = Field("0.002:0.0002", description="learning rate; per agent")
    gamma: PerAgent = Field(0.99, description="discount; per agent")
    epsilon: PerAgent = Field("0.9:0.05:0.6", description="share of random actions while training; per agent")
    tau: float = Field(0.003, gt=0, le=1, description="how far the target moves towards the network per update")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    sigma: float = Field(0.017, ge=0, description="initial noise of the noisy layers; 0 turns it off")
    body: str | None = Field(None, description="module:Class of your own network body; default: one layer")

    def check(self) -> None:
        """Options that contradict each other."""
        if self.memory is not None and self.batch_size > self.memory:
            raise ConfigError(
                f"batch_size={self.batch_size} is larger than memory={self.memory}: lower one or raise the other"
            )


class IQNPolicy(StackedPolicy):
    """ε-greedy on the mean over fixed quantiles, without noise; ε stands in the last column of a row."""

    def __init__(self, group: Group, agents: int, options: IQNOptions, precision: str, device: str) -> None:
        self.network = IQNNetwork(group, options, precision, device)
        super().__init__(group, agents, self.network.layout, 1, device)
        self.frames = options.frames

    @torch.no_grad()
    def prepare(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """With the embedded quantiles."""
        return self.network.for_acting(arrays)

    def act(self, sight: Sight, first: int, last: int) -> Choice:
        """Greedy on the network, with a random action now and then."""
        worlds = sight.keys.shape[0]
        greedy = np.empty((worlds, last - first), np.int64)
        width = self.network.acting_bytes(worlds)
        for low, high in chunks(last - first, width):
            q = self._values(sight, low, high, first)
            if sight.mask is not None:
                q = np.where(sight.mask[:, low:high], q, -np.inf)
            greedy[:, low:high] = q.argmax(axis=-1)
        if sight.exploration is None:
            chance = self._rows[first:last, -1].astype(np.float64)
        else:
            chance = np.full(last - first, sight.exploration)
        return Choice(explore(greedy, chance, sight, self.group.actions))

    @torch.no_grad()
    def _values(self, sight: Sight, low: int, high: int, first: int) -> NDArray[np.float32]:
        """How good every action looks, (worlds, high-low, actions)."""
        net = self.network
        x = stack_frames(sight.obs[:, :, low:high], sight.ages[:, low:high], net.scale, net.inputs)
        liked = net.preferences(self.slice(first + low, first + high), x.to(net.device))
        values: NDArray[np.float32] = liked[:, : sight.keys.shape[0]].transpose(0, 1).cpu().numpy()
        return values


class IQN(Learner):
    """IQN for neighbouring agents: each its own network, target, optimiser, memory and random streams."""

    max_lag = 1 << 30
    metrics = ("loss", "grad_norm", "epsilon")

    def __init__(self, post: Post, options: IQNOptions) -> None:
        super().__init__(post, options)
        self.options: IQNOptions = options
        self.network = IQNNetwork(post.group, options, post.precision, post.device)
        self.memory = Memory(post.group, post.agents, self._capacity(), options.frames)
        first = self.network.initial(init_keys(post.seed, post.numbers))
        self.weights = torch.from_numpy(first).to(post.device)
        self.target = self.weights.clone()
        self.adam = Adam(self.weights)
        self.updates = 0  # due so far, whether or not an agent had enough to learn from
        self.steps = np.zeros(post.agents, np.int64)  # really made
        self._forget_sums()
        self._rate = schedule("lr", options.lr, post.numbers)
        self._epsilon = schedule("epsilon", options.epsilon, post.numbers, high=1.0)
        self._gamma = schedule("gamma", options.gamma, post.numbers, high=1.0)

    def _capacity(self) -> int:
        """Observations to keep per agent; refuses a memory in which learning could never start."""
        options, post = self.options, self.post
        stretch = post.turns + options.frames
        automatic = max(LEAST_MEMORY, 4 * post.round_episodes * (post.turns + 1), stretch)
        capacity = automatic if options.memory is None else options.memory
        if capacity < stretch:
            raise ConfigError(
                f"memory={capacity} cannot hold one episode of {post.turns} turns: give at least {stretch}"
            )
        starts = options.learning_starts or options.batch_size
        holds = capacity // (post.turns + 1) * post.turns
        if starts > holds:
            name = "learning_starts" if options.learning_starts else "batch_size"
            raise ConfigError(
                f"{name}={starts} is more than memory={capacity} holds ({holds} transitions of whole episodes): "
                f"lower {name} or raise memory"
            )
        return capacity

    @classmethod
    def options_type(cls) -> type[Options]:
        """See IQNOptions."""
        return IQNOptions

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """An IQNPolicy with all weights zero."""
        return IQNPolicy(group, agents, options, precision, device)

    def rows(self) -> NDArray[np.float32]:
        """Weights and, in the last column, the ε to collect the next data with."""
        epsilon = self._epsilon.at(self.updates, self.post.total_updates).astype(np.float32)
        return np.concatenate([self.weights.cpu().numpy(), epsilon[:, None]], axis=1)

    def take(self, fragment: Fragment) -> None:
        """Remember it."""
        self.memory.take(fragment, self.post.first)

    def update(self, count: int) -> None:
        """Make `count` updates per agent, chunk by chunk so that a chunk's weights stay in the cache."""
        made = np.zeros(self.post.agents, np.int64)
        starts = self.options.learning_starts or self.options.batch_size
        ready = self.memory.counts >= starts
        for run_first, run_last in _runs(ready):
            for low, high in chunks(run_last - run_first, self.network.update_bytes()):
                first, last = run_first + low, run_first + high
                for i in range(count):
                    loss, norm = self._update(first, last, self.updates + i)
                    good = np.isfinite(norm)
                    self._losses[first:last] += np.where(good, loss, 0.0)
                    self._norms[first:last] += np.where(good, norm, 0.0)
                    made[first:last] += good
        self.steps += made
        self._made += made
        self.leave_out(np.where(ready, count - made, 0))
        self.updates += count

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the updates, and the ε there is now."""
        each = np.where(self._made > 0, self._made, np.nan)
        result = {
            "loss": self._losses / each,
            "grad_norm": self._norms / each,
            "epsilon": self._epsilon.at(self.updates, self.post.total_updates),
        }
        self._forget_sums()
        return result

    def _forget_sums(self) -> None:
        self._losses, self._norms, self._made = np.zeros((3, self.post.agents))

    def skip(self, count: int) -> None:
        """Schedules and random streams go on; memory stays."""
        self.updates += count

    def _update(self, first: int, last: int, update: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """One gradient step for agents first … last-1; returns their losses and gradient norms."""
        agents = slice(first, last)
        keys = self._keys(agents, update)
        with span("sample"):
            batch = self.memory.sample(
                first,
                last,
                keys[Stream.SAMPLE],
                self.options.batch_size,
                self.options.n_step,
                self._gamma.at(update, self.post.total_updates)[agents],
            )
        rows = self.weights[agents].detach().requires_grad_()
        loss = self._loss(rows, self.target[agents], batch, keys)
        (grad,) = torch.autograd.grad(loss.sum(), rows)
        with torch.no_grad():
            rates = self._rate.at(update, self.post.total_updates)[agents]
            norm = self.adam.step(first, last, grad, rates, self.options.clip)
            self.target[agents].lerp_(self.weights[agents], self.options.tau)
        return loss.detach().cpu().numpy(), norm.cpu().numpy()

    def _keys(self, agents: slice, update: int) -> dict[Stream, Keys]:
        numbers = self.post.numbers[agents]
        return {
            stream: rng.keys(rng.keys(rng.key(self.post.seed, stream), numbers), update)
            for stream in (Stream.SAMPLE, Stream.TAU, Stream.NOISE)
        }

    def _loss(self, rows: Tensor, target_rows: Tensor, batch: Batch, keys: dict[Stream, Keys]) -> Tensor:
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
            next_x = pad_windows(batch.next_obs, net.scale, net.inputs, device, least_rows=1)
            online = {name: array.detach() for name, array in arrays.items()}
            liked = net.preferences(net.for_acting(online), next_x)
            if batch.next_mask is not None:
                liked = liked.masked_fill(~torch.from_numpy(batch.next_mask).to(device), -torch.inf)
            best = liked.argmax(dim=2)  # (agents, batch)
            future = net.quantiles(net.layout.arrays(target_rows), next_x, target_taus, target_noise)
            future = future.gather(3, best[:, :, None, None].expand(-1, -1, q, 1)).squeeze(3)
            returns = torch.from_numpy(batch.returns).to(device)
            discounts = torch.from_numpy(batch.discounts).to(device)
            wanted = returns[:, :, None] + discounts[:, :, None] * future  # (agents, batch, quantiles)
        x = pad_windows(batch.obs, net.scale, net.inputs, device, least_rows=1)
        values = net.quantiles(arrays, x, taus, noise)
        actions = torch.from_numpy(batch.actions).to(device)
        values = values.gather(3, actions[:, :, None, None].expand(-1, -1, q, 1)).squeeze(3)
        error = wanted[:, :, None, :] - values[:, :, :, None]  # (agents, batch, quantiles, wanted)
        size_of = error.abs()
        huber = torch.where(size_of <= 1.0, 0.5 * error.square(), size_of - 0.5)
        weight = (taus.view(agents, size, q, 1) - (error.detach() < 0).float()).abs()
        return (weight * huber).flatten(1).mean(dim=1)

    def state(self) -> State:
        """Weights, target, optimiser, counters and memory."""
        arrays: State = {
            **self.adam.state(),
            "target": self.target.cpu().numpy(),
            "steps": self.steps,
            "updates": np.full(self.post.agents, self.updates, np.int64),
        }
        return arrays | {f"memory.{name}": array for name, array in self.memory.state().items()}

    def restore(self, state: State) -> None:
        """Become the learner that `state` was taken from."""
        self.check_state(state)
        self.adam.restore(state)
        self.target.copy_(torch.from_numpy(state["target"]))
        self.steps[:] = state["steps"]
        self.updates = int(state["updates"][0])
        prefix = "memory."
        self.memory.restore({n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)})

    def memory_bytes(self) -> int:
        """Replay memory, and weights five times over: network, target, optimiser, gradient."""
        return self.memory.nbytes + 5 * self.weights.numel() * self.weights.element_size()


def _runs(ready: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Ranges of neighbouring agents that are ready."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], ready, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
