"""Collecting in worker processes that take every turn together: one batched inference for all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment, Purpose
from remuda.core.policy import PolicyInput
from remuda.core.timeline import span
from remuda.engines.collectors.messages import ActionRequest, ActionsReady
from remuda.engines.collectors.pool import PoolCollectors
from remuda.engines.interfaces import Rows
from remuda.transport.heartbeat import WorkerExit
from remuda.transport.worker_pool import Worker


class LockstepCollectors(PoolCollectors):
    """The workers only have worlds: they ask here for actions, and all get them at once.

    With `wait_for` below 1 the first that ask are answered without waiting for the slowest. What they are
    told does not depend on who else asked.
    """

    def __init__(self, *args: Any, wait_for: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wait_for = wait_for
        self._asking: dict[int, tuple[Worker, ActionRequest]] = {}  # by worker

    def _hear(self, worker: Worker, message: Any) -> None:
        if isinstance(message, ActionRequest):
            self._asking[worker.index] = (worker, message)
            worker.busy = False  # it waits for us now
        super()._hear(worker, message)
        self._answer_if_enough()

    def _lose(self, worker: Worker, last: WorkerExit) -> None:
        self._asking.pop(worker.index, None)
        super()._lose(worker, last)
        self._answer_if_enough()

    def _answer_if_enough(self) -> None:
        playing = {dealt.worker.index for dealt in self._dealt.values()}
        if self._asking and len(self._asking) >= self._wait_for * len(playing):
            asking, self._asking = self._asking, {}
            alike: dict[tuple[int, int, int, float | None], list[tuple[Worker, ActionRequest]]] = defaultdict(list)
            for worker, ask in asking.values():
                exploration = self._dealt[ask.token].task.exploration
                alike[ask.binding, ask.first, ask.last, exploration].append((worker, ask))
            for (binding, first, last, exploration), asked in alike.items():
                self._answer(binding, first, last, exploration, [ask for _, ask in asked])
                for worker, _ in asked:
                    worker.busy = True
                    self.worker_pool.send(worker, ActionsReady())

    def _answer(
        self, binding: int, first: int, last: int, exploration: float | None, asks: list[ActionRequest]
    ) -> None:
        """Choose for all worlds at once, and write it where each would have written it."""
        who = self.bindings[binding]
        policy, places = who.policy, [self._place(ask, who.group) for ask in asks]
        masks = [f.mask[ask.turn, :, first:last] for f, ask in zip(places, asks, strict=True) if f.mask is not None]
        inputs = PolicyInput(
            obs=np.concatenate([_window(f, ask, policy.frames) for f, ask in zip(places, asks, strict=True)], axis=1),
            ages=np.concatenate([f.ages[ask.turn, :, first:last] for f, ask in zip(places, asks, strict=True)]),
            mask=np.concatenate(masks) if masks else None,
            keys=np.concatenate(
                [self._keys(ask, who.group, f)[:, first:last] for f, ask in zip(places, asks, strict=True)]
            ),
            exploration=exploration,
        )
        with span("infer"):
            choice = policy.act(inputs, first - who.first, last - who.first)
        row = 0
        for fragment, ask in zip(places, asks, strict=True):
            rows = slice(row, row + len(fragment.origin.worlds))
            fragment.actions[ask.turn, :, first:last] = choice.actions[rows]
            fragment.versions[ask.turn, first:last] = policy.versions[first - who.first : last - who.first]
            for name, values in choice.extras.items():
                fragment.extras[name][ask.turn, :, first:last] = values[rows]
            row = rows.stop

    def _place(self, ask: ActionRequest, group: int) -> Fragment:
        return self.slot_array.fragments(ask.token.slot, self._dealt[ask.token].task, self.config)[group]

    def _keys(self, ask: ActionRequest, group: int, fragment: Fragment) -> NDArray[np.uint64]:
        keys: NDArray[np.uint64] = self.slot_array.keys(ask.token.slot, group, len(fragment.origin.worlds))
        return keys

    def publish(self, rows: Rows, version: int, purpose: Purpose = Purpose.TRAIN) -> None:
        """Load them: we choose for everybody."""
        with span("publish"):
            for part, own in rows.items():
                self.bindings[part].policy.load(own, version)

    def oldest(self) -> int | None:
        """Nobody plays with anything but what is published."""
        return None


def _window(fragment: Fragment, ask: ActionRequest, frames: int) -> NDArray[Any]:
    now = fragment.before + ask.turn
    return fragment.obs[now - frames + 1 : now + 1, :, ask.first : ask.last]
