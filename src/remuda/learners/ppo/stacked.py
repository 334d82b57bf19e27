"""Learns from a round with torch, several agents stacked: any network, any precision, any device.

It is also the readable form of what `tiled.py` computes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.ranges import split_evenly
from remuda.learners.ppo.experience import Experience, sequence_lengths
from remuda.learners.ppo.learning import METRICS, Agents, Learned, RoundSettings
from remuda.learners.ppo.loss import loss_gradient
from remuda.learners.ppo.minibatches import minibatch_rows, normalised
from remuda.learners.ppo.rounds import Round
from remuda.learners.stack import chunks, pad_frame_stacks

MAX_MICROBATCHES, MIN_MICROBATCH_ROWS = 16, 2048
VALUE_ROWS = 2500
"""Rows that the critic evaluates in one call."""


def microbatch_count(rows: int) -> int:
    """How many microbatches the gradient of a minibatch is summed over: the threads that can share it."""
    return max(1, min(MAX_MICROBATCHES, rows // MIN_MICROBATCH_ROWS))


class StackedLearning:
    """Learns from one round, a range of agents at a time."""

    def __init__(self, agents: Agents, own: Round) -> None:
        self.agents = agents
        self.own = own

    def values(self) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
        """The critics' plain outputs for all rows, (agents, rows), and after the end of each agent's data."""
        own, rows = self.own, self.own.rows
        seen = own.features if self.agents.network.body_columns else rows.stacks
        values = [self._values(agent, seen[agent], rows.states[agent]) for agent in range(len(seen))]
        return np.stack(values), [self._values(i, after.stacks, after.states) for i, after in enumerate(own.after)]

    def _values(self, agent: int, stacks: NDArray[np.generic], states: NDArray[np.generic]) -> NDArray[np.float32]:
        """The critic's outputs for rows of one agent, (rows,)."""
        agents = self.agents
        number = self.own.first + agent
        one = slice(number, number + 1)
        arrays = {name: array[one] for name, array in agents.network.layout.arrays(agents.weights).items()}

        @torch.no_grad()
        def evaluate(first: int) -> NDArray[np.float32]:
            rows = slice(first, first + VALUE_ROWS)
            x = agents.inputs.critic(stacks[None, rows], states[None, rows], one)
            found: NDArray[np.float32] = agents.network.values(arrays, x)[0, : len(stacks[rows])].cpu().numpy()
            return found

        found = agents.pool.map(evaluate, range(0, len(stacks), VALUE_ROWS))
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def learn(self, settings: RoundSettings) -> Learned:
        """Make all passes, for as many agents at once as fit into the cache."""
        own = self.own
        means = {name: np.full(own.last - own.first, np.nan) for name in METRICS}
        made = np.zeros(own.last - own.first, np.int64)
        for first, last in self._ranges(settings):
            learned = self._learn(first, last, settings)
            here = slice(first - own.first, last - own.first)
            made[here] = learned.made
            for name, column in learned.means.items():
                means[name][here] = column
        return Learned(means, made)

    def _ranges(self, settings: RoundSettings) -> Iterator[tuple[int, int]]:
        """Ranges of neighbouring agents with equally many passes and equal sequences, few enough for the cache.

        Agents with different numbers of rows are not padded to one length: a sum over more rows has other bits, so the
        weights of an agent would depend on its neighbours.
        """
        own, network = self.own, self.agents.network
        keys = [(settings.passes[agent], self._sequence_key(agent)) for agent in range(own.first, own.last)]
        edges = [i for i in range(1, len(keys)) if keys[i] != keys[i - 1]]
        rows = own.count // self.agents.options.steps_per_pass(own.count) + 1
        for first, last in zip([0, *edges], [*edges, len(keys)], strict=True):
            for low, high in chunks(last - first, 4 * network.row_bytes(rows)):
                yield own.first + first + low, own.first + first + high

    def _sequence_key(self, agent: int) -> int:
        """Turns of the sequences if they are equal; a number of the agent's own if not: minibatches differ in rows."""
        if self.agents.network.cell is None:
            return 0
        lengths = sequence_lengths(self.own.rows.place[agent - self.own.first, :, 0])
        return int(lengths[0]) if (lengths == lengths[0]).all() else -1 - agent

    def _learn(self, first: int, last: int, settings: RoundSettings) -> Learned:
        """Make all passes for agents first … last-1 of the learner."""
        agents, options, here = self.agents, self.agents.options, slice(first, last)
        arrays = [array[first - self.own.first : last - self.own.first] for array in self.own.rows]
        rows = Experience(*arrays)  # type: ignore[arg-type]
        sums = {name: np.zeros(last - first) for name in METRICS}
        made = np.zeros(last - first, np.int64)
        for number in range(int(settings.passes[first])):
            for picked in minibatch_rows(rows, options, settings.sample_keys(agents.context, here, number)):
                batch = rows if picked is None else rows.pick(picked)
                if options.normalise_advantages:
                    batch = batch._replace(advantages=normalised(batch.advantages))
                grad, terms = stacked_gradient(agents, settings, batch, first, last)
                terms["grad_norm"] = agents.adam.step(first, last, grad, settings.rates[here], options.grad_clip)
                finite = np.isfinite(terms["grad_norm"].cpu().numpy())
                made += finite
                for name, value in terms.items():
                    sums[name] += np.where(finite, value.cpu().numpy(), 0.0)
        divisor = np.where(made > 0, made, np.nan)
        return Learned({name: values / divisor for name, values in sums.items()}, made)


