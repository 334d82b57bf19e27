"""The newest versions of the rows, in the object stores of the nodes: finds what is gone, and has it put again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from remuda.core.errors import WorkerError, first_line
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.remote import FETCH_LIMIT_S, RemoteRows
from remuda.engines.trainers.ray.learner_pool import LearnerPool

ROWS_LIMIT_S = 3600.0
"""Longest wait for rows; a learner that hangs is found sooner."""


class PublishedRows:
    """References to the rows of a few versions, one object per learner and version.

    An object goes with the learner that put it, or with its node. By round, nobody plays until the same rows are there
    again; free, newer rows act in the place of older ones that are gone.
    """

    def __init__(self, pool: LearnerPool, lag: int, by_round: bool, look: Callable[[], None]) -> None:
        """`look` handles what learners returned, and raises if rounds are lost."""
        self.limit_s = ROWS_LIMIT_S
        self._pool, self._lag, self._by_round, self._look = pool, lag, by_round, look
        self._ray: Any = require_ray()
        self._versions: dict[int, RemoteRows] = {}

    def add(self, version: int, rows: RemoteRows) -> None:
        """A version is learned; those that act no more are dropped."""
        self._versions[version] = rows
        self._versions.pop(version - 2 - self._lag, None)

    def get(self, version: int) -> RemoteRows | None:
        """The rows of a version, if they are not dropped."""
        return self._versions.get(version)

    def put_again(self, version: int, learner: int, slices: Any, reference: Any) -> None:
        """A learner has put its rows of a version, perhaps again; `slices` says who has which agents now."""
        rows = self._versions.get(version)
        if rows is not None and rows.slices is slices:
            rows.references[learner] = reference
            rows.missing.discard(learner)

    def miss(self, learner: int) -> None:
        """A learner is gone, and its rows with it."""
        for rows in self._versions.values():
            rows.missing.add(learner)

    def repair(self, newest: int) -> str:
        """Have rows put again that could not be fetched, though no learner is known to be lost.

        Returns why rounds are lost, if rows are gone that nobody has any more.
        """
        if any(handle.calls for handle in self._pool.handles):
            return ""  # what they return next may be the rows
        lost = ""
        for version, rows in self._versions.items():
            if not rows.missing:
                continue
            if version == newest:
                for index in sorted(rows.missing):
                    self._pool.call(self._pool.handles[index], "put_rows", version)
            elif not self._by_round and not self._versions[newest].missing:
                rows.references[:] = self._versions[newest].references  # newer ones act in their place
                rows.missing.clear()
            elif self._by_round and version >= newest - self._lag:  # older ones act no more
                lost = f"the weights of round {version} could not be fetched"
        return lost

    def fetch(self, rows: RemoteRows) -> Any:
        """The objects of some rows; if one is gone, after its learner was placed again and has put it."""
        deadline, problem = time.monotonic() + self.limit_s, "it is not there any more"
        limit_s = FETCH_LIMIT_S
        while True:
            try:
                if not rows.missing:
                    return self._ray.get(rows.references, timeout=limit_s)
            except self._ray.exceptions.RayError as error:
                # A stopped learner may have no call out, so its silence goes unnoticed: ask it for the rows again.
                problem, limit_s = first_line(error), 2 * limit_s
                if any(own is rows for own in self._versions.values()):
                    rows.missing.update(self._not_here(rows.references))
            if time.monotonic() > deadline or self._pool.closed:
                raise WorkerError(f"the weights of a learner could not be fetched: {problem}")
            self._pool.poll(0.05)
            self._look()

    def _not_here(self, references: Sequence[Any]) -> list[int]:
        """Which objects could not be fetched."""
        here, _ = self._ray.wait(list(references), num_returns=len(references), timeout=0)
        return [index for index, reference in enumerate(references) if reference not in here]

    def clear(self) -> None:
        """Drop all of them."""
        self._versions.clear()
