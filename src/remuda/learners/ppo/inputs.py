"""What actors and critics are given: frame stacks, privileged states or features, scaled and standardised."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.learners.ppo.moments import RunningMoments
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.stack import pad_frame_stacks

MIN_STD = 1e-3
"""An observation with a smaller standard deviation is centred but not divided by it."""


class NetworkInputs:
    """Inputs of neighbouring agents' networks, with running moments of their observations and states."""

    def __init__(self, network: PPONetwork, agents: int) -> None:
        self.network = network
        self.options = network.options
        self.observed = RunningMoments(agents, network.obs_size)
        self.states = RunningMoments(agents, network.state_size)

    def observe(self, agent: int, stacks: NDArray[Any], states: NDArray[Any]) -> None:
        """Include the newest frames of an agent's rows, (rows, frames * obs), and the states, in the moments."""
        newest = stacks[:, -self.network.obs_size :].astype(np.float64) * self.network.scale
        self.observed.add(agent, newest)
        self.states.add(agent, states.astype(np.float64))

    def moments(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
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

    def actor(self, stacks: NDArray[Any], agents: slice) -> Tensor:
        """Input of some actors: stacks (agents, rows, frames * obs) → (agents, padded rows, inputs)."""
        x = pad_frame_stacks(stacks, self.network.scale, self.network.inputs, self.network.device)
        return self._standardised(x, "actor", agents)

    def critic(self, stacks: NDArray[Any], states: NDArray[Any], agents: slice) -> Tensor:
        """Input of some critics: stacks or features, and states (agents, rows, …) → (agents, padded rows, inputs)."""
        network, columns = self.network, stacks.shape[2]
        if self.options.critic == "obs" and not network.body_columns:
            return self.actor(stacks, agents)
        if self.options.critic == "state":
            x = pad_frame_stacks(states, 1.0, network.critic_inputs, network.device)
        else:
            scale = 1.0 if network.body_columns else network.scale
            x = pad_frame_stacks(stacks, scale, network.critic_inputs, network.device)
            if not network.state_size:
                return x
            state = pad_frame_stacks(states, 1.0, states.shape[2], network.device)
            x[:, :, columns : columns + states.shape[2]] = state
        return self._standardised(x, "critic", agents)

    def _standardised(self, x: Tensor, name: str, agents: slice) -> Tensor:
        """Standardise inputs of actors or critics in place, if the options ask for it."""
        if self.options.normalise_observations:
            mean, std = (torch.from_numpy(a[agents]).to(x) for a in self.moments(name))
            x = x.sub_(mean).div_(std)
        return x

    def fold_into(self, arrays: dict[str, Tensor]) -> None:
        """Change first layers in place so that they read plain observations instead of standardised ones."""
        for name in ("actor", "critic"):
            weight = arrays[f"{name}.0.weight"]
            mean, std = (torch.from_numpy(a).to(weight) for a in self.moments(name))
            weight.div_(std)
            arrays[f"{name}.0.bias"].sub_((weight * mean).sum(dim=2))
