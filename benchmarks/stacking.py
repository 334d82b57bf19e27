"""Learners for one agent, stacked by torch.func against one by one: times of both, and whether the bits are the same.

    python -m benchmarks.stacking

Processor times alternate in one process, so that both ways meet the same machine; printed are medians and their ratio.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from remuda.core.fragment import Fragment, copy_fragment
from remuda.core.game import make_game
from remuda.core.learner import Learner, LearnerContext
from remuda.core.machine import machine
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.learners.registry import find_learner
from remuda.learners.single_agent.stacking import HerdMap
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout

AGENTS, WORLDS, UPDATES, REPEATS = (10, 50), 8, 8, 7
LEARNERS = {"dqn:DQN": {"replay_size": 4096}, "a2c:A2C": {"passes": UPDATES}}


def make(name: str, agents: int, stack: bool) -> Any:
    """A learner of the whole herd."""
    spec = make_game(find_game("treasurehunt"), {"agents": agents}, [0]).spec
    kind = find_learner(name)
    context = LearnerContext(spec.groups[0], 0, 0, agents, 0, 0, spec.turns, WORLDS, REPEATS * UPDATES)
    return kind(context, kind.options_type().read({**LEARNERS[name], "stack": stack}, name))


def played(own: Learner) -> Fragment:
    """A round, played with its first weights."""
    agents = own.context.agents
    policy = own.make_policy(own.context.group, agents, own.options, "fp32", "cpu")
    policy.load(own.rows(), 0)
    game = make_game(find_game("treasurehunt"), {"agents": agents}, range(WORLDS))
    rollout = Rollout(game, [PolicyBinding(0, 0, agents, policy)], RolloutConfig(0, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    return copy_fragment(rollout.play(rollout.empty_fragments())[0])


def learn(own: Learner, fragment: Fragment) -> float:
    """Processor seconds for a round of updates, on one thread."""
    own.take(fragment)
    began = time.process_time()
    own.update(UPDATES)
    return time.process_time() - began


def compare(name: str, agents: int) -> dict[str, Any]:
    """Both ways, alternating, after one round that is not counted; `used` says which one a run would take."""
    stacked, alone = make(name, agents, True), make(name, agents, False)
    fragment = played(stacked)
    used = make(name, agents, True).try_stacking()
    with patch.object(HerdMap, "_test", lambda *_: True):  # also where the bits differ, which a run never does
        times = [
            (learn(stacked, copy_fragment(fragment)), learn(alone, copy_fragment(fragment))) for _ in range(REPEATS + 1)
        ]
    one, other = (median(column) for column in zip(*times[1:], strict=True))
    return {"stacked": one, "alone": other, "same": np.array_equal(stacked.rows(), alone.rows()), "used": used}


def main() -> None:
    """Print a line per learner and herd."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    print(machine())
    with one_thread_each():
        for name in LEARNERS:
            for agents in AGENTS:
                own = compare(name, agents)
                print(
                    f"{name:8} {agents:3} agents, {UPDATES} updates: stacked {1000 * own['stacked']:8.1f} ms, "
                    f"one by one {1000 * own['alone']:8.1f} ms, ratio {own['alone'] / own['stacked']:.2f}, "
                    f"bits {'the same' if own['same'] else 'different'}; a run takes: {own['used']}"
                )


if __name__ == "__main__":
    main()
