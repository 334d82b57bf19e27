"""Learns from a round one agent at a time, from its distinct rows, with compiled kernels (`tiles.py`).

It applies to networks without a body and Discrete actions, in fp32 on a CPU. Others learn in `stacked.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remuda.learners import fused
from remuda.learners.distinct import Distinct, distinct_rows, group_rows, words_of
from remuda.learners.job_pool import JobPool
from remuda.learners.ppo.experience import Experience
from remuda.learners.ppo.kernels import SUMS, fill_batch
from remuda.learners.ppo.learning import METRICS, Agents, Learned, RoundSettings
from remuda.learners.ppo.minibatches import minibatch_rows
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.rounds import Round
from remuda.learners.ppo.tiles import Batch, TileGradient, TileLayout
from remuda.learners.row_inputs import RowInputs, row_inputs


def can_be_tiled(network: PPONetwork) -> bool:
    """Whether the kernels have everything that this network needs."""
    plain = network.body_columns == 0 and network.head is None
    return plain and network.precision == "fp32" and network.device.type == "cpu"


class TiledLearning:
    """Learns from one round, agents one by one; threads share agents, or the tiles of a single one."""

    def __init__(self, agents: Agents, own: Round) -> None:
        self.own = own
        self.learners = [AgentLearning(agents, own, place) for place in range(own.last - own.first)]
        self.pool = agents.pool

    def values(self) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
        """The critics' plain outputs for all rows, (agents, rows), and after the end of each agent's data."""
        found = self.pool.map(lambda learner: learner.values(), self.learners)
        return np.stack([values for values, _ in found]), [after for _, after in found]

    def learn(self, settings: RoundSettings) -> Learned:
        """Make all passes."""
        found = self.pool.map(lambda learner: learner.learn(settings), self.learners)
        means = {name: np.array([terms[name] for terms, _ in found]) for name in METRICS}
        return Learned(means, np.array([made for _, made in found], np.int64))


class AgentLearning:
    """Learns from the rows of one agent, with memory of its own that its gradients reuse."""

    def __init__(self, agents: Agents, own: Round, place: int) -> None:
        self.agents = agents
        self.own = own
        self.place = place  # among the agents of the round
        self.agent = own.first + place  # among the agents of the learner
        self.pool = agents.pool if own.last - own.first == 1 else JobPool(1)  # for its tiles
        self.layout = TileLayout(agents.network)
        self.weights = self.layout.own_copy(agents.weights[self.agent])
        self._free: list[TileGradient] = []

    def values(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The critic's plain outputs for all rows, (rows,), and after the end of the agent's data."""
        rows, place = self.own.rows, self.place
        self.distinct = distinct_rows(words_of(self.own.padded_stacks[place], rows.states[place], rows.mask[place]))
        self.allowed = rows.mask[place][self.distinct.firsts]
        self.inputs = self._inputs(self.own.padded_stacks[place], rows.states[place], self.distinct)
        self.group = np.full(len(self.distinct.firsts), -1, np.int32)  # space for `group_rows`
        tile = self._tile(self.inputs)
        values = tile.values(len(self.distinct.firsts))[self.distinct.numbers]
        self._free.append(tile)
        return values, self._values_after()

    def _values_after(self) -> NDArray[np.float32]:
        after = self.own.after[self.place]
        count, width = after.stacks.shape
        stacks = np.zeros((count, self.agents.network.inputs), after.stacks.dtype)
        stacks[:, :width] = after.stacks
        numbers = np.arange(count, dtype=np.int32)
        return self._tile(self._inputs(stacks, after.states, Distinct(numbers, numbers))).values(count)

    def _inputs(self, stacks: NDArray[Any], states: NDArray[Any], distinct: Distinct) -> tuple[RowInputs, RowInputs]:
        """Inputs of actor and critic from padded stacks and states, (rows, …) each."""
        agents, scale = self.agents, self.agents.network.scale
        moments: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]] | None] = {"actor": None, "critic": None}
        if agents.options.normalise_observations:
            for name in moments:
                mean, std = agents.inputs.moments(name)
                moments[name] = mean[self.agent, 0], std[self.agent, 0]
        actor = row_inputs(stacks, distinct.firsts, scale, moments["actor"])
        if agents.options.critic == "obs":
            return actor, actor
        seen = np.zeros((len(stacks), agents.network.critic_inputs), np.float32)
        columns = 0
        if agents.options.critic == "both":
            columns = agents.network.frames * agents.network.obs_size
            seen[:, :columns] = stacks[:, :columns] * np.float32(scale)
        seen[:, columns : columns + states.shape[1]] = states
        return actor, row_inputs(seen, distinct.firsts, 1.0, moments["critic"])

    def _tile(self, inputs: tuple[RowInputs, RowInputs]) -> TileGradient:
        """Memory for a tile, with the current weights."""
        tile = self._free.pop() if self._free else None
        if tile is None:
            rows = max(len(self.distinct.firsts), len(self.own.after[self.place].stacks))
            tile = TileGradient(self.agents.network, self.layout, self.weights, rows)
        tile.load(*inputs)
        return tile

    def learn(self, settings: RoundSettings) -> tuple[dict[str, float], int]:
        """Make all passes; returns means of the metrics, and the number of gradient steps."""
        agents, options, agent = self.agents, self.agents.options, self.agent
        moments = tuple(self.layout.own_copy(tensor[agent]) for tensor in (agents.adam.mean, agents.adam.square))
        moment_arrays, count = tuple(tensor.numpy() for tensor in moments), float(agents.adam.counts[agent])
        weights, sums, made = self.weights.numpy(), dict.fromkeys(METRICS, 0.0), 0
        for batch in self._batches(settings):
            grad, terms = self.gradient(batch, float(settings.bonuses[agent]))
            norm = fused.adam_step(
                weights, grad.numpy(), moment_arrays, count + 1.0, float(settings.rates[agent]),
                options.beta2, options.grad_clip,
            )  # fmt: skip
            if np.isfinite(norm):
                made, count = made + 1, count + 1.0
                for name, value in {**terms, "grad_norm": float(norm)}.items():
                    sums[name] += value
        self._store(moments, count)
        return {name: value / made if made else np.nan for name, value in sums.items()}, made

    def _batches(self, settings: RoundSettings) -> Iterator[Batch]:
        """The minibatches of all passes."""
        agents, one = self.agents, slice(self.place, self.place + 1)
        rows = Experience(*(array[one] for array in self.own.rows))  # type: ignore[arg-type]
        everything, whole = np.arange(rows.actions.shape[1]), None
        moments = settings.value_moments[self.agent]
        for number in range(int(settings.passes[self.agent])):
            keys = settings.sample_keys(agents.context, slice(self.agent, self.agent + 1), number)
            for picked in minibatch_rows(rows, agents.options, keys):
                if picked is not None:
                    yield self.batch(rows, moments, picked[0])
                else:  # the same in every pass
                    whole = whole or self.batch(rows, moments, everything)
                    yield whole

    def batch(self, rows: Experience, moments: NDArray[np.float64], picked: NDArray[np.int64]) -> Batch:
        """A minibatch of the rows `picked`, (rows,); `moments` are mean and standard deviation of the returns."""
        ids, starts, order = np.empty((3, len(picked) + 1), np.int32)
        groups = group_rows(self.distinct.numbers, picked, self.group, ids, starts, order)
        actions, numbers = np.empty(len(picked), np.int64), np.empty((3, len(picked)), np.float32)
        sources = (rows.actions[0], rows.log_probs[0], rows.advantages[0], rows.returns[0])
        columns = (actions, numbers[0], numbers[1], numbers[2])
        fill_batch(order[:-1], sources, moments, self.agents.options.normalise_advantages, columns)
        return Batch(ids[:groups], starts[: groups + 1], *columns, self.allowed)

    def gradient(self, batch: Batch, bonus: float) -> tuple[Tensor, dict[str, float]]:
        """Gradient of the mean loss over a minibatch, (columns,), and means of its terms; valid until the next call."""

        def compute(groups: tuple[int, int]) -> tuple[Tensor, NDArray[np.float64]]:
            tile = self._tile(self.inputs)
            tile.compute(batch, groups, bonus)
            found = (tile.grad.clone(), tile.sums.copy()) if len(tiles) > 1 else (tile.grad, tile.sums)
            self._free.append(tile)
            return found

        tiles = batch.tiles()
        (grad, sums), *others = self.pool.map(compute, tiles)
        for other_grad, other_sums in others:
            grad += other_grad
            sums += other_sums
        return grad, {name: float(sums[place]) / len(batch.actions) for name, place in SUMS.items()}

    def _store(self, moments: tuple[Tensor, ...], count: float) -> None:
        """Copy the agent's own memory back to the herd's."""
        adam, agent = self.agents.adam, self.agent
        self.layout.copy_back(self.weights, self.agents.weights[agent])
        for own, herd in zip(moments, (adam.mean, adam.square), strict=True):
            self.layout.copy_back(own, herd[agent])
        adam.counts[agent] = count
