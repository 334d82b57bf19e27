"""Once more, in one process: a whole actor-learner run by the schedule it logged, or a failure by its actions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import GameError, RunError
from remuda.core.fragment import Fragment, slice_worlds
from remuda.core.game import Group
from remuda.core.policy import Policy, PolicyBinding, PolicyInput, PolicyOutput, actions_fit
from remuda.core.rounds import RoundCounter
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.interfaces import with_prefix
from remuda.engines.trainers.processes.schedule import SCHEDULE, batches
from remuda.engines.trainers.slices import AgentSlice, split
from remuda.games.registry import find_game
from remuda.learners.herd import assign, bind_policy, make_learner, weights_sha256
from remuda.learners.registry import find_learner
from remuda.rollout.cache import RolloutCache
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.directory import RunDirectory
from remuda.runs.failure_log import FailureRecord, read_failure
from remuda.runs.frozen import load_frozen


@dataclass(frozen=True)
class ScheduleEntry:
    """Some worlds of a task: which versions played them, and where each slice stood when it took them."""

    episodes: tuple[int, ...]
    worlds: tuple[int, int]
    versions: dict[int, list[list[int]]]  # by turn, where they change: per group and agent
    taken_at: list[int]  # per slice


def replay(path: Path | str, trust: bool = False) -> str:
    """Play and learn a finished actor-learner run again by the schedule it logged (`log_schedule=True`).

    Returns the fingerprint of the weights, which should be the `weights_sha256` of the run's result.
    """
    run = RunDirectory(path, trust=trust)
    with one_thread_each():
        return ScheduleReplay(run, *_read(run)).run()


def _read(run: RunDirectory) -> tuple[list[AgentSlice], list[ScheduleEntry]]:
    """The slices of the herd, learner after learner, and what happened."""
    path = run.path / SCHEDULE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        learners = [[tuple(own) for own in learner] for learner in json.loads(lines[0])["slices"]]
        if learners != split(run.parts, len(learners)):
            raise RunError(f"{path} is not of this herd: other agents learn together")
        slices = [own for learner in split(run.parts, len(learners)) for own in learner]
        events = [json.loads(line) for line in lines[1:]]
        entries = [_entry(event) for event in events if "saved" not in event]
    except OSError:
        raise RunError(f"{run.path} has no schedule to replay: train with log_schedule=true") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RunError(f"{path} is not a schedule: {error!r}") from None
    for number, (entry, bound) in enumerate(zip(entries, _max_learned(run, slices, entries), strict=True), 1):
        if not _fits(entry, run, bound):
            raise RunError(f"{path} is not of this plan: its entry {number} cannot have happened")
    return slices, entries


def _entry(values: dict[str, Any]) -> ScheduleEntry:
    return ScheduleEntry(
        tuple(int(episode) for episode in values["episodes"]),
        (int(values["worlds"][0]), int(values["worlds"][1])),
        {int(turn): [[int(version) for version in own] for own in now] for turn, now in values["versions"]},
        [int(version) for worker in values["taken_at"] for version in worker],
    )


def _fits(entry: ScheduleEntry, run: RunDirectory, max_learned: list[float]) -> bool:
    """Whether it can be played in this plan: everything that is an index or a count is checked here."""
    plan, spec = run.plan, run.spec
    sizes = [group.size for group in spec.groups]
    return (
        0 <= entry.worlds[0] < entry.worlds[1] <= len(entry.episodes) <= plan.worlds
        and all(0 <= episode < 2**63 for episode in entry.episodes)
        and 0 in entry.versions
        and all(0 <= turn < spec.turns for turn in entry.versions)
        and all([len(own) for own in now] == sizes for now in entry.versions.values())
        and len(entry.taken_at) == len(max_learned)
        and all(taken <= bound for taken, bound in zip(entry.taken_at, max_learned, strict=True))
    )


def _max_learned(run: RunDirectory, slices: list[AgentSlice], entries: list[ScheduleEntry]) -> list[list[float]]:
    """Per entry and slice, the last version there can have been: of whole rounds, unless learning never pauses."""
    plan = run.plan
    incremental = [find_learner(run.parts[part].player).incremental for part, _, _ in slices]
    agents = [run.parts[part].herd_first for part, _, _ in slices]
    learned, bounds, rounds = [0.0] * len(slices), [], RoundCounter(plan)
    for entry in entries:
        endless = plan.free_running and rounds.complete > 0
        bounds.append([math.inf if endless and own else now for own, now in zip(incremental, learned, strict=True)])
        if rounds.add(entry.worlds[1] - entry.worlds[0]):
            published = [
                len(batches(plan, own, rounds.complete, agent)) for own, agent in zip(incremental, agents, strict=True)
            ]
            learned = [now + new for now, new in zip(learned, published, strict=True)]
    return bounds


class RecordedActions(Policy):
    """Takes the actions somebody took before, (turns, worlds, agents, *action)."""

    def __init__(self, group: Group, actions: NDArray[Any]) -> None:
        super().__init__(group, group.size)
        self.actions = actions
        self._asked = np.zeros(group.size, np.int64)  # turns

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """The next of its actions; the last one again where they end."""
        turn = min(int(self._asked[first]), len(self.actions) - 1)
        self._asked[first:last] += 1
        return PolicyOutput(np.ascontiguousarray(self.actions[turn, :, first:last]))


def replay_failure(path: Path | str, number: int, trust: bool = False) -> tuple[FailureRecord, GameError | None]:
    """Play the episodes of failure `number` again, with the same random numbers and actions, in this process.

    Returns the failure as it was recorded, and the error that is raised this time; None if there is none.
    """
    run = RunDirectory(path, trust=trust)
    record, actions = read_failure(run.path, number)
    plan, spec, task = run.plan, run.spec, record.task
    if not actions:
        raise RunError(f"failure {number} of {run.path} kept no actions: they were lost with {record.worker}")
    shapes = [(len(task.episodes), group.size, *group.action_shape) for group in spec.groups]
    if [own.shape[1:] for own in actions] != shapes or any(len(own) != record.turn + 1 for own in actions):
        raise RunError(f"failure {number} of {run.path} is not of this plan: its actions have another shape")
    if not all(actions_fit(own, group) for own, group in zip(actions, spec.groups, strict=True)):
        raise RunError(f"failure {number} of {run.path} is not of this game: it has other actions")
    bindings = [
        PolicyBinding(g, 0, group.size, RecordedActions(group, actions[g])) for g, group in enumerate(spec.groups)
    ]
    config = RolloutConfig.of(plan)
    rollouts = RolloutCache(find_game(plan.game), plan.options, config, lambda game: Rollout(game, bindings, config))
    try:
        with one_thread_each():
            rollout = rollouts.begin(task)
            rollout.play(rollout.empty_fragments(record.turn + 1))
    except GameError as error:
        return record, error
    return record, None


class ScheduleReplay:
    """One process that is all the actors and all the learners of a run, one after the other."""

    def __init__(self, run: RunDirectory, slices: list[AgentSlice], entries: list[ScheduleEntry]) -> None:
        plan, spec = run.plan, run.spec
        self.plan, self.spec, self.slices, self.entries = plan, spec, slices, entries
        self.parts = load_frozen(assign(plan, spec), spec, run.trust)
        self.bindings = [bind_policy(part, plan, spec, "cpu") for part in self.parts]
        self.learners = [make_learner(self.parts[p], plan, spec, "cpu", (a, b)) for p, a, b in slices]
        if plan.warm_start is not None:
            warm_start_state = RunDirectory(plan.warm_start).warm_start_state()
            for learner, (part, first, last) in zip(self.learners, slices, strict=True):
                learner.restore(
                    {name: array[first:last] for name, array in with_prefix(warm_start_state, f"{part}/").items()}
                )
        self.rows = [{0: learner.rows()} for learner in self.learners]  # per slice, by version
        self.versions = [0] * len(slices)
        config = RolloutConfig.of(plan)
        self.rollouts = RolloutCache(
            find_game(plan.game), plan.options, config, lambda game: Rollout(game, self.bindings, config)
        )
        self._rounds = RoundCounter(plan)

    def run(self) -> str:
        """Everything, in order."""
        needed = self._needed()
        for entry, min_versions in zip(self.entries, needed, strict=True):
            self._catch_up(entry)
            self._learn(entry, self._play(entry))
            for kept, version in zip(self.rows, min_versions, strict=True):
                for old in [v for v in kept if v < version]:
                    del kept[old]
        for part, rows in self._newest().items():
            self.bindings[part].policy.load(rows, 0)
        return weights_sha256(binding.policy for binding in self.bindings)

    def _needed(self) -> list[list[int]]:
        """After each entry, the oldest version of every slice that anybody still plays with."""
        min_versions: list[list[int]] = []
        now = [np.iinfo(np.int64).max] * len(self.slices)
        for entry in reversed(self.entries):
            min_versions.append(now)
            used = [self._of_slices(versions) for versions in entry.versions.values()]
            now = [min(column) for column in zip(now, *used, strict=True)]
        return min_versions[::-1]

    def _of_slices(self, versions: list[list[int]]) -> list[int]:
        """The version each slice had, from those of groups and agents."""
        return [versions[self.parts[p].group][self.parts[p].first + a] for p, a, _ in self.slices]

    def _play(self, entry: ScheduleEntry) -> list[Fragment]:
        rollout = self.rollouts.begin(Task(entry.episodes))
        turns: Iterator[int] = iter(range(self.spec.turns))

        def before_turn() -> None:
            versions = entry.versions.get(next(turns))
            if versions is not None:
                self._load(self._of_slices(versions))

        return rollout.play(rollout.empty_fragments(), before_turn)

    def _load(self, versions: list[int]) -> None:
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for (part, _, _), kept, version in zip(self.slices, self.rows, versions, strict=True):
            if version not in kept:
                raise RunError(f"the schedule plays with a version that nobody has learned by then: {version}")
            rows.setdefault(part, []).append(kept[version])
        for part, own in rows.items():
            self.bindings[part].policy.load(np.concatenate(own), 0)

    def _catch_up(self, entry: ScheduleEntry) -> None:
        """Make the updates that slices made without new data before they took this entry.

        They come before the entry is played: an actor may have played it with the weights of any of them.
        """
        for index, taken_at in enumerate(entry.taken_at):
            while self.versions[index] < taken_at:
                self._update(index, self.plan.publish_interval)

    def _learn(self, entry: ScheduleEntry, fragments: list[Fragment]) -> None:
        """Let every slice take its part, and make the round's updates when it is complete."""
        for learner in self.learners:
            learner.take(slice_worlds(learner.context.select(fragments), slice(*entry.worlds)))
        if self._rounds.add(entry.worlds[1] - entry.worlds[0]):
            for index in range(len(self.learners)):
                self._learn_round(index)

    def _learn_round(self, index: int) -> None:
        own = self.learners[index]
        for count in batches(self.plan, own.incremental, self._rounds.complete, own.context.herd_first):
            self._update(index, count)

    def _update(self, index: int, count: int) -> None:
        self.learners[index].update(count)
        self.versions[index] += 1
        self.rows[index][self.versions[index]] = self.learners[index].rows()

    def _newest(self) -> dict[int, NDArray[np.float32]]:
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for (part, _, _), learner in zip(self.slices, self.learners, strict=True):
            rows.setdefault(part, []).append(learner.rows())
        return {part: np.concatenate(own) for part, own in rows.items()}
