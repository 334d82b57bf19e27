"""Many learner actors in few processes, to see what the first process does for a thousand of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from remuda.engines.collectors.ray.cluster import Cluster, require_ray


class LearnerHost:
    """Runs in a process of Ray: has several learners, and calls the one that is asked for."""

    def __init__(self) -> None:
        self._learners: dict[int, Any] = {}

    def make(self, index: int, kind: type, *args: Any) -> None:
        """Make a learner."""
        self._learners[index] = kind(*args)

    def call(self, index: int, method: str, *args: Any) -> Any:
        """Call a method of a learner."""
        return getattr(self._learners[index], method)(*args)


class SharedActor:
    """Looks like the handle of a Ray actor."""

    def __init__(self, host: Any, index: int) -> None:
        self._host, self._index = host, index

    def __getattr__(self, method: str) -> Any:
        return SharedMethod(self._host, self._index, method)


class SharedMethod:
    """Looks like a method of a Ray actor."""

    def __init__(self, host: Any, index: int, method: str) -> None:
        self._host, self._index, self._method = host, index, method

    def options(self, **options: Any) -> SharedMethod:
        """Concurrency groups are left out: the host has threads enough."""
        return self

    def remote(self, *args: Any) -> Any:
        """Call it."""
        return self._host.call.remote(self._index, self._method, *args)


@contextmanager
def learners_that_share(processes: int) -> Iterator[None]:
    """Meanwhile learners are placed in so many processes."""
    hosts: list[Any] = []
    start_learner = Cluster.start_learner

    def shared(self: Cluster, kind: type, index: int, *args: Any) -> Any:
        ray = require_ray()
        while len(hosts) < processes:
            hosts.append(ray.remote(LearnerHost).options(num_cpus=0, max_concurrency=64).remote())
        host = hosts[index % processes]
        ray.get(host.make.remote(index, kind, *args))
        return SharedActor(host, index)

    Cluster.start_learner = shared  # type: ignore[method-assign]
    try:
        yield
    finally:
        Cluster.start_learner = start_learner  # type: ignore[method-assign]
