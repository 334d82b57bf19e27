"""How PPO acts: it samples from the actor and remembers how likely the action was."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.policy import PolicyInput, PolicyOutput, explore
from remuda.core.rng import uniform
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.stack import LEAST_ROWS, StackedPolicy, chunks, stack_frames

LOG_PROB = "log_prob"
LEAST_PROB = np.float32(1e-38)  # of which the logarithm is still a number


class PPOPolicy(StackedPolicy):
    """Samples from the actor and remembers how likely the action was; the critic is asked when there is to learn."""

    extras = (LOG_PROB,)

    def __init__(self, group: Group, agents: int, options: PPOOptions, precision: str, device: str) -> None:
        self.network = PPONetwork(group, options, precision, device)
        super().__init__(group, agents, self.network.layout, 0, device)
        self.frames = options.frames

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Sample, or take the likeliest where exploration is given."""
        worlds, agents = inputs.keys.shape
        probs = np.empty((worlds, agents, self.group.actions), np.float32)
        for low, high in chunks(agents, self.network.row_bytes(max(worlds, LEAST_ROWS))):
            self._think(inputs, low, high, first, probs)
        if inputs.exploration is None:
            actions = np.empty((worlds, agents), np.int64)
            _sample(probs, inputs.keys, actions)
        else:
            chance = np.full(agents, inputs.exploration)
            actions = explore(probs.argmax(axis=2), chance, inputs, self.group.actions)
        log_probs = np.empty((worlds, agents), np.float32)
        _look_up(probs, actions, log_probs)
        return PolicyOutput(actions, {LOG_PROB: log_probs})

    @torch.no_grad()
    def _think(self, inputs: PolicyInput, low: int, high: int, first: int, probs: NDArray[Any]) -> None:
        """Fill in what the actors of agents low … high-1 say."""
        network, worlds = self.network, len(inputs.keys)
        x = stack_frames(inputs.obs[:, :, low:high], inputs.ages[:, low:high], network.scale, network.inputs)
        x = x.to(network.device)
        mask = None
        if inputs.mask is not None:
            mask = torch.from_numpy(inputs.mask[:, low:high]).transpose(0, 1).to(network.device)
        logits = network.logits(self.slice(first + low, first + high), x, mask)
        own = logits.softmax(dim=2)[:, :worlds, : network.actions]
        probs[:, low:high] = own.transpose(0, 1).cpu().numpy()


@kernel
def _sample(probs: Any, keys: Any, out: Any) -> None:
    """One action per row, by its probabilities (worlds, agents, actions)."""
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            total = 0.0
            for i in range(probs.shape[2]):
                total += probs[w, a, i]
            left = uniform(keys[w, a], 0) * total
            action = 0
            for i in range(probs.shape[2]):
                if probs[w, a, i] > 0.0:
                    action = i
                    left -= probs[w, a, i]
                    if left < 0.0:
                        break
            out[w, a] = action


@kernel
def _look_up(probs: Any, actions: Any, out: Any) -> None:
    """Log-probability of the actions taken, (worlds, agents)."""
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = np.log(max(probs[w, a, actions[w, a]], LEAST_PROB))
