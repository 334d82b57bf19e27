"""How a herd is sliced over learner processes, when they publish, and the log of who learned what when."""

from __future__ import annotations

import json
from collections.abc import Sequence

from remuda.core.plan import Plan
from remuda.core.ranges import split_evenly
from remuda.engines.trainers.processes.messages import AgentSlice
from remuda.learners.herd import Part

SCHEDULE = "schedule.jsonl"
"""The file of a run that says who learned what when."""


def split(parts: Sequence[Part], learners: int) -> list[list[AgentSlice]]:
    """The learning agents in balanced slices, one list per process; a slice does not cross two parts."""
    agents = [(index, agent) for index, part in enumerate(parts) if part.learns for agent in range(part.agents)]
    result = []
    for first, last in split_evenly(len(agents), learners):
        own: list[AgentSlice] = []
        for part, agent in agents[first:last]:
            if own and own[-1][0] == part:
                own[-1] = (part, own[-1][1], agent + 1)
            else:
                own.append((part, agent, agent + 1))
        result.append(own)
    return result


def batches(plan: Plan, incremental: bool, number: int) -> list[int]:
    """The updates of a round in the batches after which they are published."""
    due, size = plan.updates_in(number), plan.publish_interval if incremental else plan.updates_in(number) + 1
    return [min(size, due - done) for done in range(0, max(due, 1), size)]


def publications(plan: Plan, incremental: bool, rounds: int) -> int:
    """Versions published by a learner after so many rounds, the first weights not counted."""
    return sum(len(batches(plan, incremental, number)) for number in range(1, rounds + 1))


def saved_mark(rounds: int) -> str:
    """The line of a schedule that says everything up to here is in the state of so many rounds."""
    return json.dumps({"saved": rounds}) + "\n"
