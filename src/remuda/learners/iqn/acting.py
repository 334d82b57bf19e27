"""Greedy actions with compiled kernels: a few worlds of one agent at a time.

The readable form is `IQNPolicy._greedy`.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.core.policy import PolicyInput
from remuda.learners.iqn.flat import FlatLayout, zeros
from remuda.learners.iqn.kernels import (
    COSINES,
    NO_MASK,
    ROWS,
    Memory,
    block_features,
    choose,
    fill_advantages,
    greedy_means,
    prepare_greedy,
    read_block,
)
from remuda.learners.iqn.network import IQNNetwork
from remuda.learners.products import SPARE


class CompiledActing:
    """What acting needs of all agents, and memory for each thread that acts."""

    def __init__(self, network: IQNNetwork, agents: int) -> None:
        self.network = network
        self.layout = FlatLayout(network, acting=True)
        sizes = self.layout.sizes
        self.phi = zeros(agents * (sizes.width + SPARE) * sizes.acting_lanes).reshape(agents, -1)
        self.head_t = zeros(agents * sizes.width * sizes.columns).reshape(agents, -1)
        self._memory: dict[int, tuple[Memory, NDArray[Any]]] = {}  # by thread

    def load(self, weights: NDArray[np.float32]) -> None:
        """Use these weights, (agents, columns), from now on; they are not copied."""
        self.weights, layout, taus = weights, self.layout, self.network.acting_taus.numpy()
        identity, cosines = np.arange(layout.sizes.width + COSINES + SPARE), zeros(COSINES * layout.sizes.acting_lanes)
        for row, phi, head_t in zip(weights, self.phi, self.head_t, strict=True):
            prepare_greedy(row, layout.places, layout.sizes, taus, phi, head_t, identity, cosines)

    def greedy(self, inputs: PolicyInput, first: int) -> NDArray[np.int64]:
        """The best actions of agents from `first` on, (worlds, agents)."""
        worlds, agents = inputs.keys.shape
        if get_ident() not in self._memory:
            stack = np.zeros((ROWS, self.layout.sizes.inputs), inputs.obs.dtype)
            self._memory[get_ident()] = self.layout.memory(), stack
        memory, stack = self._memory[get_ident()]
        greedy = np.empty((worlds, agents), np.int64)
        here = slice(first, first + agents)
        act_greedily(
            inputs.obs.reshape(len(inputs.obs), worlds, agents, -1), inputs.ages,
            NO_MASK if inputs.mask is None else inputs.mask, (self.weights[here], self.phi[here], self.head_t[here]),
            np.float32(self.network.scale), self.layout.places, self.layout.sizes, memory, stack, greedy,
        )  # fmt: skip
        return greedy


@kernel(allocates=False)
def act_greedily(
    frames: Any, ages: Any, mask: Any, nets: Any, factor: Any, at: Any, sizes: Any, memory: Any, stack: Any, out: Any
) -> None:
    """The best actions, out (worlds, agents), for frames (frames, worlds, agents, obs); `mask` may have no worlds."""
    weights, phi, head_t = nets
    for agent in range(out.shape[1]):
        for first in range(0, len(out), ROWS):
            count = min(ROWS, len(out) - first)
            for i in range(count):
                stack_row(frames, ages[first + i, agent], first + i, agent, stack[i])
            found = read_block(stack, 0, count, factor, memory)
            features = memory.features[0]
            block_features(count, found, weights[agent], at, sizes, memory, features, 0)
            greedy_means(features, count, phi[agent], weights[agent], at, sizes, memory)
            fill_advantages(count, head_t[agent], weights[agent], at, sizes, memory)
            choose(count, sizes, mask[first : first + count, agent], memory.advantages, memory.best)
            for i in range(count):
                out[first + i, agent] = memory.best[i]


@kernel(allocates=False)
def stack_row(frames: Any, age: int, world: int, agent: int, out: Any) -> None:
    """The frames that an agent of this age saw itself, side by side, oldest first; earlier ones are zero."""
    size, oldest = frames.shape[3], max(0, len(frames) - 1 - age)
    out[: oldest * size] = 0
    for f in range(oldest, len(frames)):
        own = frames[f, world, agent]
        for i in range(size):
            out[f * size + i] = own[i]
