"""Proximal policy optimisation for a herd: every agent its own actor and critic, all stacked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, TypeVar

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
from remuda.core.ranges import split_evenly
from remuda.core.rng import Stream
from remuda.core.threads import thread_pool
from remuda.learners.ppo.experience import Experience, Statistics, discount_advantages, lived, windows
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.policy import LOG_PROB, PPOPolicy
from remuda.learners.schedule import schedule
from remuda.learners.stack import Adam, chunks, init_keys, pad_windows

SHARDS, SHARD_ROWS = 16, 2048  # a minibatch is learned in up to so many pieces of at least so many rows
LEAST_SPREAD = 1e-3  # of an observation that is divided by it
VALUE_ROWS = 2500  # judged by the critic at once
Job = TypeVar("Job")
Result = TypeVar("Result")


def pieces(rows: int) -> int:
    """How many pieces a minibatch is learned in, which is how many threads can share it."""
    return max(1, min(SHARDS, rows // SHARD_ROWS))


class PPO(Learner):
    """PPO for neighbouring agents: each its own actor, critic, optimiser and random streams.

    A round is learned from `passes` times; the plan's updates_per_episode only moves the schedules.
    """

    metrics = ("loss", "value_loss", "entropy", "kl", "grad_norm")
    keeps_fragments = True
    incremental_updates = False
    max_lag = 1  # stored log-probabilities correct for the age of the data, the clip bounds it

    def __init__(self, context: LearnerContext, options: PPOOptions) -> None:
        super().__init__(context, options)
        self.options: PPOOptions = options
        self.network = PPONetwork(context.group, options, context.precision, context.device)
        first = self.network.layout.initial(init_keys(context.seed, context.numbers))
        self.weights = torch.from_numpy(first).to(context.device)
        self.adam = Adam(self.weights, options.beta2)
        self.updates = 0  # due so far by the plan, the clock of the schedules
        self.passes = 0  # over a round so far, the clock of the random streams
        self.steps = np.zeros(context.agents, np.int64)
        self.returns = Statistics(context.agents, 1)
        self.observed = Statistics(context.agents, self.network.obs_size)
        self._rate = schedule("lr", options.lr, context.numbers)
        self._entropy = schedule("entropy", options.entropy, context.numbers)
        self._gamma = schedule("gamma", options.gamma, context.numbers, high=1.0)
        self._fragments: list[Fragment] = []
        self._report = self._nothing()
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def options_type(cls) -> type[Options]:
        """See PPOOptions."""
        return PPOOptions

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """A PPOPolicy with all weights zero."""
        return PPOPolicy(group, agents, options, precision, device)

    def rows(self) -> NDArray[np.float32]:
        """Weights.

        Where observations are normalised the first layers are given such that they do it themselves: who
        acts, and who takes the trained network elsewhere, need not know.
        """
        weights = self.weights
        if self.options.normalise_observations:
            weights = weights.clone()
            arrays = self.network.layout.arrays(weights)
            centre, spread = (torch.from_numpy(a).to(weights) for a in self._sight())
            for name in ("actor", "critic"):
                arrays[f"{name}.0.weight"].div_(spread)
                arrays[f"{name}.0.bias"].sub_((arrays[f"{name}.0.weight"] * centre).sum(dim=2))
        return weights.cpu().numpy().copy()

    def _scale(self) -> NDArray[np.float64]:
        """Centre and spread that the critic's standardised values are multiplied out with, (agents, 2)."""
        if not self.options.normalise_values:
            return np.tile([0.0, 1.0], (self.context.agents, 1))
        centre, spread = self.returns.scale()
        return np.concatenate([centre, np.maximum(spread, 1e-6)], axis=1)

    def _sight(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Centre and spread of the network's inputs, (agents, 1, inputs)."""
        centre, spread = self.observed.scale()
        spread = np.where(spread < LEAST_SPREAD, 1.0, spread)  # what never changes is only centred
        rest = self.network.inputs - self.network.frames * self.network.obs_size
        frames = (1, self.network.frames)
        centre = np.pad(np.tile(centre, frames), ((0, 0), (0, rest)))
        spread = np.pad(np.tile(spread, frames), ((0, 0), (0, rest)), constant_values=1.0)
        return centre[:, None].astype(np.float32), spread[:, None].astype(np.float32)

    def take(self, fragment: Fragment) -> None:
        """Keep it until the next update."""
        assert fragment.actions.shape[2] == self.context.agents, "the fragment holds other agents too"
        self._fragments.append(fragment)

    def advantages(self, fragment: Fragment) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Generalised advantages and the values they are relative to, (turns, worlds, agents)."""
        values = self._values(fragment)
        ended = fragment.terminated | fragment.truncated
        cut_off = fragment.alive & ~fragment.terminated  # where a value beyond the data is needed
        cut_off[:-1] &= fragment.truncated[:-1] | ~fragment.alive[1:]
        following = np.zeros_like(values)
        following[:-1] = np.where(cut_off[:-1], 0.0, values[1:])
        self._look_beyond(fragment, cut_off, following)
        result = np.zeros_like(values)
        rewards = fragment.rewards * np.float32(self.options.reward_scale)
        gamma = self._gamma.at(self.updates, self.context.total_updates)
        flags = (fragment.terminated, ended | cut_off, fragment.alive)
        discount_advantages(rewards, values, following, flags, gamma, self.options.gae_lambda, result)
        return result, values

    def _values(self, fragment: Fragment) -> NDArray[np.float32]:
        """What the critics think of every turn, (turns, worlds, agents)."""
        arrays, scale = self.network.layout.arrays(self.weights), self._scale()
        seen = windows(fragment, self.network.frames)
        values = np.empty(fragment.actions.shape, np.float32)
        turns = max(1, VALUE_ROWS // fragment.actions.shape[1])

        @torch.no_grad()
        def judge(part: tuple[int, int]) -> None:
            agent, first = part
            own = {name: array[agent : agent + 1] for name, array in arrays.items()}
            views = seen[first : first + turns, :, agent]
            x = self._input(views.reshape(1, -1, views.shape[2]), slice(agent, agent + 1))
            guess = self.network.values(own, x)[0, : views.shape[0] * views.shape[1]].cpu().numpy()
            values[first : first + turns, :, agent] = guess.reshape(views.shape[:2])

        self._share(judge, [(a, t) for a in range(self.context.agents) for t in range(0, len(values), turns)])
        return values * scale[:, 1].astype(np.float32) + scale[:, 0].astype(np.float32)

    @torch.no_grad()
    def _look_beyond(self, fragment: Fragment, cut_off: NDArray[np.bool_], following: NDArray[np.float32]) -> None:
        """Value of the observation after each turn at which the data ends but the agent's life does not."""
        arrays = self.network.layout.arrays(self.weights)
        scale = self._scale()
        nexts = windows(fragment, self.network.frames, ahead=1)
        for agent in range(self.context.agents):
            turns, worlds = np.nonzero(cut_off[:, :, agent])
            if len(turns):
                x = self._input(nexts[turns, worlds, agent][None], slice(agent, agent + 1))
                own = {name: array[agent : agent + 1] for name, array in arrays.items()}
                values = self.network.values(own, x)[0, : len(turns)].cpu().numpy()
                following[turns, worlds, agent] = values * scale[agent, 1] + scale[agent, 0]

    def _input(self, windows: NDArray[Any], agents: slice) -> Tensor:
        """What the networks of some agents see of windows (agents, rows, frames * obs)."""
        x = pad_windows(windows, self.network.scale, self.network.inputs, self.network.device)
        if self.options.normalise_observations:
            centre, spread = (torch.from_numpy(a[agents]).to(x) for a in self._sight())
            x = x.sub_(centre).div_(spread)
        return x

    def update(self, count: int) -> None:
        """Learn `passes` times from what was taken; `count` only moves the schedules."""
        report = self._report
        lives = self._lives()
        left_out = np.zeros(self.context.agents, np.int64)
        for agent, status in enumerate(lives):
            if np.isfinite(status.returns).all():
                self.returns.add(agent, status.returns[:, None].astype(np.float64))
        for low, high in self._alike([len(status.actions) for status in lives]):
            own = Experience(*(np.stack(arrays) for arrays in zip(*lives[low:high], strict=True)))
            values, made = self._learn(own, low, high)
            for name, column in values.items():
                report[name][low:high] = column
            self.steps[low:high] += made
            left_out[low:high] = self.options.passes * self.options.minibatches - made
        self.note_skipped_updates(left_out)
        if self.options.normalise_observations:  # only now: what was played was seen by the old measure
            for agent, status in enumerate(lives):
                seen = status.windows[:, -self.network.obs_size :].astype(np.float64) * self.network.scale
                self.observed.add(agent, seen)
        self.passes += self.options.passes
        self.updates += count

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the gradient steps of the last round."""
        report, self._report = self._report, self._nothing()
        return report

    def _nothing(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.full(self.context.agents, np.nan) for name in self.metrics}

    def _lives(self) -> list[Experience]:
        """What each agent lived through in the fragments taken, which are then forgotten; no agents axis."""
        parts = []
        for fragment in self._fragments:
            advantages, values = self.advantages(fragment)
            mask = fragment.mask[:-1] if fragment.mask is not None else np.ones((*fragment.alive.shape, 0), np.bool_)
            stacked = windows(fragment, self.network.frames)
            arrays = (stacked, fragment.actions, fragment.extras[LOG_PROB], advantages, advantages + values, mask)
            parts.append((fragment, arrays))
        self._fragments = []
        return [
            Experience(*(np.concatenate(column) for column in zip(*(
                [lived(fragment, array, agent) for array in arrays] for fragment, arrays in parts
            ), strict=True)))
            for agent in range(self.context.agents)
        ]  # fmt: skip

    def _alike(self, counts: list[int]) -> Iterator[tuple[int, int]]:
        """Ranges of neighbouring agents with equally many turns, few enough for the cache.

        Sums over more rows are other sums, so an agent's minibatches must not depend on its neighbours'.
        """
        first = 0
        for count, group in groupby(counts):
            size = len(list(group))
            if count >= self.options.minibatches:
                bytes_each = 4 * self.network.row_bytes(count // self.options.minibatches + 1)
                for low, high in chunks(size, bytes_each):
                    yield first + low, first + high
            first += size

    def skip(self, count: int) -> None:
        """Schedules and random streams go on; what was taken is forgotten."""
        self._fragments = []
        self.passes += self.options.passes
        self.updates += count

    def _learn(self, own: Experience, low: int, high: int) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        """All passes over the round for agents low … high-1; returns means over the gradient steps, and how many."""
        rate = self._rate.at(self.updates, self.context.total_updates)[low:high]
        sums = {name: np.zeros(high - low) for name in self.metrics}
        made = np.zeros(high - low, np.int64)
        for epoch in range(self.options.passes):
            for batch in self._minibatches(own, low, high, epoch):
                grad, parts = self._gradient(batch, low, high)
                parts["grad_norm"] = self.adam.step(low, high, grad, rate, self.options.grad_clip)
                good = np.isfinite(parts["grad_norm"].cpu().numpy())
                made += good
                for name, value in parts.items():
                    sums[name] += np.where(good, value.cpu().numpy(), 0.0)
        each = np.where(made > 0, made, np.nan)
        return {name: values / each for name, values in sums.items()}, made

    def _minibatches(self, own: Experience, low: int, high: int, epoch: int) -> Iterator[Experience]:
        """The round in another order in each pass, with advantages as the loss wants them."""
        rows, parts = own.actions.shape[1], self.options.minibatches
        keys = rng.keys(
            rng.keys(rng.key(self.context.seed, Stream.SAMPLE), self.context.numbers[low:high]), self.passes + epoch
        )
        order = rng.uniforms(keys, rows).argsort(axis=1, kind="stable") if parts > 1 else None
        for a, b in split_evenly(rows, parts):
            batch = own if order is None else own.pick(order[:, a:b])
            if self.options.normalise_advantages:
                centred = batch.advantages - batch.advantages.mean(axis=1, keepdims=True)
                spread = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
                batch = batch._replace(advantages=centred / (spread + np.float32(1e-8)))
            yield batch

    def _gradient(self, batch: Experience, low: int, high: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Gradient of the loss and its parts, both averaged over the minibatch, summed up shard by shard.

        How a minibatch is cut depends on its size alone, never on the threads that share the work.
        """
        count = batch.actions.shape[1]
        cuts = split_evenly(count, pieces(count))
        bonus = torch.from_numpy(self._entropy.at(self.updates, self.context.total_updates)[low:high]).to(self.weights)
        scale = torch.from_numpy(self._scale()[low:high]).to(self.weights)

        def shard(cut: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
            return self._shard(batch.cut(*cut), slice(low, high), count, bonus, scale)

        (grad, parts), *others = self._share(shard, cuts)
        for other_grad, other_parts in others:
            grad += other_grad
            parts = {name: part + other_parts[name] for name, part in parts.items()}
        return grad, parts

    def _share(self, work: Callable[[Job], Result], jobs: list[Job]) -> list[Result]:
        """Every job done, by as many threads as the learner may use."""
        if self.context.threads == 1 or len(jobs) == 1:
            return [work(job) for job in jobs]
        if self._pool is None:
            self._pool = thread_pool(self.context.threads, "learn")

        def timed(job: Job) -> tuple[Result, float]:
            began = time.thread_time()
            return work(job), time.thread_time() - began

        done = list(self._pool.map(timed, jobs))
        self.helpers_cpu_s += sum(cpu for _, cpu in done)
        return [result for result, _ in done]

    @torch.no_grad()
    def _shard(
        self, batch: Experience, agents: slice, count: int, bonus: Tensor, scale: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What some rows contribute to the gradient of a minibatch of `count` rows, and to the parts of its loss."""
        options, network, weights = self.options, self.network, self.weights[agents]
        actions, old, advantages, returns, mask = (torch.from_numpy(array).to(weights.device) for array in batch[1:])
        rows = actions.shape[1]
        arrays, grad = network.layout.arrays(weights), torch.empty_like(weights)
        grads = network.layout.arrays(grad)
        x = self._input(batch.windows, agents)

        given: list[Tensor] = []
        said = network.run(arrays, "critic", x, given)
        missed = said[:, :rows, 0] - (returns - scale[:, :1]) / scale[:, 1:]
        by_value = torch.zeros_like(said)
        by_value[:, :rows, 0] = missed * (2.0 * options.value_weight / count)
        network.pull_back(arrays, "critic", given, by_value, grads)

        given = []
        logits = network.logits(arrays, x, mask if mask.shape[2] else None, given)
        log_probs, probs = logits.log_softmax(dim=2), logits.softmax(dim=2)
        chosen = log_probs[:, :rows].gather(2, actions.unsqueeze(2)).squeeze(2)
        ratio = (chosen - old).exp_()
        gain = ratio * advantages
        bounded = ratio.clamp(1.0 - options.clip, 1.0 + options.clip).mul_(advantages)
        by_chosen = gain.masked_fill(gain > bounded, 0.0).mul_(-1.0 / count)  # what is clipped gains nothing
        by_entropy = bonus.neg().div_(count)[:, None, None]
        terms = log_probs.mul_(probs)
        entropy = terms.sum(dim=2).neg_()
        base = (by_entropy[:, :, 0] * entropy).neg_()
        base[:, :rows].sub_(by_chosen)
        by_logit = probs.mul_(base.unsqueeze(2)).sub_(terms.mul_(by_entropy))
        by_logit[:, :rows].scatter_add_(2, actions.unsqueeze(2), by_chosen.unsqueeze(2))
        by_logit[:, rows:] = 0.0
        network.pull_back(arrays, "actor", given, by_logit, grads)
        sums = {
            "loss": torch.minimum(gain, bounded).neg_(),
            "value_loss": missed.square(),
            "entropy": entropy[:, :rows],
            "kl": old - chosen,
        }
        return grad, {name: each.sum(dim=1) / count for name, each in sums.items()}

    def state(self) -> State:
        """Weights, optimiser, statistics and counters; between rounds nothing else is kept."""
        agents = self.context.agents
        return {
            **self.adam.state(),
            "returns": self.returns.moments,
            "observed": self.observed.moments,
            "steps": self.steps,
            "updates": np.full(agents, self.updates, np.int64),
            "passes": np.full(agents, self.passes, np.int64),
        }

    def restore(self, state: State) -> None:
        """Become the learner that `state` was taken from."""
        self.check_state(state)
        self.adam.restore(state)
        self.returns.moments[:] = state["returns"]
        self.observed.moments[:] = state["observed"]
        self.steps[:] = state["steps"]
        self.updates, self.passes = int(state["updates"][0]), int(state["passes"][0])

    def close(self) -> None:
        """End the threads that share the shards."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def memory_bytes(self) -> int:
        """A round as the networks see it, and weights four times over: network, optimiser, gradient."""
        group, context = self.context.group, self.context
        window = self.network.frames * self.network.obs_size * np.dtype(group.obs_dtype).itemsize
        rows = context.agents * context.turns * context.round_episodes
        return rows * (window + 32) + 4 * self.weights.numel() * self.weights.element_size()
