"""Values that may differ per agent and change over the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError

Value = float | str
PerAgent = Value | list[Value]


@dataclass(frozen=True)
class Schedule:
    """One value per agent, moving from `start` to `end` over the first `over` of the planned updates."""

    start: NDArray[np.float64]  # (agents,)
    end: NDArray[np.float64]  # (agents,)
    over: NDArray[np.float64]  # (agents,)

    def at(self, update: int, total: int) -> NDArray[np.float64]:
        """The values when `update` of `total` updates are done."""
        progress = np.minimum(update / max(total, 1) / self.over, 1.0)
        values: NDArray[np.float64] = self.start + (self.end - self.start) * progress
        return values


def schedule(name: str, value: PerAgent | list[float], numbers: NDArray[np.int64], high: float = math.inf) -> Schedule:
    """Read `0.1`, `"0.9:0.05:0.5"` (from, to, over which share of the run), or a list of these per agent."""
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and len(values) <= numbers.max():
        raise ConfigError(
            f"{name} lists {len(values)} values, but agent {numbers.max()} needs one: give one value or one per agent"
        )
    parts = [_parts(name, values[number] if isinstance(value, list) else value) for number in numbers]
    start, end, over = np.array(parts, np.float64).T
    if min(start.min(), end.min()) < 0 or max(start.max(), end.max()) > high:
        limit = "at least 0" if math.isinf(high) else f"from 0 to {high:g}"
        raise ConfigError(f"{name}={value!r} should be {limit}")
    return Schedule(start, end, over)


def _parts(name: str, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, str):
        return float(value), float(value), 1.0
    try:
        start, end, *rest = (float(word) for word in value.split(":"))
        (over,) = rest or (1.0,)
    except ValueError:
        raise ConfigError(f'{name}={value!r} should be a number or "from:to:share", e.g. "0.9:0.05:0.5"') from None
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ConfigError(f"{name}={value!r} should go from one finite number to another")
    if not 0.0 < over <= 1.0:
        raise ConfigError(f"{name}={value!r}: the share of the run should be above 0 and at most 1")
    return start, end, over
