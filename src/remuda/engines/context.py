"""What an engine is built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.learners.herd import Part
from remuda.transport.worker_pool import WorkerPool

LastState = Callable[[], tuple[int, Mapping[str, NDArray[Any]]]]
"""Returns the rounds and the learners' state of the newest checkpoint; 0 and nothing before there is one."""


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
    last_state: LastState = lambda: (0, {})  # what a learner process that died goes on from

    @property
    def workers(self) -> int:
        """Threads or processes to use."""
        return self.plan.n_workers or cores()
