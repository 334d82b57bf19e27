"""Places on a Ray cluster: each is an actor that hosts trials, wherever the cluster has room for it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from remuda.core import session
from remuda.core.errors import ConfigError, first_line
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.engines.collectors.ray.cluster import PROGRESS_GROUP, Cluster, require_ray
from remuda.runs.storage import storage_errors
from remuda.studies.trials.places import Message, TrialLost, TrialPlace
from remuda.studies.trials.ray_host import HostReport, HostStart, TrialHost
from remuda.studies.trials.trial import Trial, TrialOutcome

SILENCE_S = 60.0
"""Longest that a host may leave a question without an answer; Ray needs about half a minute to give up a node."""
RESIZE_INTERVAL_S = 2.0
"""Seconds between looks at the size of the cluster, and before a lost host is replaced: nodes come and go."""
STORE_BYTES = 128 << 20
"""Memory for values that Ray moves, in a cluster of our own: messages of a few hundred bytes."""


class RayPlace(TrialPlace):
    """This process's side of one host. References are Ray's: to answers that a host has yet to give."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor = actor
        self.start: HostStart | None = None  # once it has found a place
        self.question = actor.join.remote()  # the one answer that is expected
        self.asked_at = time.monotonic()
        self.sent: Any = None  # the call that starts a trial, until it has returned

    @property
    def usable(self) -> bool:
        """Whether it can be given trials."""
        return self.start is not None and self.start.sees_folder

    def send(self, trial: Trial) -> None:
        """Start a trial."""
        self.trial = trial
        self.sent = self.actor.run.remote(session.to_bytes(replace(trial, folder=trial.folder.absolute())))

    def stop(self) -> None:
        """Ask the trial to save and to stop."""
        self.actor.stop.remote()

    def ask(self) -> None:
        """Ask what has happened."""
        self.question = self.actor.poll.options(concurrency_group=PROGRESS_GROUP).remote()
        self.asked_at = time.monotonic()


