"""Who plays in an actor: threads, or processes that are forked from one that has imported everything.

A process of Ray holds more than 200 MiB, most of it what torch makes when it is imported. So an actor that claims
several cores is one process of Ray with several players. Threads share all of it. They are of no use to a game that is
played world by world in Python, which holds the GIL: there the players are processes, forked as those of `executor`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

import numpy as np

from remuda.core.fragment import Fragment, Purpose, slice_worlds
from remuda.core.game import GameSpec, StepCost
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.ranges import split_evenly
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.inline import InlineCollectors
from remuda.engines.collectors.pool import PoolCollectors, PoolConfig
from remuda.engines.collectors.warm_up import warm_up_request, warm_up_rollouts
from remuda.engines.interfaces import Delivery, Rows
from remuda.games.registry import find_game
from remuda.learners.herd import Part
from remuda.rollout.config import RolloutConfig, empty_fragments
from remuda.transport.heartbeat import Limits
from remuda.transport.processes import processes_forbidden
from remuda.transport.worker_pool import WorkerPool


def player_count(plan: Plan) -> int:
    """Players in an actor: as many as the cores it claims."""
    return max(1, int(plan.actor_cpus))


def are_processes(plan: Plan) -> bool:
    """Whether several players of an actor have to be processes."""
    by_world = find_game(plan.game).step_cost_of(plan.options) is not StepCost.BATCHED
    return player_count(plan) > 1 and by_world and not plan.actor_gpus and processes_forbidden() is None


class Players(ABC):
    """Play a task together."""

    @abstractmethod
    def play(self, task: Task) -> list[Delivery]:
        """Play a task: one delivery of all its worlds, or several of which one at least is a failure."""

    @abstractmethod
    def publish(self, rows: Rows, version: int) -> None:
        """Act with these weights from now on."""

    @abstractmethod
    def progress(self) -> tuple[float, int]:
        """A number that grows with every turn, and the turn of the current task; called from another thread."""

    @property
    @abstractmethod
    def cpu_s(self) -> float:
        """Processor time of all that was played."""


class ThreadPlayers(Players):
    """Threads share a task's worlds and the policies, as in one process."""

    def __init__(self, plan: Plan, spec: GameSpec, bindings: Sequence[PolicyBinding]) -> None:
        self._threads = player_count(plan)
        self._collectors = InlineCollectors(
            entry=find_game(plan.game),
            spec=spec,
            options=plan.options,
            bindings=bindings,
            config=RolloutConfig.of(plan),
            threads=self._threads,
            stop=self._before_turn,
        )
        self._collectors.start()
        self._turns = 0  # begun, in all tasks
        self._turn = 0  # of the current task, counted by every thread
        # What is compiled or loaded on first use would make the first turn look as if the actor hung.
        with suppress(Exception), one_thread_each():
            warm_up_rollouts(plan, spec)

    def _before_turn(self) -> None:
        self._turns += 1
        self._turn += 1

    def play(self, task: Task) -> list[Delivery]:
        """Play a task; threads write into fragments that they share."""
        self._turn = -1
        self._collectors.send(task)
        deliveries = [self._collectors.recv(0.0)]
        while self._collectors.has_more:
            deliveries.append(self._collectors.recv(0.0))
        return deliveries

    def publish(self, rows: Rows, version: int) -> None:
        """Load the weights into the policies."""
        self._collectors.publish(rows, version)

    def progress(self) -> tuple[float, int]:
        """Turns begun in all, and the turn of the current task."""
        return self._turns, self._turn // self._threads

    @property
    def cpu_s(self) -> float:
        """Processor time of all threads."""
        return self._collectors.spent.cpu


class ProcessPlayers(Players):
    """Processes have some of a task's worlds each; one that dies or hangs is replaced here, and its task has failed."""

    def __init__(
        self,
        plan: Plan,
        spec: GameSpec,
        parts: Sequence[Part],
        bindings: Sequence[PolicyBinding],
        device: str,
        task_episodes: int,
    ) -> None:
        """`task_episodes` is the largest number of episodes in a task."""
        self._spec, self._bindings, self._config = spec, bindings, RolloutConfig.of(plan)
        self._count = min(player_count(plan), task_episodes)
        self.pool = WorkerPool(lambda: None, limits=Limits.of(plan), warm_up_request=warm_up_request(plan, spec))
        size = PoolConfig(self._count, -(-task_episodes // self._count), slots=self._count, tasks_per_worker=1)
        self.collectors = PoolCollectors(plan, spec, list(parts), list(bindings), device, size, self.pool)
        self.collectors.start()

    def play(self, task: Task) -> list[Delivery]:
        """Play a task, and copy what the processes played from their slots into fragments of all worlds."""
        for first, last in split_evenly(len(task.episodes), min(self._count, len(task.episodes))):
            self.collectors.send(Task(task.episodes[first:last], task.purpose, task.exploration))
        parts = [self.collectors.recv(math.inf) for _ in range(min(self._count, len(task.episodes)))]
        try:
            return [own for own in parts if own.failure is not None] or [self._join(task, parts)]
        finally:
            for own in parts:
                own.release()

    def _join(self, task: Task, parts: Sequence[Delivery]) -> Delivery:
        out = empty_fragments(self._spec, self._bindings, self._config, task)
        for own in parts:
            first = task.episodes.index(own.task.episodes[0])
            worlds = slice(first, first + len(own.task.episodes))
            for whole, piece in zip(out, own.fragments, strict=True):
                copy_into(slice_worlds(whole, worlds, piece.turns), piece)
        turns = max(own.fragments[0].turns for own in parts)
        invalid_samples = [sample for own in parts for sample in own.invalid_samples]
        fragments = [slice_worlds(whole, slice(None), turns) for whole in out]
        return Delivery(task, fragments, invalid_samples=invalid_samples)

    def publish(self, rows: Rows, version: int) -> None:
        """Write the weights where the processes read them; they are those of whatever is played next."""
        for purpose in (Purpose.TRAIN, Purpose.EVALUATE):
            self.collectors.publish(rows, version, purpose)

    def progress(self) -> tuple[float, int]:
        """When one of them last began a turn, and the furthest turn."""
        beats = self.pool.heartbeats
        return beats.newest(), max(beats.last_beat(player)[1] for player in range(self._count))

    @property
    def cpu_s(self) -> float:
        """Processor time of all tasks that were played."""
        return self.collectors.spent.cpu


def copy_into(target: Fragment, source: Fragment) -> None:
    """Copy all arrays of a fragment into those of another one of the same shape."""
    for field in fields(source):
        if isinstance(value := getattr(source, field.name), np.ndarray):
            getattr(target, field.name)[...] = value
    for name, extra in source.extras.items():
        target.extras[name][...] = extra


def make_players(
    plan: Plan,
    spec: GameSpec,
    parts: Sequence[Part],
    bindings: Sequence[PolicyBinding],
    device: str,
    task_episodes: int,
) -> Players:
    """The players of an actor."""
    if are_processes(plan) and task_episodes > 1:
        return ProcessPlayers(plan, spec, parts, bindings, device, task_episodes)
    return ThreadPlayers(plan, spec, bindings)
