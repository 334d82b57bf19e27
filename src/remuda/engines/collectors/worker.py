"""What workers do: play tasks into slots, with weights of their own or asking for every action."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from remuda.core import session
from remuda.core.errors import GameError, WorkerError
from remuda.core.failures import trace_of
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import Game, GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import UNVERSIONED, PolicyBinding
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
    """Everything a collecting worker needs; descriptors instead of arrays."""

    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    slot_array: SlotArray
    stores: dict[Purpose, WeightStore]
    sync_interval: int = 0  # turns between looks at the board; 0: only before an episode
    asking: bool = False  # ask for every action instead of having weights
    session_objects: Mapping[str, bytes] = field(default_factory=dict)  # of a plan that names some, pickled

    @property
    def config(self) -> RolloutConfig:
        """How turns are played."""
        return RolloutConfig.of(self.plan)

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Play what comes."""
        session.unpack(self.session_objects)
        CollectorWorker(self, connection, status).run()


class CollectorWorker:
    """Lives in a worker process."""

    def __init__(self, job: CollectJob, connection: Connection, status: WorkerStatus) -> None:
        self.job, self.status, self.connection = job, status, connection
        self.bindings = [bind_policy(part, job.plan, job.spec, job.device) for part in job.parts]
        self.rollouts = RolloutCache(find_game(job.plan.game), job.plan.options, job.config, self._make_rollout)
        self.readers = {purpose: WeightReader(store) for purpose, store in job.stores.items()}
        self._loaded: Purpose | None = None
        self._turn = 0

    def _make_rollout(self, game: Game) -> Rollout:
        if self.job.asking:
            return LockstepRollout(game, self.bindings, self.job.config, self)
        return Rollout(game, self.bindings, self.job.config)

    def run(self) -> None:
        """Until the connection closes."""
        self.connection.send(Ready())
        while True:
            self.status.beat(Phase.WAITING)
            began = time.perf_counter()
            with span("wait"):
                message: PlayTask = self.connection.recv()
            try:
                done: TaskPlayed | TaskFailed = self._play(message, time.perf_counter() - began)
            except GameError as error:
                self.rollouts.forget(message.task)
                done = TaskFailed(message.token, error.turn, str(error), trace_of(error))
            self.connection.send(done)

    def _play(self, order: PlayTask, waited_s: float) -> TaskPlayed:
        cpu = time.process_time()
        self.token, self.purpose = order.token, order.task.purpose
        self._turn = 0
        self.status.beat(Phase.PLAYING)
        rollout = self.rollouts.begin(order.task)
        out = self.job.slot_array.fragments(order.token.slot, order.task, self.job.config)
        with span("collect"):
            fragments = rollout.play(out, self._before_turn)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return TaskPlayed(
            order.token,
            fragments[0].turns,
            time.process_time() - cpu,
            waited_s,
            usage.ru_maxrss * 1024,
            rollout.invalid_samples,
        )

    def _before_turn(self) -> None:
        """Say that we live; look for newer weights if it is time."""
        self.status.beat(Phase.PLAYING, self._turn)
        if not self.job.asking and (
            self._turn == 0 or (self.job.sync_interval and self._turn % self.job.sync_interval == 0)
        ):
            self._look()
        self._turn += 1

    def _look(self) -> None:
        purpose = Purpose.TRAIN if self.purpose is Purpose.TRAIN else Purpose.EVALUATE
        reader = self.readers[purpose]
        moved = reader.refresh()
        for part in reader.rows if purpose is not self._loaded else moved:
            self.bindings[part].policy.load(reader.rows[part], reader.versions[part])
        self._loaded = purpose
        versions = [int(own.min()) for own in reader.versions.values()]
        self.status.heartbeats.note_version(self.status.index, min(versions, default=UNVERSIONED))


class LockstepRollout(Rollout):
    """Has its actions chosen at the other end of the pipe: they and all that belongs to them appear in the slot."""

    def __init__(
        self, game: Game, bindings: Sequence[PolicyBinding], config: RolloutConfig, collector: CollectorWorker
    ) -> None:
        super().__init__(game, bindings, config)
        self.collector = collector

    def ask(self, binding: PolicyBinding, fragment: Fragment, turn: int, keys: Keys, first: int, last: int) -> None:
        """Put the keys where they are read, ask, and wait for the answer."""
        worker = self.collector
        if not worker.job.parts[self.bindings.index(binding)].learns:
            super().ask(binding, fragment, turn, keys, first, last)
            return
        slot_array, token = worker.job.slot_array, worker.token
        slot_array.keys(token.slot, binding.group, len(fragment.origin.worlds))[:] = keys
        worker.status.beat(Phase.ASKING, turn)
        worker.connection.send(ActionRequest(token, turn, self.bindings.index(binding), first, last))
        with span("wait"):
            if not worker.connection.poll(limit_s := Limits.of(worker.job.plan).answer):
                raise WorkerError(f"no answer to a question within {limit_s:.0f} s")
            worker.connection.recv()
        worker.status.beat(Phase.PLAYING, turn)
