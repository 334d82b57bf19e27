"""A2C, advantage actor-critic (Mnih et al. 2016), written for one agent; remuda makes a herd of it.

remuda train game=gymnasium:CartPole-v1 learner=a2c:A2C
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field
from torch import Tensor, nn

import remuda


class A2COptions(remuda.OnPolicyOptions):
    """What a run may change, besides lr, gamma, gae_lambda and the other options of on-policy learners."""

    hidden: int = Field(64, ge=1, description="units in the hidden layer of actor and critic")
    entropy: remuda.PerAgent = Field(0.01, description="weight of the entropy bonus; per agent")
    value_weight: float = Field(0.5, ge=0, description="weight of the critic's loss")


class ActorCritic(nn.Module):
    """Two networks side by side: logits of the actions, and the return expected from here on."""

    def __init__(self, inputs: int, hidden: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, actions))
        self.critic = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (rows, actions) and values (rows,)."""
        return self.actor(obs), self.critic(obs).squeeze(1)


class A2C(remuda.OnPolicyLearner):
    """The policy gradient, weighted by advantages, with a critic and an entropy bonus."""

    options_class = A2COptions
    metrics = (*remuda.OnPolicyLearner.metrics, "entropy")

    @staticmethod
    def network(group: remuda.Group, options: Any) -> nn.Module:
        """Actor and critic; their input is (rows, frames, *obs)."""
        return ActorCritic(options.frames * math.prod(group.obs_shape), options.hidden, group.actions)

    @staticmethod
    def loss(net: nn.Module, batch: remuda.RolloutBatch, options: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy gradient, critic and entropy; the entropy is reported, too."""
        logits, values = net(batch.obs)
        log_probs = logits.masked_fill(~batch.mask, -1e9).log_softmax(dim=1)
        chosen = log_probs.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        gradient = -(chosen * batch.advantages).mean()
        critic = (values - batch.returns).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
        return gradient + options.value_weight * critic - options.entropy * entropy, {"entropy": entropy}
