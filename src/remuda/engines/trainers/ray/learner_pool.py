"""Learner actors under supervision: placed, polled for reports, and placed again when they are lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from remuda.core.errors import ConfigError, WorkerError, first_line
from remuda.engines.collectors.ray.actor_pool import PROGRESS_INTERVAL_S, RESTART_DELAY_S
from remuda.engines.collectors.ray.cluster import PROGRESS_GROUP, Cluster, require_ray
from remuda.engines.collectors.ray.remote import FETCH_LIMIT_S
from remuda.engines.trainers.ray.actor import LearnerActor, LearnerJob, RoundReport
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import POLL_INTERVAL_S

MAX_DEATHS = 5
"""Times in a row that one learner may be lost before it has learned a round: then its agents are the cause."""
ROOM_AFTER_S = 10.0
"""Seconds that a learner waits for a place before a collector has to leave one to it."""


@dataclass
class LearnerHandle:
    """This process's side of one learner actor."""

    name: str
    index: int
    job: LearnerJob
    actor: Any = None
    node_reference: Any = None  # to the answer which node it runs on
    node: str = ""  # once it has answered
    calls: deque[Any] = field(default_factory=deque)  # references to reports, in order
    progress_reference: Any = None
    progress_requested_at: float = 0.0
    progress: int = -1  # as it last answered
    progress_at: float = field(default_factory=time.monotonic)  # when it was last known to go on
    not_before: float = 0.0  # when it may be placed again
    waiting_since: float = field(default_factory=time.monotonic)  # for a place
    deaths: int = 0  # since it last learned a round
    restarts: int = 0
    peak_bytes: int = 0

    @property
    def references(self) -> list[Any]:
        """What is expected of it next."""
        others = (self.node_reference, self.progress_reference, self.calls[0] if self.calls else None)
        return [other for other in others if other is not None]


class LearnerListener(Protocol):
    """Who gives the learners their work."""

    def on_report(self, handle: LearnerHandle, report: RoundReport) -> None:
        """A learner has learned a round, or was restored."""

    def on_lost(self, handle: LearnerHandle, reason: str) -> None:
        """A learner is gone; its replacement is being placed, and has to be restored."""


