"""The policy of IQN: greedy on the mean over fixed quantiles, ε-greedy while it trains."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.game import Group
from remuda.core.policy import PolicyInput, PolicyOutput, explore
from remuda.learners.iqn.acting import CompiledActing
from remuda.learners.iqn.flat import can_be_compiled
from remuda.learners.iqn.network import IQNNetwork
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.recurrent import memory_rows
from remuda.learners.replay import MEMORY
from remuda.learners.stack import StackedPolicy, chunks, stack_frames


class IQNPolicy(StackedPolicy):
    """ε-greedy on the mean over fixed quantiles, without noise. The last column of a row is ε."""

    def __init__(self, group: Group, agents: int, options: IQNOptions, precision: str, device: str) -> None:
        self.network = IQNNetwork(group, options, precision, device)
        super().__init__(group, agents, self.network.layout, 1, device)
        self.frames = options.frames
        self.compiled = can_be_compiled(self.network)
        """Whether compiled kernels choose; tests and benchmarks set it to False for the readable form."""
        self._acting: CompiledActing | None = None  # of the rows that were loaded, once it is asked
        self.memory_size = self.network.memory_size
        if self.memory_size:
            self.extras = (MEMORY,)
            self.extra_shapes = {MEMORY: (self.memory_size,)}

    @torch.no_grad()
    def prepare(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the embedded quantiles."""
        return self.network.for_acting(arrays)

    def load(self, rows: NDArray[np.float32], versions: int | NDArray[np.int64]) -> None:
        """Use published rows from now on."""
        super().load(rows, versions)
        if self.compiled:
            self._acting = self._acting or CompiledActing(self.network, self.agents)
            self._acting.load(self._weights.numpy())

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose ε-greedily, with the row's ε unless `inputs.exploration` is given."""
        memory = np.empty((*inputs.keys.shape, self.memory_size), np.float32) if self.memory_size else None
        if self.compiled and self._acting is not None:
            greedy = self._acting.greedy(inputs, first)
        else:
            greedy = self._greedy(inputs, first, memory)
        if inputs.exploration is None:
            epsilon = self._rows[first:last, -1].astype(np.float64)
        else:
            epsilon = np.full(last - first, inputs.exploration)
        actions = explore(greedy, epsilon, inputs, self.group.actions)
        if inputs.memory is None or memory is None:
            return PolicyOutput(actions)
        return PolicyOutput(actions, {MEMORY: inputs.memory.copy()}, memory)

    def _greedy(self, inputs: PolicyInput, first: int, memory: NDArray[np.float32] | None) -> NDArray[np.int64]:
        """The best actions of agents from `first` on, (worlds, agents); writes the next recurrent states."""
        worlds, agents = inputs.keys.shape
        greedy = np.empty((worlds, agents), np.int64)
        for low, high in chunks(agents, self.network.acting_bytes(worlds)):
            advantages = self._advantages(inputs, low, high, first, memory)
            if inputs.mask is not None:
                advantages = np.where(inputs.mask[:, low:high], advantages, -np.inf)
            greedy[:, low:high] = advantages.argmax(axis=-1)
        return greedy

    @torch.no_grad()
    def _advantages(
        self, inputs: PolicyInput, low: int, high: int, first: int, memory: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """Mean advantage of every action, (worlds, high-low, actions); writes the next recurrent states to `memory`."""
        net, arrays = self.network, self.agent_arrays(first + low, first + high)
        x = stack_frames(inputs.obs[:, :, low:high], inputs.ages[:, low:high], net.scale, net.inputs)
        x = x.to(net.device)
        if inputs.memory is None or memory is None:
            features = net.features(arrays, x)
        else:
            before = memory_rows(inputs.memory[:, low:high]).to(net.device)
            begun = torch.ones((*x.shape[:2], 1), dtype=torch.bool, device=net.device)
            sequences, after = net.unroll(arrays, x.unsqueeze(2), begun, before)
            features = sequences.squeeze(2)
            memory[:, low:high] = after[:, : len(memory)].transpose(0, 1).cpu().numpy()
        advantages = net.mean_advantages(arrays, features)
        result: NDArray[np.float32] = advantages[:, : inputs.keys.shape[0]].transpose(0, 1).cpu().numpy()
        return result
