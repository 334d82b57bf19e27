"""Learning in threads: whoever waits for a round is woken when it is learned."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from remuda.core.fragment import Fragment, Origin, Purpose, empty_fragment
from remuda.core.game import Group
from remuda.core.learner import Learner, LearnerContext, State
from remuda.core.options import Options
from remuda.core.plan import Plan
from remuda.core.policy import Policy, RandomPolicy
from remuda.core.task import Task
from remuda.engines.interfaces import Delivery
from remuda.engines.trainers import thread
from remuda.engines.trainers.thread import ThreadTrainers

GROUP = Group("any", 1, (1,), np.float32, 2)
ROUNDS = 3000


class InstantLearner(Learner):
    """Learns nothing, in no time."""

    def __init__(self) -> None:
        super().__init__(LearnerContext(GROUP, 0, 0, 1, 0, 0, 1, 1, ROUNDS), Options())
        self.steps = np.zeros(1, np.int64)

    @classmethod
    def options_type(cls) -> type[Options]:
        return Options

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        return RandomPolicy(group, agents)

    def rows(self) -> NDArray[np.float32]:
        return np.zeros((1, 0), np.float32)

    def take(self, fragment: Fragment) -> None:
        pass

    def update(self, count: int) -> None:
        self.steps += count

    def report(self) -> dict[str, NDArray[np.float64]]:
        return {}

    def skip(self, count: int) -> None:
        pass

    def state(self) -> State:
        return {"steps": self.steps}

    def restore(self, state: State) -> None:
        self.steps[:] = state["steps"]

    def memory_bytes(self) -> int:
        return 0


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Have threads switch as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def delivery_of(episode: int) -> Delivery:
    numbers = np.array([episode])
    return Delivery(Task((episode,)), [empty_fragment(Origin(0, numbers * 0, numbers, 0, Purpose.TRAIN), GROUP, 1, 0)])


def test_poll_returns_when_a_round_is_learned_while_it_begins_to_wait(
    frequent_switches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may finish the round at any moment of `poll`, also before it waits; a missed wake-up would hang it."""
    monkeypatch.setattr(thread, "PORTION_LIMIT_S", 20.0)
    plan = Plan(game="treasurehunt", worlds=1, total_episodes=ROUNDS)
    learner = InstantLearner()
    trainers = ThreadTrainers(plan, {0: [learner]}, threads=2)
    trainers.start()
    for number in range(1, ROUNDS + 1):
        trainers.take(delivery_of(number - 1))
        assert [update.version for update in trainers.poll(number)] == [number]
    trainers.close()
    assert learner.steps.tolist() == [ROUNDS]
