"""What the first process has to know of the learners before they are placed elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import CheckpointError
from remuda.core.game import GameSpec
from remuda.core.learner import Learner
from remuda.core.plan import Plan
from remuda.core.ranges import split_evenly
from remuda.engines.interfaces import with_prefix
from remuda.learners.herd import Part, make_learner

INSPECTED_AGENTS = 4
"""Agents whose learner is made here at a time: only so much memory is needed."""


@dataclass
class HerdFacts:
    """Weights, gradient steps, memory and cost of the agents that learn."""

    rows: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # by part, (agents, columns)
    steps: dict[int, int] = field(default_factory=dict)  # by agent
    memory_bytes: int = 0
    costs: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by part: parameters times updates per round


def inspect_herd(
    plan: Plan, spec: GameSpec, parts: Sequence[Part], state: Mapping[str, NDArray[Any]] | None
) -> HerdFacts:
    """Make the learners of a few agents at a time, with this state or new, and discard them."""
    facts = HerdFacts()
    for index, part in enumerate(parts):
        if not part.learns:
            continue
        own = []
        for learner in _few_at_a_time(plan, spec, part, None if state is None else with_prefix(state, f"{index}/")):
            own.append(learner.rows())
            facts.memory_bytes += learner.memory_bytes()
            facts.steps.update(zip(learner.context.agent_numbers.tolist(), learner.steps.tolist(), strict=True))
            learner.close()
        facts.rows[index] = np.concatenate(own)
        updates = [plan.updates_in(1, part.herd_first + agent) for agent in range(part.agents)]
        facts.costs[index] = np.maximum(np.array(updates, np.float64), 1.0) * facts.rows[index].shape[1]
    return facts


def _few_at_a_time(
    plan: Plan, spec: GameSpec, part: Part, state: Mapping[str, NDArray[Any]] | None
) -> Iterator[Learner]:
    if state is not None and any(len(array) != part.agents for array in state.values()):
        raise CheckpointError("it is of another number of agents")
    for first, last in split_evenly(part.agents, -(-part.agents // INSPECTED_AGENTS)):
        learner = make_learner(part, plan, spec, "cpu", (first, last))
        if state is not None:
            learner.restore({name: array[first:last] for name, array in state.items()})
        yield learner


def first_state(plan: Plan, spec: GameSpec, parts: Sequence[Part]) -> dict[str, NDArray[Any]]:
    """The state of all learners before the first round."""
    return {
        f"{index}/{name}": array
        for index, part in enumerate(parts)
        if part.learns
        for name, array in make_learner(part, plan, spec, "cpu", (0, part.agents)).state().items()
    }
