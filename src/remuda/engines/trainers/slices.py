"""Slices of the herd: which learner process or actor has which agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from remuda.core.ranges import split_evenly
from remuda.engines.interfaces import with_prefix
from remuda.learners.herd import Part

AgentSlice = tuple[int, int, int]
"""Index of a part of the herd, and the range first … last-1 of its agents."""
StateSlice = tuple[int, int, Mapping[str, NDArray[np.generic]]]
"""Index of a part, its first agent here, and arrays by name with a row per agent from there on."""
Costs = Mapping[int, NDArray[np.float64]]
"""By index of a part: what learning costs for each of its agents, in any unit."""


def split(parts: Sequence[Part], learners: int, costs: Costs | None = None) -> list[list[AgentSlice]]:
    """The learning agents in balanced slices, one list per learner; a slice does not cross two parts.

    Without `costs` all agents cost the same. Neighbours stay together, so that the
    slices in their order are the herd.
    """
    agents = [(index, agent) for index, part in enumerate(parts) if part.learns for agent in range(part.agents)]
    each = [1.0 if costs is None else float(costs[part][agent]) for part, agent in agents]
    result = []
    for first, last in split_evenly(len(agents), learners) if len(set(each)) <= 1 else _balanced(each, learners):
        slices: list[AgentSlice] = []
        for part, agent in agents[first:last]:
            if slices and slices[-1][0] == part:
                slices[-1] = (part, slices[-1][1], agent + 1)
            else:
                slices.append((part, agent, agent + 1))
        result.append(slices)
    return result


def _balanced(costs: Sequence[float], count: int) -> list[tuple[int, int]]:
    """Ranges whose largest cost is as small as it can be: found by bisection, each range filled up to a limit."""
    count = min(count, len(costs))
    low, high = max(costs), sum(costs)
    for _ in range(50):
        middle = (low + high) / 2
        if _ranges_up_to(costs, middle) <= count:
            high = middle
        else:
            low = middle
    ranges, first = [], 0
    for left in range(count, 0, -1):
        last = first + 1
        while last <= len(costs) - left and sum(costs[first : last + 1]) <= high + 1e-9:
            last += 1
        ranges.append((first, len(costs) if left == 1 else last))
        first = last
    return ranges


def _ranges_up_to(costs: Sequence[float], limit: float) -> int:
    """How many ranges it takes if none may cost more than `limit`."""
    count, cost = 1, 0.0
    for own in costs:
        if cost + own > limit + 1e-9:
            count, cost = count + 1, 0.0
        cost += own
    return count


def state_of(slices: Sequence[AgentSlice], state: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """The rows of one learner's slices, each under the index of its slice."""
    return {
        f"{index}/{name}": np.ascontiguousarray(array)
        for index, (_, _, arrays) in enumerate(state_slices(slices, state))
        for name, array in arrays.items()
    }


def state_slices(slices: Sequence[AgentSlice], state: Mapping[str, NDArray[np.generic]]) -> list[StateSlice]:
    """The rows of one learner's slices, from the state of the whole herd."""
    return [
        (part, first, {name: array[first:last] for name, array in with_prefix(state, f"{part}/").items()})
        for part, first, last in slices
    ]


def pick_rows(own: AgentSlice, pieces: Iterable[StateSlice]) -> dict[str, NDArray[np.generic]]:
    """The rows of one slice, from pieces in the order of the herd that together have all of them."""
    part, first, last = own
    found: dict[str, list[NDArray[np.generic]]] = {}
    for other, start, arrays in pieces:
        for name, array in arrays.items() if other == part else ():
            found.setdefault(name, []).append(array[max(0, first - start) : max(0, last - start)])
    return {name: np.concatenate(arrays) for name, arrays in found.items()}
