"""How worlds are played, and empty fragments for a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remuda.core import rng
from remuda.core.fragment import Fragment, FragmentLayout, Origin, Purpose, empty_fragment
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Keys, Stream
from remuda.core.task import Task

STREAM_OF_PURPOSE = {
    Purpose.TRAIN: Stream.TRAIN,
    Purpose.EVALUATE: Stream.EVALUATE,
    Purpose.TEST: Stream.TEST,
}


@dataclass(frozen=True)
class RolloutConfig:
    """How turns are played. It decides, with the policies, every number in the fragments."""

    seed: int
    worlds: int  # of the whole plan: episode e is played in world e % worlds
    parallel_actions: bool = True  # all agents observe before the first one acts
    one_by_one: bool = False  # policies choose for one agent at a time; the same result, slower

    @classmethod
    def of(cls, plan: Plan, one_by_one: bool = False) -> RolloutConfig:
        """The config that a plan asks for."""
        return cls(plan.seed, plan.worlds, plan.parallel_actions, one_by_one)

    def keys(self, task: Task) -> Keys:
        """The keys that all randomness of the game derives from, one per episode of the task, (episodes,)."""
        episodes = np.array(task.episodes, np.int64)
        return rng.keys(rng.keys(rng.key(self.seed, STREAM_OF_PURPOSE[task.purpose]), episodes % self.worlds), episodes)

    def describe_worlds(self, task: Task) -> str:
        """The worlds of a task in words, for messages."""
        first, last = task.episodes[0] % self.worlds, task.episodes[-1] % self.worlds
        return f"world {first}" if first == last else f"worlds {first} to {last}"


def fragment_layout(bindings: Sequence[PolicyBinding], group: int) -> FragmentLayout:
    """What the policies of a group want in its fragments."""
    policies = [binding.policy for binding in bindings if binding.group == group]
    shapes = {name: policy.extra_shapes.get(name, ()) for policy in policies for name in policy.extras}
    return FragmentLayout(
        before=max([policy.frames for policy in policies], default=1) - 1,
        extras={name: shapes[name] for name in sorted(shapes)},
        state=any(policy.reads_state for policy in policies),
        memory=max([policy.memory_size for policy in policies], default=0),
    )


def empty_fragments(
    spec: GameSpec,
    bindings: Sequence[PolicyBinding],
    config: RolloutConfig,
    task: Task,
    first_turn: int = 0,
    turns: int | None = None,
) -> list[Fragment]:
    """Empty fragments for a task, one per group, of `turns` turns (default: a whole episode)."""
    episodes = np.array(task.episodes, np.int64)
    fragments = []
    for g, group in enumerate(spec.groups):
        origin = Origin(g, episodes % config.worlds, episodes, first_turn, task.purpose)
        fragments.append(empty_fragment(origin, group, turns or spec.turns, layout=fragment_layout(bindings, g)))
    return fragments
