"""What goes wrong in a run and what is done about it; the same on every engine.

An episode that raises, or whose worker dies or hangs over it, is written down and played again, alone. One
that fails three times is set aside, and another is played in its place: it has the same world and a number
beyond the plan's, so that every engine chooses the same one. Too many failures end the run, after saving.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from remuda.core.errors import GameError, LearnerError, RunError, first_line
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.fragment import Purpose
from remuda.core.options import Options
from remuda.core.plan import Plan
from remuda.core.task import InvalidSample, Task

FAILURES = "failures"
"""The directory of a run with one file of facts and one of actions for every failure."""
ATTEMPTS = 3
"""Times an episode is played before it is set aside."""
FEWEST = 10
"""Failures that end no run, unless its plan allows none at all."""
LAPSES = 3
"""Rounds in a row that a learner may fail to learn before the run ends."""


class FailureLog:
    """Keeps account of failures: writes them down, decides what is played instead, and when it is enough."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan, self.folder, self.say = plan, folder / FAILURES, say
        self.played = 0  # episodes
        self.failures = 0
        self.set_aside: list[int] = []  # episodes of training
        self.invalid_samples = 0  # episodes of an agent that it does not learn from
        self.skipped_updates = 0  # updates left out
        self._attempts: Counter[tuple[Purpose, int]] = Counter()
        self._first: str | None = None  # failure
        self._told: Counter[str] = Counter()
        self._in_a_row: Counter[tuple[int, int]] = Counter()  # rounds that agents failed to learn

    def count(self, episodes: int, invalid_samples: Iterable[InvalidSample]) -> None:
        """Episodes were played to the end, some of them with numbers nobody can learn from."""
        self.played += episodes
        for invalid_sample in invalid_samples:
            self.invalid_samples += 1
            self._say_seldom(
                "flaw",
                f"{invalid_sample}: agent {invalid_sample.agent} learns nothing from this episode, the others do",
            )

    def record(self, failure: TaskFailure) -> list[int]:
        """Write a failure down; returns the episodes to play for those of its task, one by one."""
        self.failures += 1
        task, number = failure.task, self._write(failure)
        told = f"{failure.message}; `remuda replay {self.folder.parent} --failure {number}` plays it again"
        self._first = self._first or told
        self._say_seldom("failure", f"failure {number}: {told}")
        most = self.plan.max_failures
        if self.failures > most * (self.failures + self.played) and self.failures >= (FEWEST if most else 1):
            raise GameError(
                f"{self.failures} failures beside {self.played} episodes played to their end are more than "
                f"max_failures={most} allows; the first: {self._first}"
            )
        return [self._next_try(task.purpose, episode) for episode in task.episodes]

    def _next_try(self, purpose: Purpose, episode: int) -> int:
        self._attempts[purpose, episode] += 1
        if self._attempts[purpose, episode] < ATTEMPTS:
            return episode
        other = episode + self._beyond()
        if purpose is Purpose.TRAIN:
            self.set_aside.append(episode)
        self.say(f"{purpose} episode {episode} failed {ATTEMPTS} times: set aside, episode {other} is played instead")
        return other

    def _beyond(self) -> int:
        """A number of episodes that leads past all planned ones, to the same world."""
        most = max(self.plan.total_episodes, self.plan.evaluate_episodes)
        return -(-most // self.plan.worlds) * self.plan.worlds

    def note_skipped_updates(self, skipped_updates: Sequence[SkippedUpdates]) -> None:
        """Updates left out in a round; a learner that fails round after round ends the run."""
        raised = {skipped.agents: skipped for skipped in skipped_updates if skipped.traceback}
        self._in_a_row = Counter({agents: self._in_a_row[agents] + 1 for agents in raised})
        for skipped in skipped_updates:
            self.skipped_updates += skipped.updates
            self._say_seldom("lapse", str(skipped) + (f"\n{skipped.traceback}" if skipped.traceback else ""))
        for agents, skipped in raised.items():
            if self._in_a_row[agents] >= LAPSES:
                raise LearnerError(f"{skipped}; so it went for {LAPSES} rounds\n{skipped.traceback}")

    def _say_seldom(self, kind: str, text: str) -> None:
        """The first of its kind, the second, the fourth, the eighth …: a night of them must still be readable."""
        self._told[kind] += 1
        count = self._told[kind]
        if count & (count - 1) == 0:
            self.say(text if count == 1 else f"{text} ({count} of this kind so far)")

    def _write(self, failure: TaskFailure) -> int:
        """Keep what it takes to play it again; a disk that is full must not end the run over it."""
        task = failure.task
        try:
            self.folder.mkdir(exist_ok=True)
            number = max(_numbers(self.folder), default=0) + 1
            facts = FailureRecord(
                purpose=task.purpose, exploration=task.exploration, episodes=list(task.episodes),
                worlds=[episode % self.plan.worlds for episode in task.episodes], seed=self.plan.seed,
                who=failure.worker, turn=failure.turn, what=failure.message, trace=failure.traceback,
            )  # fmt: skip
            save_file({str(g): own for g, own in enumerate(failure.actions)}, self.folder / f"{number:04d}.safetensors")
            (self.folder / f"{number:04d}.json").write_text(facts.model_dump_json(indent=1), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            self.say(f"a failure could not be written down: {error}")
            return self.failures
        return number


class FailureRecord(Options):
    """A failure as it is kept."""

    purpose: Purpose
    exploration: float | None
    episodes: list[int] = Field(min_length=1)
    worlds: list[int]
    seed: int
    who: str
    turn: int = Field(ge=0)
    what: str
    trace: str

    @property
    def task(self) -> Task:
        """What was being played."""
        return Task(tuple(self.episodes), self.purpose, self.exploration)


def _numbers(folder: Path) -> list[int]:
    """Of the failures in a folder."""
    return [int(path.stem) for path in folder.glob("[0-9]*.json") if path.stem.isascii() and path.stem.isdigit()]


def read_failure(run: Path, number: int) -> tuple[FailureRecord, list[NDArray[np.int64]]]:
    """The facts of failure `number` and its actions per group."""
    folder = run / FAILURES
    known = sorted(_numbers(folder))
    if number not in known:
        has = f"it has {known[0]} to {known[-1]}" if known else "it has none"
        raise RunError(f"{run} has no failure {number}: {has}")
    try:
        path = folder / f"{number:04d}.json"
        record = FailureRecord.read(json.loads(path.read_text(encoding="utf-8")), "its facts")
        arrays: dict[str, Any] = load_file(path.with_suffix(".safetensors"))
        actions = [arrays[str(g)] for g in range(len(arrays))]
        if not all(0 <= episode < 2**63 for episode in record.episodes) or any(
            own.dtype != np.int64 for own in actions
        ):
            raise ValueError("its episodes or actions are not what was written")
        return record, actions
    except Exception as error:  # the files are foreign: whatever their reader raises is about them
        raise RunError(f"failure {number} of {run} cannot be read: {first_line(error)}") from None
