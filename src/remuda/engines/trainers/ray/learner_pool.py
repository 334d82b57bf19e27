"""Learner actors under supervision: placed, polled for reports, and placed again when they are lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from remuda.core.errors import ConfigError, WorkerError, first_line
from remuda.core.plan import Plan
from remuda.core.timeline import span
from remuda.engines.collectors.ray.cluster import Cluster
from remuda.engines.collectors.ray.supervisor import RESTART_DELAY_S, RemoteHandle, Supervisor
from remuda.engines.trainers.ray.actor import LearnerActor, LearnerJob, RoundReport
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import POLL_INTERVAL_S

MAX_DEATHS = 5
"""Times in a row that one learner may be lost before it has learned a round: then its agents are the cause."""
GIVE_UP_AFTER_S = 10.0
"""Seconds that a learner waits for a place before a collector has to leave one to it."""


@dataclass
class LearnerHandle(RemoteHandle):
    """This process's side of one learner actor."""

    job: LearnerJob = field(kw_only=True)
    index: int = field(kw_only=True)
    calls: deque[Any] = field(default_factory=deque)  # references to reports, in order
    waiting_since: float = field(default_factory=time.monotonic)  # for a place
    deaths: int = 0  # since it last learned a round

    @property
    def busy(self) -> bool:
        """Whether it has a call to answer."""
        return bool(self.calls)

    @property
    def references(self) -> list[Any]:
        """What is expected of it next."""
        return [*super().references, *([self.calls[0]] if self.calls else [])]


class LearnerListener(Protocol):
    """Who gives the learners their work."""

    def on_report(self, handle: LearnerHandle, report: RoundReport) -> None:
        """A learner has learned a round, or was restored."""

    def on_lost(self, handle: LearnerHandle, reason: str) -> None:
        """A learner is gone; its replacement is being placed, and has to be restored."""


class LearnerPool(Supervisor[LearnerHandle]):
    """All learner actors of a run."""

    def __init__(
        self, plan: Plan, listener: LearnerListener, say: Callable[[str], None], give_up_one: Callable[[], None]
    ) -> None:
        super().__init__(Limits.of(plan).update)
        self._start_limit_s, self._listener = plan.start_limit_s, listener
        self._say, self._give_up_one = say, give_up_one
        self._cluster: Cluster | None = None
        self.closed = False

    def start(self, cluster: Cluster, jobs: list[LearnerJob]) -> None:
        """Place all learners, and wait until they have started."""
        self._cluster = cluster
        self.handles = [LearnerHandle(job.name, job=job, index=index) for index, job in enumerate(jobs)]
        for handle in self.handles:
            self._place(handle)
        deadline = time.monotonic() + self._start_limit_s * (1 + len(jobs) / 100)
        while not all(handle.node for handle in self.handles):
            self.poll(min(POLL_INTERVAL_S, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"engine=ray: not all {len(jobs)} learners found a place within {self._start_limit_s:.0f} s; each "
                    f"wants {cluster.resources_per_learner}: lower n_learners, n_workers, learner_cpus or learner_gpus"
                )

    def _place(self, handle: LearnerHandle) -> None:
        assert self._cluster is not None
        handle.actor = self._cluster.start_learner(LearnerActor, handle.index, handle.job)
        handle.node, handle.node_reference = "", handle.actor.node_id.remote()
        handle.calls.clear()
        handle.progress_reference = handle.progress = None
        handle.progress_at = handle.waiting_since = time.monotonic()

    def places(self) -> str:
        """Which agents learn where, in words."""
        assert self._cluster is not None
        names = self._cluster.node_names()
        places = []
        for handle in self.handles:
            starts = [(handle.job.parts[part].herd_first, first, last) for part, first, last in handle.job.slices]
            low, high = min(start + first for start, first, _ in starts), max(start + last for start, _, last in starts)
            places.append(f"agents {low} to {high - 1} on {names.get(handle.node, handle.node)}")
        count = len(places)
        shown = "; ".join(places[:8]) + (f"; and {count - 8} more" if count > 8 else "")
        return f"{count} learner{'s' if count > 1 else ''}: {shown}"

    def call(self, handle: LearnerHandle, method: str, *args: Any) -> None:
        """Have a learner do something that ends with a report; calls are done in this order."""
        if not handle.calls:
            handle.progress_at = time.monotonic()
        handle.calls.append(getattr(handle.actor, method).remote(*args))

    def poll(self, timeout_s: float) -> None:
        """Wait until a learner returns something, and handle all that has arrived."""
        self._wait(max(0.0, timeout_s))
        self._look_for_places()

    def wait_for(self, handles: Sequence[LearnerHandle], timeout_s: float) -> None:
        """Wait until all of these have returned what they are to return next; `poll` then handles it."""
        references = [handle.calls[0] for handle in handles if handle.calls]
        with span("wait"):
            if references:
                self._ray.wait(references, num_returns=len(references), timeout=timeout_s)
            else:
                time.sleep(timeout_s)

    def _on_joined(self, handle: LearnerHandle) -> None:
        return

    def _on_value(self, handle: LearnerHandle, reference: Any, value: RoundReport) -> None:
        handle.calls.popleft()
        handle.peak_bytes = max(handle.peak_bytes, value.peak_bytes)
        if value.metrics:
            handle.deaths = 0
        self._listener.on_report(handle, value)

    def _on_silent(self, handle: LearnerHandle, reason: str) -> None:
        self.replace(handle, reason)

    def _on_error(self, handle: LearnerHandle, error: Any) -> None:
        """A method that raised is a bug and ends the run; anything else costs the actor, and it is placed again."""
        errors = self._ray.exceptions
        if isinstance(error, errors.RayTaskError) and not isinstance(error.cause, errors.RayError):
            raise WorkerError(f"{handle.name}: {first_line(error.cause)}\n{error}") from None
        if getattr(error, "actor_init_failed", False) and not handle.restarts:
            raise WorkerError(f"{handle.name} could not start: {str(error).strip().splitlines()[-1]}") from None
        assert self._cluster is not None
        with_node = self._lost_with_node(self._cluster, handle, error)
        self.replace(handle, "was lost with its node" if with_node else f"was lost ({first_line(error)})", with_node)

    def replace(self, handle: LearnerHandle, reason: str, with_node: bool = False) -> None:
        """Place a learner again, at once the first time, later after a delay: its node may be unfit."""
        handle.deaths += not with_node
        handle.restarts += 1
        if handle.deaths > MAX_DEATHS:
            raise WorkerError(f"{handle.name} {reason}, {handle.deaths} times without learning a round in between")
        self._kill(handle)
        delay_s = RESTART_DELAY_S / 10 * max(0, handle.deaths - 1)
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        self._place(handle)
        self._listener.on_lost(handle, reason)

    def _look_for_places(self) -> None:
        """Have an actor that plays leave its place to a learner that has waited for one too long."""
        now = time.monotonic()
        for handle in self.handles:
            if not handle.node and now - handle.waiting_since > GIVE_UP_AFTER_S:
                handle.waiting_since = now
                if self._cluster is not None and not self._cluster.has_places():
                    self._give_up_one()

    def close(self) -> None:
        """End the actors."""
        for handle in self.handles if not self.closed else ():
            self._kill(handle)
        self.closed = True
