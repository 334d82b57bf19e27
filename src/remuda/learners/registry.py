"""Learners and scripted players by name."""

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


def learner_options(plan: Plan, name: str) -> Any:
    """The validated options of a learner."""
    return LEARNERS[name].options_type().read(plan.learner_options.get(name, {}), f"learner {name}")
