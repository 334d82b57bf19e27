"""How IQN acts: greedy on the mean over fixed quantiles, with random actions while it trains."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.game import Group
from remuda.core.policy import PolicyInput, PolicyOutput, explore
from remuda.learners.iqn.network import IQNNetwork
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.stack import StackedPolicy, chunks, stack_frames


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

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Greedy on the network, with a random action now and then."""
        worlds = inputs.keys.shape[0]
        greedy = np.empty((worlds, last - first), np.int64)
        width = self.network.acting_bytes(worlds)
        for low, high in chunks(last - first, width):
            q = self._values(inputs, low, high, first)
            if inputs.mask is not None:
                q = np.where(inputs.mask[:, low:high], q, -np.inf)
            greedy[:, low:high] = q.argmax(axis=-1)
        if inputs.exploration is None:
            chance = self._rows[first:last, -1].astype(np.float64)
        else:
            chance = np.full(last - first, inputs.exploration)
        return PolicyOutput(explore(greedy, chance, inputs, self.group.actions))

    @torch.no_grad()
    def _values(self, inputs: PolicyInput, low: int, high: int, first: int) -> NDArray[np.float32]:
        """How good every action looks, (worlds, high-low, actions)."""
        net = self.network
        x = stack_frames(inputs.obs[:, :, low:high], inputs.ages[:, low:high], net.scale, net.inputs)
        liked = net.preferences(self.slice(first + low, first + high), x.to(net.device))
        values: NDArray[np.float32] = liked[:, : inputs.keys.shape[0]].transpose(0, 1).cpu().numpy()
        return values
