"""Reward transforms: what reaches an agent, made from the rewards that the game pays to all agents in a turn.

They are the option `reward` of any game, a mapping, e.g. `reward.team=1`. Each value is one for all agents, or a list
with one per agent of the herd. Learners and returns see the transformed reward. The game's metrics do not change,
and the metric `game_return` is the return that the game itself pays.

With r the rewards of a turn and N agents, agent i receives

    u_i = (1 - team) (s r_i + (1 - s) o_i) + team sum(r)                  s: selfishness, o_i: mean reward of the others
          - svo_weight |svo_angle - atan2(o_i, r_i)|                      social value orientation, McKee et al. 2020
          - inequity_alpha / (N - 1) sum_j max(e_j - e_i, 0)              inequity aversion, Hughes et al. 2018:
          - inequity_beta / (N - 1) sum_j max(e_i - e_j, 0)               e_i <- inequity_decay e_i + r_i

`inequity_alpha` is for disadvantageous inequity (others have more), `inequity_beta` for advantageous inequity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.options import Options

REWARD = "reward"
"""The option of any game that has the transforms."""
GAME_RETURN = "game_return"
PerAgentValue = float | list[float]


class RewardOptions(Options):
    """The transforms of `reward`; without any, agents receive what the game pays."""

    team: PerAgentValue = Field(
        0.0, description="share of the team's reward, the sum over all agents; 1: common reward"
    )
    selfishness: PerAgentValue = Field(1.0, description="weight of the own reward; the rest: mean of the others'")
    svo_weight: PerAgentValue = Field(0.0, description="social value orientation: cost per radian off the angle")
    svo_angle: PerAgentValue = Field(45.0, description="social value orientation, degrees: 0 selfish, 90 for others")
    inequity_alpha: PerAgentValue = Field(0.0, description="aversion to having less than others; published: 5")
    inequity_beta: PerAgentValue = Field(0.0, description="aversion to having more than others; published: 0.05")
    inequity_decay: PerAgentValue = Field(0.99 * 0.975, description="what remains of past rewards in a comparison")

    def check(self) -> None:
        """Raise if a share is not a finite number from 0 to 1."""
        for name in ("team", "selfishness", "inequity_decay"):
            if not all(0 <= value <= 1 for value in np.atleast_1d(getattr(self, name)).tolist()):
                raise ConfigError(f"reward.{name}={getattr(self, name)} should be from 0 to 1")

    def per_agent(self, agents: int) -> RewardRules:
        """Every value for each agent."""
        columns = []
        for name in RewardRules._fields:
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != agents:
                raise ConfigError(
                    f"reward.{name} has {len(values)} values: give one, or one for each of {agents} agents"
                )
            columns.append(np.full(agents, values, np.float64))
        return RewardRules(*columns)


class RewardRules(NamedTuple):
    """The options per agent, each (agents,)."""

    team: NDArray[np.float64]
    selfishness: NDArray[np.float64]
    svo_weight: NDArray[np.float64]
    svo_angle: NDArray[np.float64]
    inequity_alpha: NDArray[np.float64]
    inequity_beta: NDArray[np.float64]
    inequity_decay: NDArray[np.float64]
