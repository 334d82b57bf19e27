"""PPO for a herd: every agent its own actor and critic, all stacked."""

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
from remuda.core.rng import Keys, Stream
from remuda.core.threads import thread_pool
from remuda.learners.ppo.encoding import Encoded, encode, read_rows
from remuda.learners.ppo.experience import (
    Experience,
    RunningMoments,
    alive_rows,
    frame_stacks,
    generalised_advantages,
    next_frame_stacks,
    places,
    privileged_states,
    sequence_lengths,
)
from remuda.learners.ppo.loss import loss_gradient
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.policy import DRAW, LOG_PROB, PPOPolicy
from remuda.learners.schedule import counts, schedule
from remuda.learners.stack import Adam, chunks, init_keys, pad_frame_stacks

MAX_MICROBATCHES, MIN_MICROBATCH_ROWS = 16, 2048
MIN_STD = 1e-3
"""An observation with a smaller standard deviation is centred but not divided by it."""
VALUE_ROWS = 2500
"""Rows that the critic evaluates in one call."""
Job = TypeVar("Job")
Result = TypeVar("Result")


def microbatch_count(rows: int) -> int:
    """How many microbatches the gradient of a minibatch is summed over: the threads that can share it."""
    return max(1, min(MAX_MICROBATCHES, rows // MIN_MICROBATCH_ROWS))


class PPO(Learner):
    """PPO for neighbouring agents, each with its own actor, critic, optimiser and random streams.

    It learns `passes` times from each round. The plan's updates_per_episode only advances the schedules.
    """

    metrics = ("loss", "value_loss", "entropy", "kl", "grad_norm")
    keeps_views = True
    incremental = False
    max_lag = 1  # stored log-probabilities correct for older data, and the clip bounds the correction

    def __init__(self, context: LearnerContext, options: PPOOptions) -> None:
        super().__init__(context, options)
        self.options: PPOOptions = options
        self.network = PPONetwork(context.group, options, context.precision, context.device)
        initial = self.network.initial_rows(init_keys(context.seed, context.agent_numbers))
        self.weights = torch.from_numpy(initial).to(context.device)
        self.adam = Adam(self.weights, options.beta2)
        self.updates = 0  # due so far by the plan: the clock of the schedules
        self._passes = counts("passes", options.passes, context.agent_numbers)  # per round, (agents,)
        self.passes = np.zeros(context.agents, np.int64)  # made so far: the clock of the random streams
        self.steps = np.zeros(context.agents, np.int64)
        self.returns = RunningMoments(context.agents, 1)
        self.observed = RunningMoments(context.agents, self.network.obs_size)
        self.states = RunningMoments(context.agents, self.network.state_size)
        self._rate = schedule("lr", options.lr, context.agent_numbers)
        self._entropy = schedule("entropy", options.entropy, context.agent_numbers)
        self._gamma = schedule("gamma", options.gamma, context.agent_numbers, high=1.0)
        self._stores_draws = self.network.head is not None and self.network.head.stored_size > 0
        self._fragments: list[Fragment] = []
        self._report = self._empty_report()
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def options_type(cls) -> type[Options]:
        """The class PPOOptions."""
        return PPOOptions

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """A PPOPolicy, before rows are loaded."""
        return PPOPolicy(group, agents, options, precision, device)

    def rows(self) -> NDArray[np.float32]:
        """Weights.

        If observations are normalised, mean and standard deviation are folded into the first layers. So the policy, and
        anyone who exports the network, uses plain observations.
        """
        weights = self.weights
        if self.options.normalise_observations:
            weights = weights.clone()
            arrays = self.network.layout.arrays(weights)
            for name in ("actor", "critic"):
                mean, std = (torch.from_numpy(a).to(weights) for a in self._input_moments(name))
                arrays[f"{name}.0.weight"].div_(std)
                arrays[f"{name}.0.bias"].sub_((arrays[f"{name}.0.weight"] * mean).sum(dim=2))
        return weights.cpu().numpy().copy()

    def _value_moments(self) -> NDArray[np.float64]:
        """Mean and standard deviation by which the critic's values are standardised, (agents, 2)."""
        if not self.options.normalise_values:
            return np.tile([0.0, 1.0], (self.context.agents, 1))
        mean, std = self.returns.mean_and_std()
        return np.concatenate([mean, np.maximum(std, 1e-6)], axis=1)

    def _input_moments(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation by which inputs of actors or critics are standardised, (agents, 1, inputs)."""
        network, critic = self.network, name == "critic" and self.options.critic
        moments = [] if critic == "state" else [self.observed.mean_and_std()] * network.frames
        if critic in ("state", "both"):
            moments.append(self.states.mean_and_std())
        mean, std = (np.concatenate(arrays, axis=1) for arrays in zip(*moments, strict=True))
        std = np.where(std < MIN_STD, 1.0, std)
        padding = ((0, 0), (0, (network.critic_inputs if critic else network.inputs) - mean.shape[1]))
        mean, std = np.pad(mean, padding), np.pad(std, padding, constant_values=1.0)
        return mean[:, None].astype(np.float32), std[:, None].astype(np.float32)

    def take(self, fragment: Fragment) -> None:
        """Keep the fragment until the next update."""
        assert fragment.actions.shape[2] == self.context.agents, "the fragment has other agents, too"
        self._fragments.append(fragment)

    def advantages(
        self, fragment: Fragment, stacks: NDArray[Any], encoded: Encoded | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Generalised advantages and the critic's values, (turns, worlds, agents).

        `stacks` is its `frame_stacks`, and `encoded` what a body makes of them.
        """
        states = privileged_states(fragment, self.network.state_size)
        values = self._values(stacks if encoded is None else encoded.features, states)
        ended = fragment.terminated | fragment.truncated
        cut_off = fragment.alive & ~fragment.terminated  # becomes: where to bootstrap from the observation after it
        cut_off[:-1] &= fragment.truncated[:-1] | ~fragment.alive[1:]
        next_values = np.zeros_like(values)
        next_values[:-1] = np.where(cut_off[:-1], 0.0, values[1:])
        self._bootstrap(fragment, states, encoded, cut_off, next_values)
        result = np.zeros_like(values)
        rewards = fragment.rewards * np.float32(self.options.reward_scale)
        gamma = self._gamma.at(self.updates, self.context.total_updates)
        flags = (fragment.terminated, ended | cut_off, fragment.alive)
        generalised_advantages(rewards, values, next_values, flags, gamma, self.options.gae_lambda, result)
        return result, values

    def _values(self, stacks: NDArray[Any], states: NDArray[Any]) -> NDArray[np.float32]:
        """The critics' values of frame stacks and states (turns, worlds, agents, …): (turns, worlds, agents)."""
        arrays, moments = self.network.layout.arrays(self.weights), self._value_moments()
        values = np.empty(stacks.shape[:3], np.float32)
        turns = max(1, VALUE_ROWS // stacks.shape[1])

        @torch.no_grad()
        def evaluate(job: tuple[int, int]) -> None:
            agent, first = job
            own = {name: array[agent : agent + 1] for name, array in arrays.items()}
            part = stacks[first : first + turns, :, agent]  # (turns, worlds, frames * obs)
            state = states[first : first + len(part), :, agent]  # (turns, worlds, state)
            rows = part.shape[0] * part.shape[1]
            x = self._critic_input(
                part.reshape(1, rows, -1), state.reshape(1, rows, state.shape[2]), slice(agent, agent + 1)
            )
            predicted = self.network.values(own, x)[0, :rows].cpu().numpy()
            values[first : first + turns, :, agent] = predicted.reshape(part.shape[:2])

        self._map(evaluate, [(a, t) for a in range(self.context.agents) for t in range(0, len(values), turns)])
        return values * moments[:, 1].astype(np.float32) + moments[:, 0].astype(np.float32)

    @torch.no_grad()
    def _bootstrap(
        self,
        fragment: Fragment,
        states: NDArray[Any],
        encoded: Encoded | None,
        cut_off: NDArray[np.bool_],
        next_values: NDArray[np.float32],
    ) -> None:
        """Write the values after turns that `cut_off` marks, where the data ends but the game does not."""
        arrays = self.network.layout.arrays(self.weights)
        moments = self._value_moments()
        for agent in range(self.context.agents):
            turns, worlds = np.nonzero(cut_off[:, :, agent])
            if len(turns):
                stacks = next_frame_stacks(fragment, self.network.frames, turns, worlds, agent)
                state = states[turns + 1, worlds, agent]
                own = {name: array[agent : agent + 1] for name, array in arrays.items()}
                if encoded is not None:
                    memory = encoded.after[turns, worlds, agent] if self.network.memory_size else None
                    stacks = read_rows(self.network, own, stacks, memory)
                x = self._critic_input(stacks[None], state[None], slice(agent, agent + 1))
                values = self.network.values(own, x)[0, : len(turns)].cpu().numpy()
                next_values[turns, worlds, agent] = values * moments[agent, 1] + moments[agent, 0]

    def _input(self, stacks: NDArray[Any], agents: slice) -> Tensor:
        """Network input of some agents: stacks (agents, rows, frames * obs) → (agents, padded rows, inputs)."""
        x = pad_frame_stacks(stacks, self.network.scale, self.network.inputs, self.network.device)
        return self._normalised(x, "actor", agents)

    def _critic_input(self, stacks: NDArray[Any], states: NDArray[Any], agents: slice) -> Tensor:
        """Input of some critics: stacks or features, and states (agents, rows, …) → (agents, padded rows, inputs)."""
        network, columns = self.network, stacks.shape[2]
        if self.options.critic == "obs" and not network.body_columns:
            return self._input(stacks, agents)
        if self.options.critic == "state":
            x = pad_frame_stacks(states, 1.0, network.critic_inputs, network.device)
        else:
            scale = 1.0 if network.body_columns else network.scale
            x = pad_frame_stacks(stacks, scale, network.critic_inputs, network.device)
            if not network.state_size:
                return x
            state = pad_frame_stacks(states, 1.0, states.shape[2], network.device)
            x[:, :, columns : columns + states.shape[2]] = state
        return self._normalised(x, "critic", agents)

    def _normalised(self, x: Tensor, name: str, agents: slice) -> Tensor:
        """Standardise inputs of actors or critics in place, if the options ask for it."""
        if self.options.normalise_observations:
            mean, std = (torch.from_numpy(a[agents]).to(x) for a in self._input_moments(name))
            x = x.sub_(mean).div_(std)
        return x

    def update(self, count: int) -> None:
        """Learn `passes` times from what was taken; `count` only advances the schedules."""
        report = self._report
        experiences = self._experiences()
        skipped = np.zeros(self.context.agents, np.int64)
        for agent, own in enumerate(experiences):
            if np.isfinite(own.returns).all():
                self.returns.add(agent, own.returns[:, None].astype(np.float64))
        for low, high in self._alike_ranges([self._shape_key(own, agent) for agent, own in enumerate(experiences)]):
            stacked = Experience(*(np.stack(arrays) for arrays in zip(*experiences[low:high], strict=True)))
            values, made = self._learn(stacked, low, high)
            for name, column in values.items():
                report[name][low:high] = column
            self.steps[low:high] += made
            skipped[low:high] = self._passes[low:high] * self._minibatch_count(stacked) - made
        self.note_skipped_updates(skipped)
        if self.options.normalise_observations:  # after learning: this round was played with the old moments
            for agent, own in enumerate(experiences):
                newest = own.stacks[:, -self.network.obs_size :].astype(np.float64) * self.network.scale
                self.observed.add(agent, newest)
                self.states.add(agent, own.states.astype(np.float64))
        self.passes += self._passes
        self.updates += count

    def planned_steps(self, count: int) -> NDArray[np.int64]:
        """Its own passes and minibatches."""
        del count
        return self._passes * self.options.minibatches

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the gradient steps of the last round."""
        report, self._report = self._report, self._empty_report()
        return report

    def _empty_report(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.full(self.context.agents, np.nan) for name in self.metrics}

    def _experiences(self) -> list[Experience]:
        """The data of each agent in the fragments taken, without an agents axis; drops the fragments."""
        parts = []
        for fragment in self._fragments:
            stacks = frame_stacks(fragment, self.network.frames)
            encoded = encode(self.network, self.weights, fragment, stacks) if self.network.body_columns else None
            advantages, values = self.advantages(fragment, stacks, encoded)
            mask = fragment.mask[:-1] if fragment.mask is not None else np.ones((*fragment.alive.shape, 0), np.bool_)
            states = privileged_states(fragment, self.network.state_size)[:-1]
            actions = fragment.extras[DRAW] if self._stores_draws else fragment.actions
            returns = advantages + values
            none = np.zeros((*fragment.alive.shape, 0), np.float32)
            memory = none if encoded is None else encoded.before
            place = places(fragment, self.options.sequence) if self.network.cell is not None else none.astype(np.int64)
            arrays = (stacks, states, actions, fragment.extras[LOG_PROB], advantages, returns, mask, memory, place)
            parts.append((fragment, arrays))
        self._fragments = []
        return [
            Experience(*(np.concatenate(column) for column in zip(*(
                [alive_rows(fragment, array, agent) for array in arrays] for fragment, arrays in parts
            ), strict=True)))
            for agent in range(self.context.agents)
        ]  # fmt: skip

    def _shape_key(self, own: Experience, agent: int) -> tuple[int, int]:
        """Rows of an agent, and turns of its sequences; agents with equal keys can learn stacked."""
        if self.network.cell is None:
            return len(own.actions), 0
        lengths = sequence_lengths(own.place[:, 0])
        # Where sequences differ in length, a minibatch of them differs in rows from agent to agent.
        return len(own.actions), int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else -1 - agent

    def _alike_ranges(self, keys: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Ranges of neighbouring agents with equally many rows and passes, few enough for the cache.

        Agents with different numbers of rows are not padded to one length: a sum over more rows has other bits, so the
        weights of an agent would depend on its neighbours.
        """
        first = 0
        for ((count, _), _), group in groupby(zip(keys, self._passes.tolist(), strict=True)):
            size = len(list(group))
            if count >= self.options.minibatches:
                bytes_each = 4 * self.network.row_bytes(count // self.options.minibatches + 1)
                for low, high in chunks(size, bytes_each):
                    yield first + low, first + high
            first += size

    def _minibatch_count(self, own: Experience) -> int:
        """Gradient steps per pass: as the options say, but no more than there are sequences."""
        if self.network.cell is None:
            return self.options.minibatches
        return min(self.options.minibatches, int((own.place[0] == 0).sum()))

    def skip(self, count: int) -> None:
        """Advance schedules and random streams; drop what was taken."""
        self._fragments = []
        self.passes += self._passes
        self.updates += count

    def _learn(self, own: Experience, low: int, high: int) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        """Make all passes for agents low … high-1; returns means over the gradient steps, and how many there were."""
        rate = self._rate.at(self.updates, self.context.total_updates)[low:high]
        sums = {name: np.zeros(high - low) for name in self.metrics}
        made = np.zeros(high - low, np.int64)
        for epoch in range(int(self._passes[low])):
            for batch in self._minibatches(own, low, high, epoch):
                grad, terms = self._gradient(batch, low, high)
                terms["grad_norm"] = self.adam.step(low, high, grad, rate, self.options.grad_clip)
                finite = np.isfinite(terms["grad_norm"].cpu().numpy())
                made += finite
                for name, value in terms.items():
                    sums[name] += np.where(finite, value.cpu().numpy(), 0.0)
        divisor = np.where(made > 0, made, np.nan)
        return {name: values / divisor for name, values in sums.items()}, made

    def _minibatches(self, own: Experience, low: int, high: int, epoch: int) -> Iterator[Experience]:
        """The minibatches of one pass: rows in a random order per agent, advantages normalised if asked for."""
        keys = rng.keys(rng.key(self.context.seed, Stream.SAMPLE), self.context.agent_numbers[low:high])
        keys = rng.keys(keys, self.passes[low:high] + epoch)
        for rows in self._minibatch_rows(own, keys):
            batch = own if rows is None else own.pick(rows)
            if self.options.normalise_advantages:
                centred = batch.advantages - batch.advantages.mean(axis=1, keepdims=True)
                std = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
                batch = batch._replace(advantages=centred / (std + np.float32(1e-8)))
            yield batch

    def _minibatch_rows(self, own: Experience, keys: Keys) -> Iterator[NDArray[np.int64] | None]:
        """Rows of each minibatch, (agents, rows); None: all of them. Sequences stay whole."""
        parts = self._minibatch_count(own)
        if parts == 1:
            yield None
            return
        if self.network.cell is None:
            order = rng.uniforms(keys, own.actions.shape[1]).argsort(axis=1, kind="stable")
            yield from (order[:, a:b] for a, b in split_evenly(own.actions.shape[1], parts))
            return
        lengths = sequence_lengths(own.place[0, :, 0])  # several agents are stacked only where all are equal
        firsts, rows = np.cumsum(lengths) - lengths, np.arange(own.actions.shape[1])
        order = rng.uniforms(keys, len(lengths)).argsort(axis=1, kind="stable")
        for a, b in split_evenly(len(lengths), parts):
            picked = [[rows[firsts[i] : firsts[i] + lengths[i]] for i in agent[a:b]] for agent in order]
            yield np.array([np.concatenate(agent) for agent in picked])

    def _gradient(self, batch: Experience, low: int, high: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Gradient of the mean loss over a minibatch, and means of its terms, summed over microbatches.

        How a minibatch is split depends on its size alone, never on the threads that share the work: a sum over other
        microbatches would have other bits.
        """
        count = batch.actions.shape[1]
        agents, weights = slice(low, high), self.weights[low:high]
        bonus = torch.from_numpy(self._entropy.at(self.updates, self.context.total_updates)[agents]).to(weights)
        moments = torch.from_numpy(self._value_moments()[agents]).to(weights)

        def microbatch(rows: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
            part = batch.slice(*rows)
            x = self._input(part.stacks, agents)
            seen = x if self.options.critic == "obs" else self._critic_input(part.stacks, part.states, agents)
            grad, terms, _ = loss_gradient(self.network, self.options, weights, (x, seen), part, count, bonus, moments)
            return grad, terms

        if self.network.body_columns:
            return self._gradient_with_body(batch, agents, bonus, moments)
        (grad, terms), *others = self._map(microbatch, split_evenly(count, microbatch_count(count)))
        for other_grad, other_terms in others:
            grad += other_grad
            terms = {name: term + other_terms[name] for name, term in terms.items()}
        return grad, terms

    def _gradient_with_body(
        self, batch: Experience, agents: slice, bonus: Tensor, moments: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As `_gradient`: actor and critic by hand as ever, and from their inputs on back through the body by torch."""
        network, weights = self.network, self.weights[agents]
        body = weights[:, : network.body_columns].clone().requires_grad_()
        arrays = network.layout.arrays(torch.cat([body, weights[:, network.body_columns :]], dim=1))
        x = pad_frame_stacks(batch.stacks, network.scale, network.inputs, network.device)
        memory, place = torch.from_numpy(batch.memory).to(x), torch.from_numpy(batch.place[0, :, :1].reshape(-1))
        with torch.enable_grad():
            features = network.sequence_features(arrays, x, memory, place.to(x.device))
        rows, columns = batch.actions.shape[1], self.options.width
        seen = self._critic_input(features.detach()[:, :rows, :columns].cpu().numpy(), batch.states, agents)
        grad, terms, (actor, critic) = loss_gradient(
            network, self.options, weights, (features.detach(), seen), batch, rows, bonus, moments
        )
        assert actor is not None
        assert critic is not None
        if self.options.critic != "state":
            actor[:, :, :columns] += critic[:, :, :columns]
        (own,) = torch.autograd.grad(features, body, actor)
        grad[:, : network.body_columns] = own
        return grad, terms

    def _map(self, work: Callable[[Job], Result], jobs: list[Job]) -> list[Result]:
        """The results of all jobs in order, computed by as many threads as the learner may use."""
        if self.context.threads == 1 or len(jobs) == 1:
            return [work(job) for job in jobs]
        if self._pool is None:
            self._pool = thread_pool(self.context.threads, "learn")

        def timed(job: Job) -> tuple[Result, float]:
            began = time.thread_time()
            return work(job), time.thread_time() - began

        done = list(self._pool.map(timed, jobs))
        self.thread_pool_cpu_s += sum(cpu for _, cpu in done)
        return [result for result, _ in done]

    def state(self) -> State:
        """Weights, optimiser, moments and counters; between rounds there is nothing else."""
        agents = self.context.agents
        return {
            **self.adam.state(),
            "returns": self.returns.moments,
            "observed": self.observed.moments,
            **({"states": self.states.moments} if self.network.state_size else {}),
            "steps": self.steps,
            "updates": np.full(agents, self.updates, np.int64),
            "passes": self.passes,
        }

    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from."""
        self.check_state(state)
        self.adam.restore(state)
        self.returns.moments[:] = state["returns"]
        self.observed.moments[:] = state["observed"]
        if self.network.state_size:
            self.states.moments[:] = state["states"]
        self.steps[:] = state["steps"]
        self.updates = int(state["updates"][0])
        self.passes[:] = state["passes"]

    def close(self) -> None:
        """End the thread pool."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def memory_bytes(self) -> int:
        """A round of frame stacks, and four times the weights: network, two moments of the optimiser, gradient."""
        group, context = self.context.group, self.context
        stack = self.network.frames * self.network.obs_size * np.dtype(group.obs_dtype).itemsize
        if self.network.state_size:
            stack += self.network.state_size * np.dtype(group.state_dtype).itemsize
        rows = context.agents * context.turns * context.round_episodes
        return rows * (stack + 32) + 4 * self.weights.numel() * self.weights.element_size()
