"""Callbacks: listeners that are told what happens in a run, and may stop it.

Tables, TensorBoard, the progress panel and pictures are callbacks like a user's own:

    class Early(remuda.Callback):
        def evaluated(self, training, rows, scores):
            if scores["total_return"] > 200:
                training.stop("solved")  # or: return False

    remuda.train("treasurehunt", callbacks=[Early()])

From the command line: `callbacks=[my_module:Early]`; the class is called without arguments. A short name for a callback
that comes with remuda goes into `registry.py`. `docs/python.md` has a section about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from remuda.core.plan import Plan

if TYPE_CHECKING:
    from remuda.core.policy import PolicyBinding
    from remuda.runs.directory import RunDirectory

Row = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """What a callback may know about the run it listens to."""

    config: Plan
    run: RunDirectory  # the run directory, for reading
    rounds: int  # done when training started; more than 0 where a run goes on
    settled: int  # rounds after which evaluations were done when training started
    agents: int  # rows of a round
    metrics: Sequence[str]  # names of the metrics in the rows of `learned`
    evaluation_metrics: Sequence[str]  # names of the metrics in the rows of `evaluated`
    stop: Callable[[str], None]  # ends the run after this round, saved; the reason is shown
    policies: Callable[[], Sequence[PolicyBinding]]  # the herd with its newest weights, to play with

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.path


class Callback:
    """A listener. Override what you need. What a method raises ends the run, after the last round is saved.

    A method that returns False ends the run, as `training.stop` does; any other value has no meaning.
    """

    is_internal: ClassVar[bool] = False
    """Whether remuda itself gives it to the run: nobody who resumes the run is asked for it, and it changes no rows."""

    def start(self, training: Training) -> bool | None:
        """Training starts, or a run is resumed: then rows of rounds after `training.rounds` will come again."""

    def collected(self, training: Training, episodes: int, agent_steps: int) -> bool | None:
        """Episodes were played; both numbers count from the beginning of the run."""

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> bool | None:
        """A round was learned: one row per agent, and one about the engine (lag, waiting, time)."""

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> bool | None:
        """The weights were evaluated: one row per agent, and the scores of the herd."""

    def saved(self, training: Training, checkpoint: Path, episodes: int) -> bool | None:
        """A checkpoint was written, in the background; called from another thread."""

    def failed(self, training: Training, message: str) -> bool | None:
        """An episode failed, updates were skipped, a worker was replaced, or the like."""

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        """Training ended; `result` is what result.json says, None where an error ended it."""


class FunctionCallback(Callback):
    """A plain function as a callback: it gets the rows of each round, and ends the run by returning False."""

    def __init__(self, function: Callable[[list[Row]], bool | None]) -> None:
        self.function = function

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> bool | None:
        """Call the function."""
        return self.function(list(rows))
