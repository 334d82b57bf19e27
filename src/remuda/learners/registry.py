"""Learners by name, and players that need no training."""

from __future__ import annotations

from typing import Any

from remuda.core.learner import Learner
from remuda.core.plan import Plan
from remuda.core.policy import Policy, RandomPolicy
from remuda.learners.iqn.learner import IQN
from remuda.learners.ppo.learner import PPO

LEARNERS: dict[str, type[Learner]] = {"iqn": IQN, "ppo": PPO}
PLAYERS: dict[str, type[Policy]] = {"random": RandomPolicy}
FROZEN = "frozen"
"""Prefix of a player that is a trained agent of another run: frozen:RUN/agent."""


def learner_options(plan: Plan, name: str) -> Any:
    """The options that a plan gives a learner, validated."""
    return LEARNERS[name].options_type().read(plan.learner_options.get(name, {}), f"learner {name}")