class RayPlaces:
    """Up to so many hosts, as many as the cluster has room for at the moment. One that is lost is replaced."""

    def __init__(
        self,
        address: str | None,
        size: int,
        folder: Path,
        plans: Sequence[Plan],
        objects: Iterable[str],
        say: Callable[[str], None],
    ) -> None:
        """Joins the cluster at `address`, else uses the one this process has joined, else starts one."""
        self._ray, self._size, self._folder, self._say = require_ray(), size, folder.absolute(), say
        # A trial claims the cores that it uses, and whatever else an actor of its plan would claim.
        cpus = max([plan.actor_cpus if plan.n_workers is None else float(plan.n_workers) for plan in plans])
        here = max(1, min(size, int(cores() // cpus)))  # places in a cluster of our own
        self._plan = plans[0].model_copy(
            update={"address": address, "actor_cpus": cpus, "n_workers": here, "n_learners": None}
        )
        self._objects = session.pack(objects)
        self._places: list[RayPlace] = []
        self._began = time.monotonic()
        self._resized_at = 0.0
        self._joined = False  # whether any host ever has
        with storage_errors(self._folder):
            handle, name = tempfile.mkstemp(prefix=".seen-", dir=self._folder)
        os.close(handle)
        self._seen_file = Path(name)
        try:
            self._cluster = Cluster(self._ray, self._plan, STORE_BYTES)
        except BaseException:
            self._seen_file.unlink(missing_ok=True)
            raise

    def busy(self) -> list[TrialPlace]:
        """Those with a trial."""
        return [place for place in self._places if place.trial is not None]

    def idle(self) -> TrialPlace | None:
        """A host without a trial."""
        self._start_missing()
        return next((place for place in self._places if place.trial is None and place.usable), None)

    def has_idle_cores(self) -> bool:
        """Never: what is left of a cluster is for others."""
        return False

    def _start_missing(self) -> None:
        """Start as many hosts as are missing. Ray runs each as soon as a node has the resources for it."""
        if time.monotonic() - self._resized_at < RESIZE_INTERVAL_S:
            return
        self._resized_at = time.monotonic()
        # A host that does not see the directory keeps its place, so that no other one gets it.
        blind = sum(place.start is not None and not place.start.sees_folder for place in self._places)
        for _ in range(min(self._size + blind, self._cluster.actor_capacity()) - len(self._places)):
            args = ([*sys.path], str(Path.cwd()), str(self._seen_file), self._objects)
            self._places.append(RayPlace(self._cluster.start_actor(TrialHost, *args)))

    def receive(self, timeout_s: float) -> list[tuple[TrialPlace, Message]]:
        """What hosts have answered; one that is lost is forgotten."""
        by_reference = {place.question: place for place in self._places}
        by_reference |= {place.sent: place for place in self._places if place.sent is not None}
        if not by_reference:
            time.sleep(timeout_s)
        done, others = self._ray.wait([*by_reference], num_returns=1, timeout=timeout_s)
        done += self._ray.wait(others, num_returns=len(others), timeout=0)[0] if done and others else []
        found: list[tuple[TrialPlace, Message]] = []
        for reference in done:
            place = by_reference[reference]
            if place in self._places:  # not if another answer of it was an error
                found += [(place, message) for message in self._take(place, reference)]
        for place in [*self._places]:
            if place.start is not None and time.monotonic() - place.asked_at > SILENCE_S:
                found += [(place, message) for message in self._lose(place, "its host gave no answer", False)]
        self._check_start()
        return found

    def _take(self, place: RayPlace, reference: Any) -> Sequence[Message]:
        """Messages in an answer of a host."""
        try:
            answer = self._ray.get(reference, timeout=SILENCE_S)
        except self._ray.exceptions.RayError as error:
            return self._failed(place, error)
        if reference == place.sent:
            place.sent = None
            return []
        place.ask()
        if isinstance(answer, HostStart):
            self._on_joined(place, answer)
            return []
        assert isinstance(answer, HostReport)
        if place.trial is None:
            return []  # its process ended while it had nothing to do
        messages: list[Message] = [session.from_bytes(message) for message in answer.messages]
        if answer.died and not any(isinstance(message, TrialOutcome) for message in messages):
            messages.append(TrialLost(f"its process {answer.died}", counts=not answer.lease_over))
        return messages

    def _on_joined(self, place: RayPlace, start: HostStart) -> None:
        place.start = start
        self._joined = True
        if not start.sees_folder:
            self._say(f"{start.machine} does not see {self._folder}: no trial runs there")

    def _failed(self, place: RayPlace, error: Any) -> Sequence[Message]:
        """Handle an error that Ray raised instead of an answer: the host is lost."""
        if place.start is None and getattr(error, "actor_init_failed", False) and not self._joined:
            why = str(error).strip().splitlines()[-1]
            raise ConfigError(f"on=ray: no host of trials could start: {why}") from None
        node = "" if place.start is None else place.start.node
        with_node = "node has died" in str(error) or (bool(node) and not self._cluster.is_node_alive(node))
        out_of_reach = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        why = "its node died" if with_node else f"its host was lost ({first_line(error)})"
        return self._lose(place, why, counts=not with_node and not out_of_reach)

    def _lose(self, place: RayPlace, why: str, counts: bool) -> Sequence[Message]:
        """Forget a host. If it is only out of reach it ends its trial by itself, see `ray_host.LEASE_S`."""
        self._places.remove(place)
        with suppress(Exception):  # Ray raises many types for an actor that is gone or going
            self._ray.kill(place.actor)
        if place.trial is None:
            return []
        self._say(f"{place.trial.name}: {why}; it goes on elsewhere")
        return [TrialLost(why, counts)]

    def _check_start(self) -> None:
        """Refuse a cluster on which no trial can run."""
        starts = [place.start for place in self._places]
        if starts and all(start is not None and not start.sees_folder for start in starts):
            raise ConfigError(
                f"no node of the cluster sees {self._folder}: have --out where all of them see it under the same name"
            )
        if not self._joined and time.monotonic() - self._began > self._plan.start_limit_s:
            raise ConfigError(
                f"on=ray: no trial found a place within {self._plan.start_limit_s:.0f} s; each wants "
                f"{self._cluster.resources_per_actor}, the cluster has {self._cluster.resources()}: lower n_workers, "
                "actor_cpus, actor_gpus or actor_resources, or raise start_limit_s"
            )

    def close(self) -> None:
        """End the hosts, and the cluster if it is ours."""
        for place in self._places:
            with suppress(Exception):  # as above
                self._ray.kill(place.actor)
        self._places = []
        self._cluster.close()
        with suppress(OSError):
            self._seen_file.unlink(missing_ok=True)
