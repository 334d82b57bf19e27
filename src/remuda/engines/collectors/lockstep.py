"""Collecting in worker processes that take every turn together: one batched inference for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment, Purpose
from remuda.core.policy import Policy, PolicyInput
from remuda.core.timeline import span
from remuda.engines.collectors.messages import ActionRequest, ActionsReady
from remuda.engines.collectors.pool import PoolCollectors
from remuda.engines.interfaces import Rows
from remuda.rollout.frames import frame_window
from remuda.transport.heartbeat import WorkerExit
from remuda.transport.worker_pool import Worker


class BatchKey(NamedTuple):
    """What requests have in common that one inference can answer."""

    binding: int
    first: int
    last: int
    exploration: float | None


class LockstepCollectors(PoolCollectors):
    """Workers only have worlds: they request actions here, and all requests of a turn are answered at once.

    With `wait_for` below 1 the first requests are answered without waiting for the slowest worker. The actions do not
    depend on which requests are answered together.
    """

    def __init__(self, *args: Any, wait_for: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wait_for = wait_for
        self._requests: dict[int, tuple[Worker, ActionRequest]] = {}  # by index of the worker

    def _on_message(self, worker: Worker, message: Any) -> None:
        if isinstance(message, ActionRequest):
            self._requests[worker.index] = (worker, message)
            worker.busy = False  # it waits for us: no heartbeat is expected
        super()._on_message(worker, message)
        self._answer_if_enough()

    def _on_worker_lost(self, worker: Worker, worker_exit: WorkerExit) -> None:
        self._requests.pop(worker.index, None)
        super()._on_worker_lost(worker, worker_exit)
        self._answer_if_enough()  # the others may have waited for the lost one only

    def _answer_if_enough(self) -> None:
        playing = {pending.worker.index for pending in self._pending.values()}
        if not self._requests or len(self._requests) < self._wait_for * len(playing):
            return
        requests, self._requests = self._requests, {}
        batches: dict[BatchKey, list[tuple[Worker, ActionRequest]]] = defaultdict(list)
        for worker, request in requests.values():
            exploration = self._pending[request.token].task.exploration
            batches[BatchKey(request.binding, request.first, request.last, exploration)].append((worker, request))
        for key, batch in batches.items():
            self._choose_actions(key, [request for _, request in batch])
            for worker, _ in batch:
                worker.busy = True
                self.worker_pool.send(worker, ActionsReady())

    def _choose_actions(self, key: BatchKey, requests: Sequence[ActionRequest]) -> None:
        """Choose actions for all worlds of a batch, and write them into the slots the requests came from."""
        binding, first, last = self.bindings[key.binding], key.first, key.last
        policy = binding.policy
        slots = [(request, self._fragment(request, binding.group)) for request in requests]
        masks = [f.mask[request.turn, :, first:last] for request, f in slots if f.mask is not None]
        inputs = PolicyInput(
            obs=np.concatenate([frame_window(f, r.turn, policy.frames, first, last) for r, f in slots], axis=1),
            ages=np.concatenate([f.ages[request.turn, :, first:last] for request, f in slots]),
            mask=np.concatenate(masks) if masks else None,
            keys=np.concatenate([self._keys(request, f)[:, first:last] for request, f in slots]),
            exploration=key.exploration,
            memory=np.concatenate([self._memory(request, f, policy) for request, f in slots])
            if policy.memory_size
            else None,
        )
        with span("infer"):
            output = policy.act(inputs, first - binding.first, last - binding.first)
        row = 0
        for request, fragment in slots:
            rows = slice(row, row + len(fragment.origin.worlds))
            fragment.actions[request.turn, :, first:last] = output.actions[rows]
            fragment.versions[request.turn, first:last] = policy.versions[first - binding.first : last - binding.first]
            for name, values in output.extras.items():
                fragment.extras[name][request.turn, :, first:last] = values[rows]
            if output.memory is not None:
                self._memory(request, fragment, policy)[:] = output.memory[rows]
            row = rows.stop

    def _fragment(self, request: ActionRequest, group: int) -> Fragment:
        """The fragment that the requesting worker plays into."""
        return self._fragments(self._pending[request.token])[group]

    def _keys(self, request: ActionRequest, fragment: Fragment) -> NDArray[np.uint64]:
        """The random keys of the request, (worlds, agents)."""
        keys: NDArray[np.uint64] = self.slot_array.keys(
            request.token.slot, fragment.origin.group, len(fragment.origin.worlds)
        )
        return keys

    def _memory(self, request: ActionRequest, fragment: Fragment, policy: Policy) -> NDArray[np.float32]:
        """The recurrent states of the requesting agents in the slot, (worlds, agents, numbers), as a view."""
        whole: NDArray[np.float32] = self.slot_array.memory_now(
            request.token.slot, fragment.origin.group, len(fragment.origin.worlds)
        )
        return whole[:, request.first : request.last, : policy.memory_size]

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Load the rows here, where actions are chosen."""
        with span("publish"):
            for part, part_rows in rows.items():
                self.bindings[part].policy.load(part_rows, version)
