"""The formulas of `rewards`, compiled."""

from __future__ import annotations

import math
from typing import Any

from remuda.core.kernels import kernel


@kernel
def transform(rewards: Any, compared: Any, rules: Any, out: Any) -> None:
    """Transform the rewards of a turn, (worlds, agents). Scalar code: the bits must not depend on how many worlds."""
    worlds, agents = rewards.shape
    for w in range(worlds):
        total = 0.0
        for i in range(agents):
            total += rewards[w, i]
            compared[w, i] = rules.inequity_decay[i] * compared[w, i] + rewards[w, i]
        for i in range(agents):
            own = rewards[w, i]
            others = (total - own) / (agents - 1) if agents > 1 else 0.0
            mixed = rules.selfishness[i] * own + (1 - rules.selfishness[i]) * others
            received = (1 - rules.team[i]) * mixed + rules.team[i] * total
            if rules.svo_weight[i] != 0:
                angle = math.atan2(others, own)
                received -= rules.svo_weight[i] * abs(math.radians(rules.svo_angle[i]) - angle)
            more, less = 0.0, 0.0
            for j in range(agents):
                more += max(compared[w, j] - compared[w, i], 0.0)
                less += max(compared[w, i] - compared[w, j], 0.0)
            if agents > 1:
                received -= (rules.inequity_alpha[i] * more + rules.inequity_beta[i] * less) / (agents - 1)
            out[w, i] = received
