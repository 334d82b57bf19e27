"""How worlds are played, and the empty fragments they are played into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remuda.core import rng
from remuda.core.fragment import Fragment, Origin, Purpose, blank
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Keys, Stream
from remuda.core.task import Task

STREAMS = {
    Purpose.TRAIN: Stream.TRAIN,
    Purpose.EVALUATE: Stream.EVALUATE,
    Purpose.TEST: Stream.TEST,
}


@dataclass(frozen=True)
class RolloutConfig:
    """How turns are played."""

    seed: int
    worlds: int  # of the whole plan: episode e is played in world e % worlds
    parallel_actions: bool = True
    one_by_one: bool = False  # one agent's forward pass at a time

    @classmethod
    def of(cls, plan: Plan, one_by_one: bool = False) -> RolloutConfig:
        """As a plan has it."""
        return cls(plan.seed, plan.worlds, plan.parallel_actions, one_by_one)

    def keys(self, task: Task) -> Keys:
        """What all chance of each of a task's episodes derives from, (episodes,)."""
        episodes = np.array(task.episodes, np.int64)
        return rng.keys(rng.keys(rng.key(self.seed, STREAMS[task.purpose]), episodes % self.worlds), episodes)

    def places(self, task: Task) -> str:
        """In which worlds a task is played, in words."""
        first, last = task.episodes[0] % self.worlds, task.episodes[-1] % self.worlds
        return f"world {first}" if first == last else f"worlds {first} to {last}"


def most_frames(bindings: Sequence[PolicyBinding], group: int) -> int:
    """The most frames any policy of a group looks at."""
    return max([binding.policy.frames for binding in bindings if binding.group == group], default=1)


def empty_fragments(
    spec: GameSpec,
    bindings: Sequence[PolicyBinding],
    config: RolloutConfig,
    task: Task,
    first_turn: int = 0,
    turns: int | None = None,
) -> list[Fragment]:
    """Empty fragments, one per group, for `turns` turns (default: a whole episode) of a task."""
    episodes = np.array(task.episodes, np.int64)
    fragments = []
    for g, group in enumerate(spec.groups):
        origin = Origin(g, episodes % config.worlds, episodes, first_turn, task.purpose)
        names = sorted({name for binding in bindings if binding.group == g for name in binding.policy.extras})
        before = most_frames(bindings, g) - 1
        fragments.append(blank(origin, group, turns or spec.turns, before, tuple(names)))
    return fragments