def stacked_gradient(
    agents: Agents, settings: RoundSettings, batch: Experience, first: int, last: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Gradient of the mean loss over a minibatch of agents first … last-1, and means of its terms.

    How a minibatch is split into microbatches depends on its size alone, never on the threads that share the work: a
    sum over other microbatches would have other bits.
    """
    count, here, weights = batch.actions.shape[1], slice(first, last), agents.weights[first:last]
    bonus = torch.from_numpy(settings.bonuses[here]).to(weights)
    moments = torch.from_numpy(settings.value_moments[here]).to(weights)
    if agents.network.body_columns:
        return _gradient_with_body(agents, batch, here, bonus, moments)

    def microbatch(rows: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
        part = batch.slice(*rows)
        x = agents.inputs.actor(part.stacks, here)
        seen = x if agents.options.critic == "obs" else agents.inputs.critic(part.stacks, part.states, here)
        grad, terms, _ = loss_gradient(agents.network, agents.options, weights, (x, seen), part, count, bonus, moments)
        return grad, terms

    (grad, terms), *others = agents.pool.map(microbatch, split_evenly(count, microbatch_count(count)))
    for other_grad, other_terms in others:
        grad += other_grad
        terms = {name: term + other_terms[name] for name, term in terms.items()}
    return grad, terms


def _gradient_with_body(
    agents: Agents, batch: Experience, here: slice, bonus: Tensor, moments: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """As `stacked_gradient`: actor and critic by hand as ever, and from their inputs on back through the body."""
    network, weights = agents.network, agents.weights[here]
    body = weights[:, : network.body_columns].clone().requires_grad_()
    arrays = network.layout.arrays(torch.cat([body, weights[:, network.body_columns :]], dim=1))
    x = pad_frame_stacks(batch.stacks, network.scale, network.inputs, network.device)
    memory, place = torch.from_numpy(batch.memory).to(x), torch.from_numpy(batch.place[0, :, :1].reshape(-1))
    with torch.enable_grad():
        features = network.sequence_features(arrays, x, memory, place.to(x.device))
    rows, columns = batch.actions.shape[1], agents.options.features
    seen = agents.inputs.critic(features.detach()[:, :rows, :columns].cpu().numpy(), batch.states, here)
    grad, terms, (actor, critic) = loss_gradient(
        network, agents.options, weights, (features.detach(), seen), batch, rows, bonus, moments
    )
    assert actor is not None
    assert critic is not None
    if agents.options.critic != "state":
        actor[:, :, :columns] += critic[:, :, :columns]
    (own,) = torch.autograd.grad(features, body, actor)
    grad[:, : network.body_columns] = own
    return grad, terms
