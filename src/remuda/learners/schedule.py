"""Values that may differ per agent and change over the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.options import Options

Value = float | str
PerAgent = Value | list[Value]
Count = Annotated[int, Field(ge=1)]
Passes = Count | list[Count]
"""How often a round is learned from: one number, or one per agent."""


def per_agent_options(kind: type[Options], *types: Any) -> list[str]:
    """Options that are declared with one of the types, `PerAgent` and `Passes`, there or in a class above."""
    declared = [own.model_fields for own in kind.__mro__ if issubclass(own, Options)]
    return [
        name
        for name in kind.model_fields
        if any(name in fields and fields[name].annotation in types for fields in declared)
    ]


def check_lists(options: Options, learner: str, herd: int) -> None:
    """Refuse a list whose length is not the number of agents of the whole herd, those of other learners included."""
    for name in per_agent_options(type(options), PerAgent, Passes):
        value = getattr(options, name)
        if isinstance(value, list) and len(value) != herd:
            raise ConfigError(
                f"{name} of learner {learner} lists {len(value)} value{'s' * (len(value) != 1)} for a herd of {herd}: "
                "give one value, or one per agent of the whole herd, also if only some have this learner"
            )


@dataclass(frozen=True)
class Schedule:
    """One value per agent, which moves from `start` to `end` over the first `share` of the planned updates."""

    start: NDArray[np.float64]  # (agents,)
    end: NDArray[np.float64]  # (agents,)
    share: NDArray[np.float64]  # (agents,): in (0, 1]

    def at(self, update: int, total: int) -> NDArray[np.float64]:
        """The values after `update` of `total` updates, (agents,)."""
        progress = np.minimum(update / max(total, 1) / self.share, 1.0)
        values: NDArray[np.float64] = self.start + (self.end - self.start) * progress
        return values


def schedule(
    name: str, value: PerAgent | list[float], agent_numbers: NDArray[np.int64], high: float = math.inf
) -> Schedule:
    """Read `0.1`, `"0.9:0.05:0.5"` (from, to, over which share of the run), or a list with one of these per agent.

    `agent_numbers` are herd-wide numbers, (agents,): an agent uses the entry of a list at its own number.
    """
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and len(values) <= agent_numbers.max():
        raise ConfigError(
            f"{name} lists {len(values)} values, but agent {agent_numbers.max()} needs one: "
            "give one value, or one per agent"
        )
    parts = [_parts(name, values[number] if isinstance(value, list) else value) for number in agent_numbers]
    start, end, share = np.array(parts, np.float64).T
    if min(start.min(), end.min()) < 0 or max(start.max(), end.max()) > high:
        limit = "at least 0" if math.isinf(high) else f"from 0 to {high:g}"
        raise ConfigError(f"{name}={value!r} should be {limit}")
    return Schedule(start, end, share)


def counts(name: str, value: int | list[int], agent_numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """One whole number per agent, (agents,): the one value, or the entry of a list at the agent's number."""
    return schedule(name, value, agent_numbers).start.astype(np.int64)  # type: ignore[arg-type]


def _parts(name: str, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, str):
        return float(value), float(value), 1.0
    try:
        start, end, *rest = (float(word) for word in value.split(":"))
        (share,) = rest or (1.0,)
    except ValueError:
        raise ConfigError(f'{name}={value!r} should be a number or "from:to:share", e.g. "0.9:0.05:0.5"') from None
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ConfigError(f"{name}={value!r} should go from one finite number to another")
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"{name}={value!r}: the share of the run should be above 0 and at most 1")
    return start, end, share
