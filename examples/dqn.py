"""DQN (Mnih et al. 2015) with double Q-learning, written for one agent; remuda makes a herd of it.

remuda train gymnasium:CartPole-v1 learner=dqn:DQN worlds=2 total_episodes=300 updates_per_episode=50 n_step=3 lr=0.002
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

import remuda


class DQNOptions(remuda.OffPolicyOptions):
    """What a run may change, besides batch_size, gamma, epsilon and the other options of off-policy learners."""

    hidden: int = Field(64, ge=1, description="units in each of the two hidden layers")


class DQN(remuda.OffPolicyLearner):
    """A network that predicts the return after each action, trained towards reward plus discounted next value."""

    options_class = DQNOptions

    @staticmethod
    def network(group: remuda.Group, options: Any) -> nn.Module:
        """Observations (rows, frames, *obs) in, one value per action out."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(options.frames * math.prod(group.obs_shape), options.hidden),
            nn.ReLU(),
            nn.Linear(options.hidden, options.hidden),
            nn.ReLU(),
            nn.Linear(options.hidden, group.actions),
        )

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: remuda.ReplayBatch, options: Any) -> Tensor:
        """The Huber loss of the values of the actions that were taken."""
        with torch.no_grad():
            best = net(batch.next_obs).masked_fill(~batch.next_mask, -torch.inf).argmax(dim=1, keepdim=True)
            next_values = target(batch.next_obs).gather(1, best).squeeze(1)
        values = net(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        return F.smooth_l1_loss(values, batch.rewards + batch.discounts * next_values)
