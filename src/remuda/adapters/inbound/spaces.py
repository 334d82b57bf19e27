"""Observations from Gymnasium spaces as flat arrays for networks.

| space | becomes |
| --- | --- |
| Box | unchanged: same shape and dtype (floats become float32); other shapes and values are errors |
| Discrete, MultiDiscrete | one-hot, float32 |
| MultiBinary | 0 and 1, float32 |
| Tuple, Dict | its parts flattened and concatenated (Dict: by key), float32 |
| Dict with `action_mask` | the other entries; the mask says which actions are allowed |

A mask may also come as `info["action_mask"]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remuda.core.errors import ConfigError, GameError
from remuda.core.spaces import check_action_space, choices_of

MASK = "action_mask"
STARTED = (spaces.Discrete, spaces.MultiDiscrete)
MAX_NUMBERS = 1 << 26
"""In an observation: a few of them in single precision are a gigabyte. Discrete(n) becomes n numbers."""
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
        if (count := spaces.flatdim(self._rest)) > MAX_NUMBERS:
            raise ConfigError(f"{who} observes {count:,} numbers, more than {MAX_NUMBERS:,}: wrap the environment")
        self._is_box = isinstance(self._rest, spaces.Box)
        self.raw_space = None if self._is_box and not self.masked else space
        self.shape: tuple[int, ...] = self._rest.shape if self._is_box else (spaces.flatdim(self._rest),)  # type: ignore[assignment]
        self.dtype = np.dtype(self._rest.dtype if self._is_box else np.float32)
        if self.dtype.kind == "f":  # also half precision, which compiled code does not know
            self.dtype = np.dtype(np.float32)
        if not math.prod(self.shape):
            raise ConfigError(f"{who} observes nothing: its observation space is {space}")
        flat: Any = self._rest if self._is_box else spaces.flatten_space(self._rest)
        self._low, self._high = (np.asarray(bound, self.dtype).reshape(self.shape) for bound in (flat.low, flat.high))
        self.low, self.high = float(self._low.min()), float(self._high.max())
        own = self._low != self._low.flat[0], self._high != self._high.flat[0]
        self._bounds_differ = self.dtype.kind == "f" and any(bound.any() for bound in own)

    def as_array(self, obs: Any) -> NDArray[Any]:
        """An observation as an array."""
        if self.masked:
            obs = obs[self._only] if self._only else {name: part for name, part in obs.items() if name != MASK}
        given = np.asarray(obs if self._is_box else spaces.flatten(self._rest, obs))
        if given.shape != self.shape:
            raise GameError(f"an observation has shape {given.shape}, but its space has {self.shape}")
        array = given if given.dtype == self.dtype else self._convert(given)
        if self._bounds_differ and not ((array >= self._low) & (array <= self._high)).all():
            return np.full(self.shape, np.nan, self.dtype)  # an invalid sample, which is found and named later
        return array

    def layout(self) -> list[str]:
        """A line for each part of the space: which numbers of the array it becomes."""
        lines, first = [], 0
        for name, part in _leaves(self._rest, ""):
            size = spaces.flatdim(part)
            kind = "one-hot, " if isinstance(part, STARTED) else ""
            numbers = f"number {first}" if size == 1 else f"numbers {first} to {first + size - 1}"
            lines.append(f"{numbers}: {f'{name}, ' if name else ''}{kind}{part}")
            first += size
        return lines

    def _convert(self, given: NDArray[Any]) -> NDArray[Any]:
        """The array in the type of its space; whole numbers must keep their values."""
        if given.dtype.kind not in "biufO":  # complex numbers would lose a part, texts might even be read as numbers
            raise GameError(f"an observation has the type {given.dtype}, which is none of its space ({self.dtype})")
        with np.errstate(invalid="ignore", over="ignore"):
            array = given.astype(self.dtype)
        if self.dtype.kind in "iub" and not np.array_equal(array, given):
            wrong = given[array != given].flat[0]
            raise GameError(f"an observation has the value {wrong}, which is none of its space ({self.dtype})")
        return array


def mask_of(obs: Any, info: Mapping[str, Any]) -> Any:
    """The mask that came with an observation, or None."""
    if isinstance(obs, Mapping) and MASK in obs:
        return obs[MASK]
    return info.get(MASK)


def _leaves(space: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The parts of a space that have none themselves, in the order of the array, each with the keys that lead to it."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield name, space
        return
    for key, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from _leaves(part, f"{name}[{key!r}]")


class ActionSpace:
    """One agent's actions: the space that the group declares, and how the environment wants them."""

    def __init__(self, space: Any, who: str) -> None:
        self.space = space
        self.first: Any = np.asarray(space.start) if isinstance(space, STARTED) else 0  # number of the first choice
        if isinstance(space, spaces.Discrete):
            self.declared: Any = spaces.Discrete(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            self.declared = spaces.MultiDiscrete(space.nvec.reshape(-1))
        else:
            self.declared = space
        check_action_space(self.declared, who)
        self._plain_first = int(self.first) if isinstance(space, spaces.Discrete) else None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for agents that can be in one group."""
        if isinstance(self.declared, spaces.Box):
            return (self.declared.shape, self.declared.low.tobytes(), self.declared.high.tobytes())
        return (type(self.declared).__name__, choices_of(self.declared))

    def for_env(self, action: Any) -> Any:
        """An action as the environment takes it; within the bounds of a Box also after rounding."""
        if self._plain_first is not None:
            return action + self._plain_first
        if isinstance(self.space, spaces.Box):
            return np.clip(action.astype(self.space.dtype), self.space.low, self.space.high)
        return (action.reshape(self.space.shape) + self.first).astype(self.space.dtype)


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
