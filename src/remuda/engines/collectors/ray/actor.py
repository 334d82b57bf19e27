"""The Ray actor that plays tasks."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from remuda.core import session
from remuda.core.errors import GameError
from remuda.core.failures import TaskFailure, format_traceback
from remuda.core.fragment import Fragment
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.task import InvalidSample, Task
from remuda.core.threads import one_thread_each
from remuda.core.timeline import span
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.warm_up import warm_up_rollouts
from remuda.games.registry import find_game
from remuda.learners.herd import Part, bind_policy
from remuda.rollout.cache import RolloutCache
from remuda.rollout.config import RolloutConfig, empty_fragments
from remuda.rollout.rollout import Rollout


@dataclass(frozen=True)
class TaskResult:
    """What an actor returns for a task: its fragments, or why there are none."""

    fragments: Sequence[Fragment]
    failure: TaskFailure | None
    invalid_samples: Sequence[InvalidSample]
    cpu_s: float
    peak_bytes: int


class RolloutActor:
    """Runs in a process of Ray, perhaps on another node: has worlds and policies, and the weights it fetched last."""

    def __init__(
        self,
        name: str,
        path: Sequence[str],
        plan: Plan,
        parts: Sequence[Part],
        spec: GameSpec,
        device: str,
        session_objects: Mapping[str, bytes],
    ) -> None:
        sys.path.extend(place for place in path if place not in sys.path)  # to import a user's game
        session.unpack(session_objects)  # after the path is set: they may import modules of the user
        self.name, self.spec, self.config = name, spec, RolloutConfig.of(plan)
        self.bindings = [bind_policy(part, plan, spec, device) for part in parts]
        self.rollouts = RolloutCache(
            find_game(plan.game), plan.options, self.config, lambda game: Rollout(game, self.bindings, self.config)
        )
        # What is compiled or loaded on first use would make the first turn look as if the actor hung.
        with suppress(Exception), one_thread_each():
            warm_up_rollouts(plan, spec)
        self._loaded = -1  # number of the weights that the policies have
        self._turns = 0  # begun, in all tasks
        self._turn = 0  # of the current task

    def node_id(self) -> str:
        """The node this actor runs on."""
        return str(require_ray().get_runtime_context().get_node_id())

    def progress(self) -> tuple[int, int]:
        """Turns begun in all, and the turn of the current task.

        It runs in a concurrency group of its own, so it answers while `play` is running.
        """
        return self._turns, self._turn

    def play(self, task: Task, number: int, version: int, weights: Sequence[Any]) -> TaskResult:
        """Play a task with the weights of this number, which are fetched unless they are loaded already.

        `weights` is a list with one reference. Ray would fetch a bare reference before every call, and one in a list
        not at all: so they are fetched once per version. An error of the game is part of the result, so that an error
        that Ray raises is never the game's.
        """
        torch.set_num_threads(1)  # for this thread: Ray may have built the actor in another one
        cpu = time.thread_time()
        if number != self._loaded:
            for part, rows in require_ray().get(weights[0]).items():
                self.bindings[part].policy.load(rows, version)
            self._loaded = number
        self._turn = -1
        out = empty_fragments(self.spec, self.bindings, self.config, task)
        fragments: Sequence[Fragment] = ()
        invalid_samples: Sequence[InvalidSample] = ()
        failure = None
        try:
            rollout = self.rollouts.begin(task)
            with span("collect"):
                fragments, invalid_samples = rollout.play(out, self._before_turn), rollout.invalid_samples
        except GameError as error:
            self.rollouts.forget(task)
            failure = TaskFailure.of(task, self.name, error.turn, f"{self.name}: {error}", format_traceback(error), out)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return TaskResult(fragments, failure, invalid_samples, time.thread_time() - cpu, peak)

    def _before_turn(self) -> None:
        self._turns += 1
        self._turn += 1
