"""The Ray actor that plays tasks."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from remuda.core import session
from remuda.core.errors import first_line
from remuda.core.failures import TaskFailure
from remuda.core.fragment import Fragment, copy_fragment, slice_agents
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.task import InvalidSample, Task
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.players import make_players
from remuda.engines.collectors.ray.remote import Cut, node_errors
from remuda.engines.collectors.ray.weights import FetchedWeights
from remuda.engines.summary import EpisodeSummary
from remuda.learners.herd import Part, bind_policy


@dataclass(frozen=True)
class TaskResult:
    """What an actor returns for a task: its fragments, references to them, or why there are none."""

    cpu_s: float
    peak_bytes: int
    fragments: Sequence[Fragment] = ()
    references: Sequence[Any] = ()  # to the fragments of each learner, where learners are actors too
    summaries: Sequence[EpisodeSummary] = ()  # one per group, beside references
    bytes: int = 0  # of what the references stand for
    failure: TaskFailure | None = None
    invalid_samples: Sequence[InvalidSample] = ()
    weights_lost: str = ""  # why the weights could not be fetched; then nothing was played


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
        task_episodes: int,
    ) -> None:
        """`task_episodes` is the largest number of episodes in a task."""
        sys.path.extend(place for place in path if place not in sys.path)  # to import a user's game
        # The program of this process is Ray's. Players that are processes would import it, and Ray with it.
        vars(sys.modules["__main__"]).pop("__file__", None)
        session.unpack(session_objects)  # after the path is set: they may import modules of the user
        self.name = name
        self.bindings = [bind_policy(part, plan, spec, device) for part in parts]
        self._players = make_players(plan, spec, parts, self.bindings, device, task_episodes)
        self._weights = FetchedWeights(
            {index: np.zeros_like(self.bindings[index].policy.rows) for index, part in enumerate(parts) if part.learns}
        )

    def node_id(self) -> str:
        """The node this actor runs on."""
        return str(require_ray().get_runtime_context().get_node_id())

    def progress(self) -> tuple[float, int]:
        """A number that grows with every turn, and the turn of the current task.

        It runs in a concurrency group of its own, so it answers while `play` is running.
        """
        return self._players.progress()

    def play(self, task: Task, version: int, weights: Sequence[Any], cuts: Sequence[Sequence[Cut]]) -> TaskResult:
        """Play a task with weights, of which those are fetched that are not loaded already.

        `weights` is a list of references. Ray would fetch a bare reference before every call, and one in a list not at
        all: so each is fetched once. `cuts` says which agents each learner has; without it the fragments are returned.
        An error of the game is part of the result, so that an error that Ray raises is never the game's.
        """
        torch.set_num_threads(1)  # for this thread: Ray may have built the actor in another one
        before = self._players.cpu_s
        try:
            if self._weights.fetch(version, weights):
                self._players.publish(self._weights.rows, version)
        except require_ray().exceptions.RayError as error:
            return TaskResult(0.0, _peak_bytes(), weights_lost=first_line(error))
        result = replace(self._play(task), peak_bytes=_peak_bytes())
        if cuts and result.failure is None:
            result = self._put(result, cuts)
        return replace(result, cpu_s=self._players.cpu_s - before)

    def _play(self, task: Task) -> TaskResult:
        """Play a task; it fails as a whole if one of the players fails."""
        deliveries = self._players.play(task)
        failure = next((own.failure for own in deliveries if own.failure is not None), None)
        if failure is not None:
            message = f"{self.name}: {failure.message}"
            return TaskResult(0.0, 0, failure=replace(failure, task=task, worker=self.name, message=message))
        (delivery,) = deliveries
        return TaskResult(0.0, 0, delivery.fragments, invalid_samples=delivery.invalid_samples)

    def _put(self, result: TaskResult, cuts: Sequence[Sequence[Cut]]) -> TaskResult:
        """Put the agents of each learner into this node's store, in an object of their own.

        Ray sends small values that an actor returns to the caller; what is put stays on the node, however small.
        """
        references, total = [], 0
        for own in cuts:
            pieces = [
                copy_fragment(slice_agents(result.fragments[group], first, last)) for group, first, last in own
            ]  # copies: a view would be sent with everything it is a view of
            total += sum(array_bytes(piece) for piece in pieces)
            with node_errors():
                references.append(require_ray().put(pieces))
        summaries = [EpisodeSummary.of(fragment) for fragment in result.fragments]
        return replace(result, fragments=(), references=references, summaries=summaries, bytes=total)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def array_bytes(fragment: Fragment) -> int:
    """Bytes of all arrays of a fragment."""
    values = [getattr(fragment, field.name) for field in fields(fragment)]
    arrays = [value for value in (*values, *fragment.extras.values()) if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays)
