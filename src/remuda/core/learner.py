"""Learner: an algorithm for neighbouring agents of one group. It turns fragments into weights.

This is the contract of a whole herd's learner. Who writes a loss for one agent derives from `OffPolicyLearner` or
`OnPolicyLearner` instead, which keep it (`learners/single_agent/`, docs/write-a-learner.md).

What a trainer (`remuda.engines.trainers`) does with a learner in each round: 1 and 2 in this order, then 3 to 5 in any.
`rows` is also called before the first update and after `restore`. Before the run the class is asked for `options_type`
and `make_policy`, and the learner for `memory_bytes`; `close` is called at the end. A class sets `max_lag` (the largest
policy lag it can learn from) and `metrics`; an object sets `steps`.

1. `take(fragment)`, once per fragment of the round. The fragment has the learner's own agents and no others
   (`context.select` cuts it out). Returns nothing. On engines that wait by round, fragments come in the order of their
   episodes; on others in any order.
2. `update(count)`, where `count` updates are due by the plan, in the round or since the last call. It makes exactly
   `planned_steps(count)` gradient steps for each agent that has enough data and none for the others, adds them to
   `steps`, and returns nothing. (Fewer, if the data has fewer parts: PPO with a memory has at most one minibatch per
   sequence and pass.) If `incremental` is true, that is `count`: the plan decides how much is learned, and
   `update` may be called several times per round with a part of its updates, and again without a new fragment if the
   plan says `free_running`. If it is false, `update` is called once per round, the learner's own options decide how
   much is learned (PPO: `passes` × `minibatches`, or by `minibatch_size`), and `count` only says how far the schedules
   advance.
3. `rows()` after an update. Returns a new float32 array (agents, columns): all that the policy needs to act, one row
   per agent. The array is published and given to `Policy.load` of a policy made by `make_policy`, so those two decide
   what the columns mean. A published array never changes: return a copy.
4. `report()` after the last update of the round. Returns one float64 array (agents,) for each name in `metrics`: means
   over the updates since the last report, nan for an agent that made none.
5. `pop_skipped_updates()`. Returns updates that were not made and why; the base class does this.

At a checkpoint, between rounds:

- `state()` returns everything that the next update depends on, as named arrays whose first axis is the agents: weights,
  optimiser, replay buffer, counters. Counters are int64 arrays named as in `COUNTERS`. The arrays may be views of the
  learner's own; the caller copies them before the next update.
- `restore(state)` makes the learner equal to the one that `state` came from. It must call `check_state` first, because
  the arrays come from a file. After it, the same fragments give the same weights, bit for bit.

When updates cannot be made, because the learner raised or its process died:

- `skip(count)` advances everything that counts updates (schedules, random streams) as if `count` updates had been made,
  and drops what `take` kept for those updates alone. It changes no weights. `skip_on_error` calls it.

Contract (tests/promises/test_independence.py holds it for the learners shipped here):

- *Independence.* Agent i's weights are a function of agent i's own data, options, seed and first weights. Nothing of
  another agent may change one bit of them: no sum, mean or statistic over agents, no random number whose key does not
  contain the agent's herd-wide number (`context.agent_numbers`).
- *Slices.* A part of the herd may have several learners, each with a slice of its agents. Their rows and states,
  concatenated, must equal those of one learner with all agents.
- *Fragments are borrowed.* They lie in memory that is reused. `take` copies what it keeps, or the class sets
  `keeps_views`: then the fragment stays as it is until the round's last `update` has returned, and no longer.
- *Randomness* comes from `remuda.core.rng` with keys of (seed, stream, agent number, update), never from a generator
  with a state of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import CheckpointError, ConfigError, message_of
from remuda.core.failures import SkippedUpdates, format_traceback
from remuda.core.fragment import Fragment, slice_agents
from remuda.core.game import Group
from remuda.core.options import Options
from remuda.core.policy import Policy

State = dict[str, NDArray[Any]]
"""Named arrays with one row per agent, (agents, …)."""
COUNTERS = ("steps", "updates", "passes")
"""Arrays of a state that count something; a warm start sets them to zero."""
MAX_COUNT = 2**53
"""Counters at or above this are refused: no run gets that far."""


@dataclass(frozen=True)
class DenseFlops:
    """Floating-point operations that an agent's networks need if every product is computed in full.

    What is computed in fewer operations (equal rows once, zeros not at all) still counts as much.
    """

    act: float  # per agent step
    learn_step: float  # learning, per agent step that was collected
    learn_update: float  # learning, per gradient step


@dataclass(frozen=True)
class LearnerContext:
    """Which agents a learner has, and the parts of the plan that concern it."""

    group: Group
    group_index: int  # in GameSpec.groups
    first: int  # its agents within the group are first … last-1
    last: int
    herd_first: int  # herd-wide number of its first agent
    seed: int
    turns: int  # maximum length of an episode
    round_episodes: int
    total_updates: int  # per agent in the whole run, the end of schedules
    precision: str = "fp32"
    device: str = "cpu"
    threads: int = 1  # that the learner may use at once
    in_turn: bool = False  # as in GameSpec: an agent that does not act waits for the others, and no time passes for it

    @property
    def agents(self) -> int:
        """Number of agents the learner has."""
        return self.last - self.first

    @property
    def agent_numbers(self) -> NDArray[np.int64]:
        """Herd-wide numbers of its agents, (agents,)."""
        return np.arange(self.agents) + self.herd_first

    def select(self, fragments: Sequence[Fragment]) -> Fragment:
        """The learner's agents, from one fragment per group, as views: what `Learner.take` expects."""
        return slice_agents(fragments[self.group_index], self.first, self.last)


