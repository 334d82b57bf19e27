"""What a learner is: an algorithm for neighbouring agents of one group, each row its own.

A part of the herd may be taught by several learners, each with a slice of its agents; since a state
is rows, states of slices put together are the state of the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.config import Options
from remuda.errors import CheckpointError
from remuda.faults import Lapse, trace_of
from remuda.fragment import Fragment
from remuda.game import Group
from remuda.policy import Policy

State = dict[str, NDArray[Any]]
COUNTS = ("steps", "updates", "passes")
"""Arrays of a state that count something."""
MOST = 2**53
"""No count comes so far."""


@dataclass(frozen=True)
class Post:
    """Where a learner stands: which agents it teaches, and the parts of the plan that concern it."""

    group: Group
    group_index: int
    first: int  # of its agents within the group
    last: int
    herd_first: int  # herd-wide number of its first agent
    seed: int
    turns: int  # the most an episode lasts
    round_episodes: int
    total_updates: int
    precision: str = "fp32"
    device: str = "cpu"
    threads: int = 1  # it may use at once

    @property
    def agents(self) -> int:
        """How many agents the learner has."""
        return self.last - self.first

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Herd-wide numbers of its agents."""
        return np.arange(self.agents) + self.herd_first


class Learner(ABC):
    """Takes fragments, updates its agents, and hands out a policy. Never mixes two agents' rows."""

    max_lag: int
    """How many versions old its data may be."""
    metrics: tuple[str, ...]
    """What `report` reports."""
    steps: NDArray[np.int64]
    """Gradient steps each agent really made, (agents,)."""
    keeps_fragments: bool = False
    """Whether `take` keeps the fragment itself, whose memory must then stay as it is until `update`."""
    piecemeal: bool = True
    """Whether a round's updates can be made a few at a time, and more of them without new data."""
    helpers_cpu_s: float = 0.0
    """Processor time spent in threads of its own."""

    def __init__(self, post: Post, options: Any) -> None:
        self.post = post
        self.options = options
        self.lapses: list[Lapse] = []  # not told yet

    @classmethod
    @abstractmethod
    def options_type(cls) -> type[Options]:
        """The learner's options."""

    @classmethod
    @abstractmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """A policy of the right shape with no weights yet: for collectors and for frozen players."""

    @abstractmethod
    def rows(self) -> NDArray[np.float32]:
        """What the policy needs to act, one row per agent: a snapshot."""

    @abstractmethod
    def take(self, fragment: Fragment) -> None:
        """Keep what happened to this learner's agents."""

    @abstractmethod
    def update(self, count: int) -> None:
        """Make `count` gradient steps per agent."""

    @abstractmethod
    def report(self) -> dict[str, NDArray[np.float64]]:
        """Metrics of the updates since it was last asked, each (agents,), nan where there were none."""

    @abstractmethod
    def skip(self, count: int) -> None:
        """Let the clocks go on as if `count` updates had been made; forget what was taken for them alone."""

    @contextmanager
    def forgiven(self, count: int) -> Iterator[None]:
        """Whatever is raised in here costs `count` updates: the learner goes on with the weights it has."""
        try:
            yield
        except Exception as error:
            self.skip(count)
            first = self.post.herd_first
            what = f"learning raised {type(error).__name__}: {error}"
            self.lapses.append(Lapse((first, first + self.post.agents), count, what, trace_of(error)))

    def leave_out(self, counts: NDArray[np.int64]) -> None:
        """Note updates, (agents,), that were not made because their gradients were not finite."""
        for agent in np.flatnonzero(counts):
            number = int(self.post.herd_first + agent)
            self.lapses.append(Lapse((number, number + 1), int(counts[agent]), "their gradients were not finite"))

    def tell_lapses(self) -> list[Lapse]:
        """Those not told yet."""
        lapses, self.lapses = self.lapses, []
        return lapses

    @abstractmethod
    def state(self) -> State:
        """Everything the next update depends on, as arrays with one row per agent."""

    def check_state(self, state: State) -> None:
        """Refuse a state whose arrays have other shapes or types than our own, or numbers that are none."""
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape or state[name].dtype != own.dtype:
                raise CheckpointError(
                    f"the checkpoint has no {name} of shape {own.shape} and type {own.dtype}: "
                    "it belongs to another herd"
                )
            if own.dtype.kind == "f" and not np.isfinite(state[name]).all():
                raise CheckpointError(f"the checkpoint has {name} that are not finite numbers")
            if name in COUNTS and not ((state[name] >= 0) & (state[name] < MOST)).all():
                raise CheckpointError(f"the checkpoint has {name} that nobody can have made")

    @abstractmethod
    def restore(self, state: State) -> None:
        """Become the learner that `state` was taken from."""

    def close(self) -> None:
        """Let go of threads of its own, if it has any."""
        return

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes the learner holds for all its agents."""
