"""The table of engines: each row is a placement for collecting, a placement for learning, and who waits for whom.

The builders of the rows are in `engines/build.py`; they are imported when an engine is built, so that the table can be
shown without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from remuda.core.errors import UnknownName

if TYPE_CHECKING:
    from remuda.engines.context import EngineContext
    from remuda.engines.interfaces import Collectors, Trainers

BUILDERS = "remuda.engines.build"
AUTO = "auto"
AUTO_RULE = (
    "short runs: vectorized; long ones: the fastest of vectorized, executor and sync in short trials, whose result is "
    "kept; waits by round"
)


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    name: str
    collectors: str
    trainers: str
    waits_for: str
    free: bool = False  # does not wait for rounds, unless the plan says deterministic
    processes: bool = False  # needs worker processes
    machines: bool = False  # can use more than this machine
    extra: str = ""  # what must be installed besides, as pip calls it: remuda-rl[extra]
    learners: bool = False  # whether n_learners says how many learners it has
    deterministic: bool = True  # whether `deterministic: true` can be promised

    @property
    def has_workers(self) -> bool:
        """Whether its workers are processes of their own, of which there may be more than cores."""
        return self.processes or self.machines

    def build(self, context: EngineContext) -> tuple[Collectors, Trainers]:
        """The two sides of the engine, not started."""
        builder = getattr(import_module(BUILDERS), self.name.replace("-", "_"))
        built: tuple[Collectors, Trainers] = builder(context)
        return built


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "sequential", "in this process, one world, one agent at a time", "in this process, one agent after another",
            "everything: the readable baseline, and the debugger",
        ),
        Engine(
            "vectorized", "in this process, all worlds at once, on threads",
            "in this process, the herd stacked; with lag 1 in threads beside the next round",
            "a round",
        ),
        Engine(
            "threads", "in this process, all worlds at once", "in threads, every train_interval epochs",
            "nothing while collecting", free=True,
        ),
        Engine(
            "sync", "worker processes, every turn together, one batched inference", "in this process",
            "every world at every turn (wait_for below 1: the first that are ready)", processes=True,
        ),
        Engine(
            "executor", "worker processes, whole episodes as tasks", "in this process",
            "the first episodes_per_update episodes, never the slowest", free=True, processes=True,
        ),
        Engine(
            "actor-learner", "worker processes, without pause", "learner processes, a slice of the herd each",
            "nothing; weights are versioned, policy lag is bounded and reported", free=True, processes=True,
            learners=True, deterministic=False,
        ),
        Engine(
            "ray", "Ray actors on this machine or a cluster, whole episodes as tasks",
            "in this process; with n_learners Ray actors on any node, a slice of the herd each",
            "as executor", free=True, machines=True, learners=True, extra="ray",
        ),
    )
}  # fmt: skip


def find_engine(name: str) -> Engine:
    """The row of this name."""
    if name not in ENGINES:
        raise UnknownName("engine", name, [*ENGINES, AUTO])
    return ENGINES[name]