class LearnerPool:
    """All learner actors of a run."""

    def __init__(
        self, limits: Limits, listener: LearnerListener, say: Callable[[str], None], make_room: Callable[[], None]
    ) -> None:
        self.handles: list[LearnerHandle] = []
        self._limits, self._listener, self._say, self._make_room = limits, listener, say, make_room
        self._ray: Any = require_ray()
        self._cluster: Cluster | None = None
        self._polled_at = 0.0
        self.closed = False

    def start(self, cluster: Cluster, jobs: list[LearnerJob]) -> None:
        """Place all learners, and wait until they have started."""
        self._cluster = cluster
        self.handles = [LearnerHandle(job.name, index, job) for index, job in enumerate(jobs)]
        for handle in self.handles:
            self._place(handle)
        deadline = time.monotonic() + self._limits.start * (1 + len(jobs) / 100)
        while not all(handle.node for handle in self.handles):
            self.poll(min(POLL_INTERVAL_S, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"engine=ray: not all {len(jobs)} learners found a place within {self._limits.start:.0f} s; each "
                    f"wants {cluster.resources_per_learner}: lower n_learners, n_workers, learner_cpus or learner_gpus"
                )

    def _place(self, handle: LearnerHandle) -> None:
        assert self._cluster is not None
        handle.actor = self._cluster.start_learner(LearnerActor, handle.index, handle.job)
        handle.node, handle.node_reference = "", handle.actor.node_id.remote()
        handle.calls.clear()
        handle.progress_reference, handle.progress = None, -1
        handle.progress_at = handle.waiting_since = time.monotonic()

    def call(self, handle: LearnerHandle, method: str, *args: Any) -> None:
        """Have a learner do something that ends with a report; calls are done in this order."""
        if not handle.calls:
            handle.progress_at = time.monotonic()
        handle.calls.append(getattr(handle.actor, method).remote(*args))

    def poll(self, timeout_s: float) -> None:
        """Wait until a learner returns something, and handle all that has arrived."""
        by_reference = {reference: handle for handle in self.handles for reference in handle.references}
        done, others = self._ray.wait(list(by_reference), num_returns=1, timeout=max(0.0, timeout_s))
        if done and others:
            done += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        for reference in done:
            handle = by_reference[reference]
            if reference in handle.references:  # not if an error handled before has replaced the learner
                self._on_ready(handle, reference)
        self._check_progress()

    def _on_ready(self, handle: LearnerHandle, reference: Any) -> None:
        try:
            value = self._ray.get(reference, timeout=FETCH_LIMIT_S)
        except self._ray.exceptions.GetTimeoutError:
            return
        except self._ray.exceptions.RayError as error:
            self._on_error(handle, error)
            return
        if reference == handle.node_reference:
            handle.node, handle.node_reference = value, None
            handle.progress_at = time.monotonic()
        elif reference == handle.progress_reference:
            handle.progress_reference = None
            if not handle.calls or value != handle.progress:
                handle.progress_at = time.monotonic()
            handle.progress = value
        else:
            handle.calls.popleft()
            handle.progress_at = time.monotonic()
            handle.peak_bytes = max(handle.peak_bytes, value.peak_bytes)
            if value.metrics:
                handle.deaths = 0
            self._listener.on_report(handle, value)

    def _on_error(self, handle: LearnerHandle, error: Any) -> None:
        """A method that raised is a bug and ends the run; anything else costs the actor, and it is placed again."""
        errors = self._ray.exceptions
        if isinstance(error, errors.RayTaskError) and not isinstance(error.cause, errors.RayError):
            raise WorkerError(f"{handle.name}: {first_line(error.cause)}\n{error}") from None
        if getattr(error, "actor_init_failed", False) and not handle.restarts:
            raise WorkerError(f"{handle.name} could not start: {str(error).strip().splitlines()[-1]}") from None
        self.replace(handle, f"was lost ({first_line(error)})")

    def replace(self, handle: LearnerHandle, reason: str) -> None:
        """Place a learner again, at once the first time, later after a delay: its node may be unfit."""
        handle.deaths += 1
        handle.restarts += 1
        if handle.deaths > MAX_DEATHS:
            raise WorkerError(f"{handle.name} {reason}, {handle.deaths} times without learning a round in between")
        self._kill(handle)
        delay_s = RESTART_DELAY_S / 10 * (handle.deaths - 1)
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        self._place(handle)
        self._listener.on_lost(handle, reason)

    def _check_progress(self) -> None:
        """Replace learners that have not gone on for too long, and ask all others how far they are."""
        now = time.monotonic()
        if now - self._polled_at > 4 * POLL_INTERVAL_S:  # this process paused: all get the full limit again
            for handle in self.handles:
                handle.progress_at = now
        self._polled_at = now
        for handle in self.handles:
            if not handle.node and now - handle.waiting_since > ROOM_AFTER_S:
                handle.waiting_since = now
                if self._cluster is not None and not self._cluster.has_places():
                    self._make_room()
            if handle.calls and handle.node and now - handle.progress_at > self._limits.update:
                self.replace(handle, f"made no progress for {now - handle.progress_at:.0f} s and was killed")
            elif (
                handle.node
                and handle.progress_reference is None
                and now - handle.progress_requested_at > PROGRESS_INTERVAL_S
            ):
                handle.progress_reference = handle.actor.progress.options(concurrency_group=PROGRESS_GROUP).remote()
                handle.progress_requested_at = now

    def _kill(self, handle: LearnerHandle) -> None:
        with suppress(Exception):  # Ray raises many types for an actor that is gone or going
            self._ray.kill(handle.actor)

    def close(self) -> None:
        """End the actors."""
        for handle in self.handles if not self.closed else ():
            self._kill(handle)
        self.closed = True
