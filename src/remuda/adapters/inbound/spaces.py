"""Observations from Gymnasium spaces as flat arrays for networks.

| space | becomes |
| --- | --- |
| Box | unchanged: same shape and dtype (float64 becomes float32) |
| Discrete, MultiDiscrete | one-hot, float32 |
| MultiBinary | 0 and 1, float32 |
| Tuple, Dict | its parts flattened and concatenated (Dict: by key), float32 |
| Dict with `action_mask` | the other entries; the mask says which actions are allowed |

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
FLATTENABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class FlatSpace:
    """Converts one agent's observations into arrays."""

    def __init__(self, space: Any, who: str) -> None:
        self.masked = isinstance(space, spaces.Dict) and MASK in space.spaces
        self._rest: spaces.Space[Any] = space
        self._only: str | None = None  # the only entry apart from the mask, if there is one
        if self.masked:
            others = {name: part for name, part in space.spaces.items() if name != MASK}
            self._only = next(iter(others)) if len(others) == 1 else None
            self._rest = others[self._only] if self._only else spaces.Dict(others)
        _check(self._rest, who)
        self._is_box = isinstance(self._rest, spaces.Box)
        self.shape: tuple[int, ...] = self._rest.shape if self._is_box else (spaces.flatdim(self._rest),)  # type: ignore[assignment]
        self.dtype = np.dtype(self._rest.dtype if self._is_box else np.float32)
        if self.dtype == np.float64:
            self.dtype = np.dtype(np.float32)
        if not math.prod(self.shape):
            raise ConfigError(f"{who} observes nothing: its observation space is {space}")

    def as_array(self, obs: Any) -> NDArray[Any]:
        """An observation as an array."""
        if self.masked:
            obs = obs[self._only] if self._only else {name: part for name, part in obs.items() if name != MASK}
        return np.asarray(obs if self._is_box else spaces.flatten(self._rest, obs), self.dtype)


def mask_of(obs: Any, info: Mapping[str, Any]) -> Any:
    """The mask that came with an observation, or None."""
    if isinstance(obs, Mapping) and MASK in obs:
        return obs[MASK]
    return info.get(MASK)


def count_actions(space: Any, who: str) -> int:
    """How many actions a discrete space has."""
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"{who} has actions {space}: remuda's learners need discrete actions; "
            "wrap the environment so that its action space is Discrete"
        )
    return int(space.n)


def _check(space: Any, who: str) -> None:
    """Refuse spaces that have no fixed size."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            _check(part, who)
    elif not isinstance(space, FLATTENABLE):
        raise ConfigError(
            f"{who} observes {space}: Box, Discrete, MultiDiscrete, MultiBinary, Tuple and Dict can be flattened; "
            "wrap the environment so that it has one of these spaces"
        )
