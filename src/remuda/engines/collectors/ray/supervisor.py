"""Supervision of Ray actors, shared by those that play and those that learn: waiting, progress, silence.

What Ray tells and what it does not: `ray.wait` reports that a call has returned or failed. Nothing is reported about an
actor that dies while it has no call, and nothing about a result that was in the memory of a node that is gone. So every
actor that has returned nothing for a few seconds is asked for its progress. The answer shows whether it still works; an
error instead of an answer shows that it is gone. The subclasses replace it: `ActorPool._replace_actor`,
`LearnerPool.replace`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from remuda.core.timeline import span
from remuda.engines.collectors.ray.cluster import PROGRESS_GROUP, Cluster, require_ray
from remuda.engines.collectors.ray.remote import FETCH_LIMIT_S
from remuda.transport.worker_pool import POLL_INTERVAL_S

PROGRESS_INTERVAL_S = 5.0
"""Seconds between requests for an actor's progress."""
GATHER_S = 20e-6
"""Seconds to wait, for each actor that has not answered, after one has: looking at a thousand references takes
milliseconds, and so is done for many answers at once."""
RESTART_DELAY_S = 30.0
"""Seconds before an actor that could not start is started again: its node may be unfit, and fail every time."""


@dataclass
class RemoteHandle:
    """This process's side of one actor. References are Ray's: to values that an actor has yet to return."""

    name: str
    actor: Any = None
    node_reference: Any = None  # to the answer which node it runs on, the first call of every actor
    restarts: int = 0
    peak_bytes: int = 0
    node: str = ""  # once it has answered
    progress_reference: Any = None
    progress_requested_at: float = field(default_factory=time.monotonic)
    answered_at: float = 0.0  # when it last returned anything
    progress: Any = None  # as it last answered
    progress_at: float = field(default_factory=time.monotonic)  # when it was last known to have made progress

    @property
    def busy(self) -> bool:
        """Whether it has something to do, so that it must make progress."""
        raise NotImplementedError

    @property
    def available(self) -> bool:
        """Whether it answers."""
        return bool(self.node)

    @property
    def references(self) -> list[Any]:
        """Everything it is expected to return next."""
        return [own for own in (self.node_reference, self.progress_reference) if own is not None]


Handle = TypeVar("Handle", bound=RemoteHandle)


class Supervisor(ABC, Generic[Handle]):
    """Waits for all actors of a kind, and finds those that fall silent."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is the longest that an actor with work may make no progress."""
        self.handles: list[Handle] = []
        self._limit_s = limit_s
        self._ray: Any = require_ray()
        self._polled_at = 0.0

    def _wait(self, wait_s: float) -> bool:
        """Wait until an actor returns something, and handle all that has arrived; returns whether something has."""
        by_reference = {reference: handle for handle in self.handles for reference in handle.references}
        with span("wait"):
            # All actors may be waiting for their restart delay; ray.wait returns at once if it has nothing to wait for.
            time.sleep(0.0 if by_reference else wait_s)
            count = 1 if wait_s else len(by_reference)
            done, others = self._ray.wait(list(by_reference), num_returns=max(1, count), timeout=wait_s)
        if done and others and wait_s:
            time.sleep(GATHER_S * len(others))
            done += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        values = self._get_all(done)
        for reference in done:
            handle = by_reference[reference]
            if reference in handle.references:  # not if an error handled before has replaced the actor
                self._on_ready(handle, reference, values)
        self._check_progress()
        return bool(done)

    def _get_all(self, references: list[Any]) -> dict[Any, Any]:
        """What several actors returned, fetched at once; nothing if one of them failed."""
        try:
            return dict(zip(references, self._ray.get(references, timeout=FETCH_LIMIT_S), strict=True))
        except self._ray.exceptions.RayError:
            return {}  # which one it was shows when each is fetched by itself

    def _on_ready(self, handle: Handle, reference: Any, values: Mapping[Any, Any]) -> None:
        """Fetch what an actor returned, unless it is among `values`, and handle it."""
        try:
            value = values[reference] if values else self._ray.get(reference, timeout=FETCH_LIMIT_S)
        except self._ray.exceptions.GetTimeoutError:
            return  # if the actor lives, ray.wait reports it again; if not, the next progress request fails
        except self._ray.exceptions.RayError as error:
            self._on_error(handle, error)
            return
        handle.answered_at = time.monotonic()
        if reference == handle.node_reference:
            handle.node, handle.node_reference = value, None
            handle.progress_at = time.monotonic()
            self._on_joined(handle)
        elif reference == handle.progress_reference:
            handle.progress_reference = None
            if not handle.busy or value != handle.progress:
                handle.progress_at = time.monotonic()
            handle.progress = value
        else:
            handle.progress_at = time.monotonic()
            self._on_value(handle, reference, value)

    def _check_progress(self) -> None:
        """Report actors that have made no progress for too long, and ask all others how far they are.

        A call that returns is not enough: an actor whose game hangs still answers, but with the same progress.
        """
        now = time.monotonic()
        # After a pause of this process (it was learning, or SIGSTOP went to all) actors may have made progress that we
        # did not ask for, or were stopped as well. All get the full limit again.
        if now - self._polled_at > 4 * POLL_INTERVAL_S:
            for handle in self.handles:
                handle.progress_at = now
        self._polled_at = now
        interval_s = min(PROGRESS_INTERVAL_S, self._limit_s / 4)
        for handle in list(self.handles):
            if handle.node and handle.busy and now - handle.progress_at > self._limit_s:
                self._on_silent(handle, f"made no progress for {now - handle.progress_at:.0f} s and was killed")
            elif (
                handle.available
                and handle.progress_reference is None
                # One that has just returned a result is not asked: a request costs as much as handing out work.
                and now - max(handle.progress_requested_at, handle.answered_at) > interval_s
            ):
                handle.progress_reference = handle.actor.progress.options(concurrency_group=PROGRESS_GROUP).remote()
                handle.progress_requested_at = now

    @staticmethod
    def _lost_with_node(cluster: Cluster, handle: RemoteHandle, error: Exception) -> bool:
        """Whether the actor's whole node is gone: then neither a game nor a learner is to blame."""
        return "node has died" in str(error) or (bool(handle.node) and not cluster.is_node_alive(handle.node))

    def _kill(self, handle: Handle) -> None:
        with suppress(Exception):  # Ray raises many types for an actor that is gone or going
            self._ray.kill(handle.actor)

    @abstractmethod
    def _on_joined(self, handle: Handle) -> None:
        """An actor has started, and said on which node."""

    @abstractmethod
    def _on_value(self, handle: Handle, reference: Any, value: Any) -> None:
        """An actor has returned what it was asked for."""

    @abstractmethod
    def _on_error(self, handle: Handle, error: Any) -> None:
        """Ray raised an error instead of a value."""

    @abstractmethod
    def _on_silent(self, handle: Handle, reason: str) -> None:
        """An actor has made no progress for too long."""
