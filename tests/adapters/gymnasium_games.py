"""Environments of Gymnasium that never end, or keep to an older contract."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Endless(gymnasium.Env[Any, Any]):
    """Never ends, and has an argument of each kind."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, push: float = 0.2, tries: Any = 3, mode: str | None = None, sizes: list[int] | None = None
    ) -> None:
        self.given = (push, tries, mode, sizes)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return int(self.np_random.integers(2)), {}

    def step(self, action: Any) -> Any:
        return int(self.np_random.integers(2)), 0.0, False, False, {}


class ResetsToObservation(Endless):
    """Returns from reset what Gym did before it returned infos."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class StepsToFour(Endless):
    """Returns from step what Gym did before it told an end from a cut."""

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, {}


class Unseeded(Endless):
    """Ignores the seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.np_random = np.random.default_rng()
        return 0, {}
