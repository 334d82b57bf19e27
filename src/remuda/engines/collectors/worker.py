"""A collecting worker: plays tasks into slots, with weights of its own or with actions requested from the loop."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from remuda.core import session
from remuda.core.errors import GameError, WorkerError
from remuda.core.failures import format_traceback
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import Game, GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Keys
from remuda.core.timeline import span
from remuda.engines.collectors.messages import ActionRequest, PlayTask, TaskFailed, TaskPlayed
from remuda.games.registry import find_game
from remuda.learners.herd import Part, bind_policy
from remuda.rollout.cache import RolloutCache
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.transport.heartbeat import Limits, Phase, WorkerStatus
from remuda.transport.slots import SlotArray
from remuda.transport.weights import WeightReader, WeightStore
from remuda.transport.worker_process import Ready


@dataclass(frozen=True)
class CollectJob:
    """Everything a collecting worker needs; slots and weights are passed as descriptors, not as arrays."""

    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    slot_array: SlotArray
    stores: dict[Purpose, WeightStore]
    sync_interval: int = 0  # turns between refreshes of the weights; 0: only before an episode
    central_inference: bool = False  # request every action from the loop instead of having weights
    session_objects: Mapping[str, bytes] = field(default_factory=dict)  # objects of a Python session, pickled

    @property
    def config(self) -> RolloutConfig:
        """How turns are played."""
        return RolloutConfig.of(self.plan)

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Play tasks until the connection closes."""
        session.unpack(self.session_objects)
        CollectorWorker(self, connection, status).run()


class CollectorWorker:
    """Runs in a worker process."""

    def __init__(self, job: CollectJob, connection: Connection, status: WorkerStatus) -> None:
        self.job, self.status, self.connection = job, status, connection
        self.bindings = [bind_policy(part, job.plan, job.spec, job.device) for part in job.parts]
        self.rollouts = RolloutCache(find_game(job.plan.game), job.plan.options, job.config, self._make_rollout)
        self.readers = {purpose: WeightReader(store) for purpose, store in job.stores.items()}
        self._loaded: Purpose | None = None  # whose weights the policies have
        self._turn = 0

    def _make_rollout(self, game: Game) -> Rollout:
        if self.job.central_inference:
            return LockstepRollout(game, self.bindings, self.job.config, self)
        return Rollout(game, self.bindings, self.job.config)

    def run(self) -> None:
        """Play tasks until the connection closes."""
        self.connection.send(Ready())
        while True:
            self.status.beat(Phase.WAITING)
            began = time.perf_counter()
            with span("wait"):
                message: PlayTask = self.connection.recv()
            try:
                reply: TaskPlayed | TaskFailed = self._play(message, time.perf_counter() - began)
            except GameError as error:
                self.rollouts.forget(message.task)
                reply = TaskFailed(message.token, error.turn, str(error), format_traceback(error))
            self.connection.send(reply)

    def _play(self, message: PlayTask, waited_s: float) -> TaskPlayed:
        cpu = time.process_time()
        self.token, self.purpose = message.token, message.task.purpose
        self._turn = 0
        self.status.beat(Phase.PLAYING)
        rollout = self.rollouts.begin(message.task)
        out = self.job.slot_array.fragments(message.token.slot, message.task, self.job.config)
        with span("collect"):
            fragments = rollout.play(out, self._before_turn)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return TaskPlayed(
            message.token,
            fragments[0].turns,
            time.process_time() - cpu,
            waited_s,
            usage.ru_maxrss * 1024,
            rollout.invalid_samples,
        )

    def _before_turn(self) -> None:
        """Send a heartbeat; refresh the weights if it is time."""
        self.status.beat(Phase.PLAYING, self._turn)
        if not self.job.central_inference and (
            self._turn == 0 or (self.job.sync_interval and self._turn % self.job.sync_interval == 0)
        ):
            self._refresh_weights()
        self._turn += 1

    def _refresh_weights(self) -> None:
        purpose = Purpose.TRAIN if self.purpose is Purpose.TRAIN else Purpose.EVALUATE
        reader = self.readers[purpose]
        changed = reader.refresh()
        # The policies may hold the weights of the other purpose: then also rows that did not change are loaded.
        for part in reader.rows if purpose is not self._loaded else changed:
            self.bindings[part].policy.load(reader.rows[part], reader.versions[part])
        self._loaded = purpose


class LockstepRollout(Rollout):
    """A rollout whose actions are chosen in the loop's process, which writes them into the slot."""

    def __init__(
        self, game: Game, bindings: Sequence[PolicyBinding], config: RolloutConfig, collector: CollectorWorker
    ) -> None:
        super().__init__(game, bindings, config)
        self.collector = collector

    def choose_actions(
        self, binding: PolicyBinding, fragment: Fragment, turn: int, keys: Keys, first: int, last: int
    ) -> None:
        """Write the random keys into the slot, request actions, and wait until they are there.

        Between the request and the reply this worker does not touch the slot, so the loop may read and write it: the
        two messages hand the slot over and back.
        """
        worker = self.collector
        if not worker.job.parts[self.bindings.index(binding)].learns:
            super().choose_actions(binding, fragment, turn, keys, first, last)
            return
        slot_array, token = worker.job.slot_array, worker.token
        worlds, memory = len(fragment.origin.worlds), self._memory_of(binding, fragment, turn, first, last)
        slot_array.keys(token.slot, binding.group, worlds)[:] = keys
        if memory is not None:
            slot_array.memory_now(token.slot, binding.group, worlds)[:, first:last, : memory.shape[2]] = memory
        worker.status.beat(Phase.AWAITING_ACTIONS, turn)
        worker.connection.send(ActionRequest(token, turn, self.bindings.index(binding), first, last))
        with span("wait"):
            if not worker.connection.poll(limit_s := Limits.of(worker.job.plan).reply):
                raise WorkerError(f"no actions arrived within {limit_s:.0f} s of the request")
            worker.connection.recv()
        if memory is not None:
            now = slot_array.memory_now(token.slot, binding.group, worlds)[:, first:last, : memory.shape[2]]
            acted = fragment.alive[turn, :, first:last]
            memory[acted] = now[acted]
        worker.status.beat(Phase.PLAYING, turn)