class Learner(ABC):
    """Takes fragments, updates its agents, gives out rows of weights. The module says who calls what when."""

    max_lag: int
    """Largest policy lag of the data it takes: versions between the weights that acted and those that learn."""
    metrics: tuple[str, ...]
    """Names of what `report` returns."""
    steps: NDArray[np.int64]
    """Gradient steps that each agent has made, (agents,); those that were skipped do not count."""
    keeps_views: bool = False
    """Whether `take` keeps views of the fragment's arrays until `update`, instead of copies."""
    incremental: bool = True
    """Whether `update` may be called several times per round, and again without a new fragment."""
    thread_pool_cpu_s: float = 0.0
    """Processor seconds spent in threads of its own so far."""

    def __init__(self, context: LearnerContext, options: Any) -> None:
        self.context = context
        self.options = options
        self.skipped_updates: list[SkippedUpdates] = []  # since the last `pop_skipped_updates`

    @classmethod
    @abstractmethod
    def options_type(cls) -> type[Options]:
        """The class of the learner's options, which validates them."""

    @classmethod
    @abstractmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """A policy that acts with this learner's rows, before any are loaded. Collectors and frozen players use it."""

    @classmethod
    def dense_flops(cls, group: Group, options: Any, agent: int) -> DenseFlops | None:
        """What networks of an agent, by its herd-wide number, need; None: unknown. Utilisation is computed from it."""
        del group, options, agent
        return None

    @abstractmethod
    def take(self, fragment: Fragment) -> None:
        """Keep what happened to this learner's agents; the fragment has no others."""

    @abstractmethod
    def update(self, count: int) -> None:
        """Make `planned_steps(count)` gradient steps for each agent; an agent without enough data makes none."""

    def planned_steps(self, count: int) -> NDArray[np.int64]:
        """Gradient steps that `update(count)` will make for each agent with enough data, from what was taken.

        That is `count`, unless the learner's own options decide.
        """
        return np.full(self.context.agents, count)

    @abstractmethod
    def rows(self) -> NDArray[np.float32]:
        """All that the policy needs to act, (agents, columns); a copy."""

    @abstractmethod
    def report(self) -> dict[str, NDArray[np.float64]]:
        """`metrics` of the updates since the last call, each (agents,); nan for an agent without updates."""

    @abstractmethod
    def skip(self, count: int) -> None:
        """Advance clocks as if `count` updates had been made; drop data that was taken for these updates alone."""

    @contextmanager
    def skip_on_error(self, count: int) -> Iterator[None]:
        """Turn an exception into `count` skipped updates, after which the learner continues with its weights."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() of a learner of one's own must not end training silently
            self.skip(count)
            first = self.context.herd_first
            reason = f"learning raised {type(error).__name__}: {message_of(error)}"
            self.skipped_updates.append(
                SkippedUpdates(
                    (first, first + self.context.agents), count, reason, format_traceback(error),
                    refusal=str(error) if isinstance(error, ConfigError) else "",
                )
            )  # fmt: skip

    def note_skipped_updates(self, counts: NDArray[np.int64], reason: str = "their gradients were not finite") -> None:
        """Report updates per agent, (agents,), that were not made, by default because of their gradients."""
        for agent in np.flatnonzero(counts):
            number = int(self.context.herd_first + agent)
            self.skipped_updates.append(SkippedUpdates((number, number + 1), int(counts[agent]), reason))

    def pop_skipped_updates(self) -> list[SkippedUpdates]:
        """Updates skipped since the last call."""
        skipped_updates, self.skipped_updates = self.skipped_updates, []
        return skipped_updates

    @abstractmethod
    def state(self) -> State:
        """Everything the next update depends on, one row per agent; may be views."""

    def check_state(self, state: State) -> None:
        """Raise CheckpointError unless shapes and types are those of our own state and all numbers are possible."""
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape or state[name].dtype != own.dtype:
                raise CheckpointError(
                    f"the checkpoint has no {name} of shape {own.shape} and type {own.dtype}: "
                    "it belongs to another herd"
                )
            if own.dtype.kind == "f" and not np.isfinite(state[name]).all():
                raise CheckpointError(f"the checkpoint has {name} that are not finite numbers")
            if name in COUNTERS and not ((state[name] >= 0) & (state[name] < MAX_COUNT)).all():
                raise CheckpointError(f"the checkpoint has {name} that are negative or impossibly large")

    @abstractmethod
    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from; calls `check_state` first."""

    def close(self) -> None:
        """End threads of its own, if it has any."""
        return

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes the learner holds for all its agents at most; asked before the run, to see whether it fits."""
