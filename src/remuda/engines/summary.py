"""Episode summary: what is reported about a fragment. It is small, so it travels where the fragment does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment, Origin
from remuda.core.policy import UNVERSIONED


@dataclass(frozen=True)
class EpisodeSummary:
    """Scores of the episodes of one group in some worlds."""

    origin: Origin
    returns: NDArray[np.float64]  # (worlds, agents): undiscounted
    metrics: NDArray[np.float32]  # (worlds, agents, metrics): of the whole episode
    steps: NDArray[np.int64]  # (worlds,): actions that the agents took
    oldest: int  # version of weights that acted; the largest integer if none has a version

    @classmethod
    def of(cls, fragment: Fragment) -> EpisodeSummary:
        """The summary of a fragment; its metrics are a copy, so that the fragment's memory can be reused."""
        versions = fragment.versions[fragment.versions != UNVERSIONED]
        return cls(
            origin=fragment.origin,
            returns=fragment.returns,
            metrics=fragment.metrics.copy(),
            steps=fragment.alive.sum(axis=(0, 2), dtype=np.int64),
            oldest=int(versions.min(initial=np.iinfo(np.int64).max)),
        )

    def select(self, worlds: slice) -> EpisodeSummary:
        """Some of the worlds, as views."""
        own = self.origin
        origin = Origin(own.group, own.worlds[worlds], own.episodes[worlds], own.first_turn, own.purpose)
        return replace(
            self, origin=origin, returns=self.returns[worlds], metrics=self.metrics[worlds], steps=self.steps[worlds]
        )
