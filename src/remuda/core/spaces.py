"""Gymnasium's spaces as remuda uses them. Gymnasium is imported only where a space is given or asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError


def check_action_space(space: Any, who: str) -> None:
    """Raise unless it is Discrete from 0, MultiDiscrete with one axis, MultiBinary, or a Box of floats."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete) and int(space.start) == 0:
        return
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and np.prod(space.shape) > 0:
        return
    raise ConfigError(
        f"{who} has actions {space}: they should be Discrete, MultiDiscrete, MultiBinary (of one axis, counted from "
        "0) or a Box of floats; convert them in the environment"
    )


def choices_of(space: Any) -> tuple[int, ...]:
    """How many choices each discrete part of an action has; none for a Box."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(space.shape[0])
    return ()


def bounds_of(space: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The lowest and the highest value of each number of a Box, flat; infinite where there is no bound."""
    return np.asarray(space.low, np.float32).reshape(-1), np.asarray(space.high, np.float32).reshape(-1)


def space_to_json(space: Any) -> dict[str, Any] | None:
    """An action space as plain data, for `space_from_json`."""
    if space is None:
        return None
    if choices := choices_of(space):
        return {"choices": list(choices)}
    low, high = bounds_of(space)
    return {"low": low.tolist(), "high": high.tolist(), "shape": list(space.shape)}


def space_from_json(data: dict[str, Any] | None) -> Any:
    """The space that `space_to_json` had; MultiBinary becomes the equal MultiDiscrete."""
    if data is None:
        return None
    from gymnasium import spaces

    if "choices" in data:
        return spaces.MultiDiscrete(data["choices"])
    low, high = (np.array(data[name], np.float32).reshape(data["shape"]) for name in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


def discrete(count: int) -> Any:
    """Gymnasium's space of so many actions."""
    from gymnasium import spaces

    return spaces.Discrete(count)


def count_of(space: Any) -> int | None:
    """How many actions a Discrete space has; None for other spaces."""
    from gymnasium import spaces

    return int(space.n) if isinstance(space, spaces.Discrete) else None


def is_box(space: Any) -> bool:
    """Whether it is a Box."""
    from gymnasium import spaces

    return isinstance(space, spaces.Box)


def array_of(space: Any) -> tuple[tuple[int, ...], Any, float, float]:
    """Shape, type and range of observations: those of a Box, else those of the space flattened."""
    from gymnasium import spaces

    if not is_box(space):
        return (spaces.flatdim(space),), np.dtype(np.float32), -np.inf, np.inf
    dtype = np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
    return space.shape, dtype, float(space.low.min()), float(space.high.max())
