"""The games of the soak test: one of ours and one of Gymnasium's, both with the faults of the chaos tests.

While `SOAK_CLOCK` is set, the clock of every process that imports this jumps by an hour now and then, to and fro.
"""

from __future__ import annotations

import os
import time
from typing import Any

from chaos import CHAOTIC  # of tests/promises/faults; importing it installs the hook

__all__ = ["CHAOTIC", "cartpole"]
JUMP_S, EVERY_S = 3600.0, 7

if "SOAK_CLOCK" in os.environ:
    _real = time.time
    time.time = lambda: _real() + JUMP_S * (int(_real() / EVERY_S) % 3 - 1)


def cartpole() -> Any:
    """CartPole, as Gymnasium has it."""
    import gymnasium

    return gymnasium.make("CartPole-v1", disable_env_checker=True)
