"""How many observations a replay buffer keeps."""

from __future__ import annotations

from typing import Any

from remuda.core.errors import ConfigError
from remuda.core.learner import LearnerContext

MIN_REPLAY_SIZE = 16_384
"""Smallest default of `replay_size`."""


def replay_capacity(context: LearnerContext, options: Any) -> int:
    """Observations to keep per agent. Raises if learning could never start with so few.

    `options` have `frames`, `replay_size`, `batch_size` and `learning_starts`.
    """
    segment = context.turns + options.frames
    automatic = max(MIN_REPLAY_SIZE, 4 * context.round_episodes * (context.turns + 1), segment)
    capacity = automatic if options.replay_size is None else int(options.replay_size)
    if capacity < segment:
        raise ConfigError(
            f"replay_size={capacity} cannot hold one episode of {context.turns} turns: give at least {segment}"
        )
    starts = options.learning_starts or options.batch_size
    holds = capacity // (context.turns + 1) * context.turns
    if starts > holds:
        name = "learning_starts" if options.learning_starts else "batch_size"
        raise ConfigError(
            f"{name}={starts} is more than replay_size={capacity} holds ({holds} transitions of whole episodes): "
            f"lower {name} or raise replay_size"
        )
    return capacity
