"""What a learner is: an algorithm for neighbouring agents of one group, each row its own.

A part of the herd may be taught by several learners, each with a slice of its agents; since a state
is rows, states of slices put together are the state of the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import CheckpointError
from remuda.core.failures import SkippedUpdates, trace_of
from remuda.core.fragment import Fragment, of_agents
from remuda.core.game import Group
from remuda.core.options import Options
from remuda.core.policy import Policy

State = dict[str, NDArray[Any]]
COUNTS = ("steps", "updates", "passes")
"""Arrays of a state that count something."""
MOST = 2**53
"""No count comes so far."""


@dataclass(frozen=True)
class LearnerContext:
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

    def select(self, fragments: Sequence[Fragment]) -> Fragment:
        """The learner's agents only, from one fragment per group, as views: what `Learner.take` expects."""
        return of_agents(fragments[self.group_index], self.first, self.last)


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
    incremental_updates: bool = True
    """Whether the updates of a round may be made in several calls of `update`, and more of them without new data."""
    helpers_cpu_s: float = 0.0
    """Processor time spent in threads of its own."""

    def __init__(self, context: LearnerContext, options: Any) -> None:
        self.context = context
        self.options = options
        self.skipped_updates: list[SkippedUpdates] = []  # not told yet

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
        """Keep what happened to this learner's agents: the fragment holds them and nobody else."""

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
    def skipping_errors(self, count: int) -> Iterator[None]:
        """Whatever is raised in here costs `count` updates: the learner goes on with the weights it has."""
        try:
            yield
        except Exception as error:
            self.skip(count)
            first = self.context.herd_first
            what = f"learning raised {type(error).__name__}: {error}"
            self.skipped_updates.append(
                SkippedUpdates((first, first + self.context.agents), count, what, trace_of(error))
            )

    def note_skipped_updates(self, counts: NDArray[np.int64]) -> None:
        """Note updates, (agents,), that were not made because their gradients were not finite."""
        for agent in np.flatnonzero(counts):
            number = int(self.context.herd_first + agent)
            self.skipped_updates.append(
                SkippedUpdates((number, number + 1), int(counts[agent]), "their gradients were not finite")
            )

    def take_skipped_updates(self) -> list[SkippedUpdates]:
        """Those not told yet."""
        skipped_updates, self.skipped_updates = self.skipped_updates, []
        return skipped_updates

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
