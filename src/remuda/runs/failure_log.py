"""The failure log of a run: what went wrong, and what is done about it; the same on every engine.

An episode that raises, or whose worker dies or hangs, is written down and played again, alone. An episode that fails
three times is given up and another one is played in its world, with a number that every engine chooses alike. Too many
failures end the run, after saving.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from remuda.core.errors import ConfigError, GameError, LearnerError, RunError, first_line
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Purpose
from remuda.core.options import Options
from remuda.core.plan import Plan
from remuda.core.saved_state import SavedState
from remuda.core.task import InvalidSample, Task
from remuda.runs.directory import CONSOLE_LOG
from remuda.runs.storage import shown

FAILURES = "failures"
"""The folder of a run with a JSON file and a file of actions for every failure."""
MAX_ATTEMPTS = 3
"""Times an episode is played before it is given up."""
MIN_FAILURES = 10
"""A run with fewer failures is never ended because of their share, unless its plan allows none at all."""
MAX_FAILED_ROUNDS = 3
"""Rounds in a row that a learner may fail to learn before the run ends."""
SUBSTITUTE = 1 << 40
"""Episodes from this number on stand in for episodes that were given up; no plan is that long."""


class FailureState(SavedState):
    """The part of the state of training that belongs to the failure log."""

    played: int = Field(0, ge=0)
    failures: int = Field(0, ge=0)
    given_up: list[int] = Field(default_factory=list)
    invalid_episodes: int = Field(0, ge=0)
    updates_skipped: int = Field(0, ge=0)
    attempts: list[tuple[str, int, int]] = Field(default_factory=list)  # purpose, episode, how often it failed
    first: str | None = None
    reported: dict[str, int] = Field(default_factory=dict)
    failed_rounds: list[tuple[int, int, int]] = Field(default_factory=list)  # agents first … last-1, rounds in a row
    skip_reasons: list[tuple[int, str]] = Field(default_factory=list)  # agent, why it skipped updates first


class FailureLog:
    """Counts failures, writes them down, and decides what is played instead and when the run has to end."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan, self.folder, self.say = plan, folder / FAILURES, say
        self.played = 0  # episodes played to their end
        self.failures = 0  # tasks that failed
        self.given_up: list[int] = []  # training episodes that failed too often
        self.invalid_episodes = 0  # episodes of one agent that it does not learn from
        self.updates_skipped = 0
        self._attempts: Counter[tuple[Purpose, int]] = Counter()
        self._first: str | None = None  # the first failure, in a sentence
        self._reported: Counter[str] = Counter()  # by kind
        self._failed_rounds: Counter[tuple[int, int]] = Counter()  # rounds in a row that agents failed to learn
        self._skip_reasons: dict[int, str] = {}  # why an agent skipped updates for the first time
        self._told_tracebacks: set[str] = set()

    def state(self) -> FailureState:
        """Everything that later decisions and the result depend on."""
        return FailureState(
            played=self.played,
            failures=self.failures,
            given_up=self.given_up.copy(),
            invalid_episodes=self.invalid_episodes,
            updates_skipped=self.updates_skipped,
            attempts=[(str(purpose), episode, count) for (purpose, episode), count in self._attempts.items()],
            first=self._first,
            reported=dict(self._reported),
            failed_rounds=[(first, last, rounds) for (first, last), rounds in self._failed_rounds.items()],
            skip_reasons=list(self._skip_reasons.items()),
        )

    def restore(self, state: FailureState) -> None:
        """Go on from `state`."""
        self.played, self.failures, self.given_up = state.played, state.failures, list(state.given_up)
        self.invalid_episodes, self.updates_skipped = state.invalid_episodes, state.updates_skipped
        self._attempts = Counter({(Purpose(purpose), episode): count for purpose, episode, count in state.attempts})
        self._first, self._reported = state.first, Counter(state.reported)
        self._failed_rounds = Counter({(first, last): rounds for first, last, rounds in state.failed_rounds})
        self._skip_reasons = dict(state.skip_reasons)

    def count(self, episodes: int, invalid_samples: Iterable[InvalidSample]) -> None:
        """Count episodes that were played to their end, and the invalid samples that were removed from them."""
        self.played += episodes
        for sample in invalid_samples:
            self.invalid_episodes += 1
            self._report("invalid sample", f"{sample}: agent {sample.agent} does not learn from this episode")

    def record(self, failure: TaskFailure) -> list[int]:
        """Write a failure down; returns the episodes to play instead of those of its task, one by one."""
        self.failures += 1
        task, number = failure.task, self._write(failure)
        text = f"{failure.message}; `remuda replay {self.folder.parent} --failure {number}` plays it again"
        self._first = self._first or text
        self._report("failure", f"failure {number}: {text}")
        share = self.plan.max_failures
        if self.failures > share * (self.failures + self.played) and self.failures >= (MIN_FAILURES if share else 1):
            raise GameError(
                f"{self.failures} failures and {self.played} episodes played to their end: more failures than "
                f"max_failures={share} allows; the first: {self._first}"
            )
        return [self._next_attempt(task.purpose, episode) for episode in task.episodes]

    def _next_attempt(self, purpose: Purpose, episode: int) -> int:
        """The episode again, or the one that stands in for it once it failed too often."""
        self._attempts[purpose, episode] += 1
        if self._attempts[purpose, episode] < MAX_ATTEMPTS:
            return episode
        # The same world, and a number that every engine chooses alike.
        other = episode + -(-SUBSTITUTE // self.plan.worlds) * self.plan.worlds
        if purpose is Purpose.TRAIN:
            self.given_up.append(episode)
        self.say(f"{purpose} episode {episode} failed {MAX_ATTEMPTS} times: given up, episode {other} replaces it")
        return other

    def note_skipped_updates(self, skipped_updates: Sequence[SkippedUpdates]) -> None:
        """Count the updates that learners skipped in a round.

        A learner that fails round after round ends the run, and one that remuda refuses ends it at once.
        """
        run, raised = self.folder.parent, {skipped.agents: skipped for skipped in skipped_updates if skipped.traceback}
        self._failed_rounds = Counter({agents: self._failed_rounds[agents] + 1 for agents in raised})
        for skipped in skipped_updates:
            if skipped.refusal:
                raise ConfigError(skipped.refusal)
            self.updates_skipped += skipped.updates
            if skipped.traceback:
                for agent in range(*skipped.agents):
                    self._skip_reasons.setdefault(agent, skipped.reason)
            is_new = skipped.traceback not in {"", *self._told_tracebacks}
            self._told_tracebacks.add(skipped.traceback)
            self._report("skipped update", str(skipped) + (f"\n{skipped.traceback}" if is_new else ""))
        for agents, skipped in raised.items():
            if self._failed_rounds[agents] >= MAX_FAILED_ROUNDS:
                raise LearnerError(
                    f"{skipped}; this was round {MAX_FAILED_ROUNDS} in a row. {shown(run / CONSOLE_LOG)} has the "
                    f"traceback; mend the learner, and `remuda resume {shown(run)}` goes on"
                )

    def check_learned(self, steps: Mapping[int, int]) -> None:
        """Raise if an agent made no update and its learner raised; `steps` are the updates made, by agent."""
        idle = [agent for agent in sorted(self._skip_reasons) if not steps.get(agent, 0)]
        if idle:
            who = f"agent {idle[0]}" if len(idle) == 1 else f"{len(idle)} agents, {idle[0]} the first of them,"
            raise LearnerError(
                f"{who} did not learn at all, because every update was skipped: {self._skip_reasons[idle[0]]}; "
                f"{shown(self.folder.parent)} has the weights of its start"
            )

    def _report(self, kind: str, text: str) -> None:
        """Say the first of a kind, the second, the fourth, the eighth …: the log of a long run stays readable."""
        self._reported[kind] += 1
        count = self._reported[kind]
        if count & (count - 1) == 0:
            self.say(text if count == 1 else f"{text} ({count} of this kind so far)")

    def _write(self, failure: TaskFailure) -> int:
        """Write what it takes to play the task again; a full disk does not end the run here. Returns its number."""
        task = failure.task
        try:
            self.folder.mkdir(exist_ok=True)
            number = max(_numbers(self.folder), default=0) + 1
            facts = FailureRecord(
                purpose=task.purpose, exploration=task.exploration, episodes=list(task.episodes),
                worlds=[episode % self.plan.worlds for episode in task.episodes], seed=self.plan.seed,
                worker=failure.worker, turn=failure.turn, message=failure.message, traceback=failure.traceback,
            )  # fmt: skip
            save_file({str(g): own for g, own in enumerate(failure.actions)}, self.folder / f"{number:04d}.safetensors")
            (self.folder / f"{number:04d}.json").write_text(facts.model_dump_json(indent=1), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            self.say(f"a failure could not be written to disk: {error}")
            return self.failures
        return number


class FailureRecord(Options):
    """A failure as it is written to disk."""

    purpose: Purpose
    exploration: float | None
    episodes: list[int] = Field(min_length=1)
    worlds: list[int]
    seed: int
    worker: str
    turn: int = Field(ge=0)
    message: str
    traceback: str

    @property
    def task(self) -> Task:
        """The task that failed."""
        return Task(tuple(self.episodes), self.purpose, self.exploration)


def _numbers(folder: Path) -> list[int]:
    """Numbers of the failures in a folder."""
    return [int(path.stem) for path in folder.glob("[0-9]*.json") if path.stem.isascii() and path.stem.isdigit()]


def read_failure(run: Path, number: int) -> tuple[FailureRecord, list[NDArray[np.int64]]]:
    """Failure `number` of a run, and its actions per group, (turns, worlds, agents)."""
    folder = run / FAILURES
    known = sorted(_numbers(folder))
    if number not in known:
        has = f"it has {known[0]} to {known[-1]}" if known else "it has none"
        raise RunError(f"{run} has no failure {number}: {has}")
    try:
        path = folder / f"{number:04d}.json"
        record = FailureRecord.read(json.loads(path.read_text(encoding="utf-8")), "the failure")
        arrays: dict[str, Any] = load_file(path.with_suffix(".safetensors"))
        actions = [arrays[str(g)] for g in range(len(arrays))]
        if not all(0 <= episode < 2**63 for episode in record.episodes) or any(
            own.dtype != np.int64 for own in actions
        ):
            raise ValueError("its episodes or actions are not what was written")
        return record, actions
    except Exception as error:  # the files are foreign: whatever their reader raises is about them
        raise RunError(f"failure {number} of {run} cannot be read: {first_line(error)}") from None
