"""What an engine is built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.learners.herd import Part
from remuda.transport.worker_pool import WorkerPool


class SavedLearners(NamedTuple):
    """What a checkpoint says of the learners."""

    rounds: int = 0
    state: Mapping[str, NDArray[Any]] = MappingProxyType({})  # empty: as they are made
    acting: Mapping[int, NDArray[np.float32]] | None = None  # rows that acted, where they were older than the newest


LastState = Callable[[], SavedLearners]
"""Returns the learners of the newest checkpoint; 0 rounds and nothing before there is one."""


@dataclass(frozen=True)
class EngineContext:
    """What an engine is built for."""

    plan: Plan
    spec: GameSpec
    parts: list[Part]
    device: str
    stop: Callable[[], None]  # raises Stopped once somebody asked for it
    worker_pool: WorkerPool
    folder: Path  # of the run
    last_state: LastState = SavedLearners  # what a learner process that died goes on from

    @property
    def workers(self) -> int:
        """Threads or processes to use."""
        return self.plan.n_workers or cores()
