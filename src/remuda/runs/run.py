"""A run as training returns it and as a notebook shows it: the run directory, and what one does with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from remuda.games.registry import AnyGame
from remuda.runs.agent import TrainedAgent
from remuda.runs.describe import describe
from remuda.runs.directory import RunDirectory
from remuda.runs.display import html_table, text_table
from remuda.runs.evaluation import Scores, evaluate
from remuda.runs.film import SIZE, SPEED, watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load(path: Path | str, game: AnyGame | None = None, *, trust: bool = False, learner: Any = None) -> Run:
    """Open a run directory.

    `game` gives a game again that was defined in another Python session: a notebook cell, a lambda. `learner` does
    the same for a learner's class, or a list of them. `trust` follows names of code in a run that somebody else made.
    """
    return Run(path, game, trust, learner)


class Run(RunDirectory):
    """A run directory: what training wrote there, its trained agents, and what one does with them."""

    stopped_by: int | None = None
    """The signal that stopped the training which returned this object."""

    def evaluate(
        self, episodes: int = 100, exploration: float | None = 0.0, checkpoint: str | None = None, **settings: Any
    ) -> Scores:
        """`remuda.evaluate` of this run."""
        return evaluate(self, episodes, exploration, checkpoint, **settings)

    def watch(
        self,
        out: Path | str | None = None,
        episode: int = 0,
        checkpoint: str | None = None,
        *,
        size: int = SIZE,
        speed: float = SPEED,
    ) -> Path:
        """`remuda.watch` of this run: an episode as a film, by default a GIF, which a notebook shows."""
        return watch(self, out, episode, checkpoint, size=size, speed=speed)

    def plot(self) -> Figure:
        """The learning curve as a figure of matplotlib."""
        from remuda.runs.curve import curve  # matplotlib is slow to import

        return curve(self)

    def agent(self, number: int, checkpoint: str | None = None) -> TrainedAgent:
        """One trained agent for a loop of one's own: `agent.act(obs)` returns its action."""
        return TrainedAgent.of(self, number, checkpoint)

    def __repr__(self) -> str:
        facts = describe(self.path)
        labels = ["" if i and facts[i - 1][0] == label else label for i, (label, _) in enumerate(facts)]
        return text_table([[label, value] for label, (_, value) in zip(labels, facts, strict=True)])

    def _repr_html_(self) -> str:
        return html_table([list(fact) for fact in describe(self.path)], header=False)
