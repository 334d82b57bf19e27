"""Observations of Gymnasium's spaces as arrays that networks take.

| space | becomes |
| --- | --- |
| Box | itself: shape and dtype stay |
| Discrete, MultiDiscrete | one-hot, float32 |
| MultiBinary | 0 and 1, float32 |
| Tuple, Dict | their parts flattened and put one after another (Dict: by key), float32 |
| Dict with `action_mask` | the rest of it; the mask says which actions are allowed |

A mask may also come as `info["action_mask"]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remuda.core.errors import ConfigError

MASK = "action_mask"
PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class FlatSpace:
    """How one agent's observations become arrays."""

    def __init__(self, space: Any, who: str) -> None:
        self.masked = isinstance(space, spaces.Dict) and MASK in space.spaces
        self._rest: spaces.Space[Any] = space
        self._only: str | None = None  # where nothing but the mask stands beside it
        if self.masked:
            others = {name: part for name, part in space.spaces.items() if name != MASK}
            self._only = next(iter(others)) if len(others) == 1 else None
            self._rest = others[self._only] if self._only else spaces.Dict(others)
        _check(self._rest, who)
        self._whole = isinstance(self._rest, spaces.Box)
        self.shape: tuple[int, ...] = self._rest.shape if self._whole else (spaces.flatdim(self._rest),)  # type: ignore[assignment]
        self.dtype = np.dtype(self._rest.dtype if self._whole else np.float32)
        if self.dtype == np.float64:
            self.dtype = np.dtype(np.float32)
        if not math.prod(self.shape):
            raise ConfigError(f"{who} observes nothing: its observation space is {space}")

    def see(self, obs: Any) -> NDArray[Any]:
        """An observation as an array."""
        if self.masked:
            obs = obs[self._only] if self._only else {name: part for name, part in obs.items() if name != MASK}
        return np.asarray(obs if self._whole else spaces.flatten(self._rest, obs), self.dtype)


def mask_of(obs: Any, info: Mapping[str, Any]) -> Any:
    """The mask that came with an observation, or None."""
    if isinstance(obs, Mapping) and MASK in obs:
        return obs[MASK]
    return info.get(MASK)


def count_actions(space: Any, who: str) -> int:
    """How many actions there are, where they can be counted."""
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"{who} has actions {space}: remuda's learners choose among discrete actions; "
            "wrap the environment so that its action space is Discrete"
        )
    return int(space.n)


def _check(space: Any, who: str) -> None:
    """Refuse what has no fixed size."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            _check(part, who)
    elif not isinstance(space, PLAIN):
        raise ConfigError(
            f"{who} observes {space}: of Gymnasium's spaces Box, Discrete, MultiDiscrete, MultiBinary, Tuple and "
            "Dict can be flattened; wrap the environment so that it shows one of these"
        )
