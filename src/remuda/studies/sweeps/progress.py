"""Shows a sweep on the console: a bar over episodes, and a line for each trial that ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from remuda.runs.callbacks.progress import QuietConsole
from remuda.studies.sweeps.options import SweepOptions, SweepTrial
from remuda.studies.trials.trial import TrialProgress


class SweepProgress:
    """A bar on a terminal, lines elsewhere."""

    def __init__(self, options: SweepOptions, each: int, trials: Sequence[SweepTrial], quiet: bool) -> None:
        self.console = QuietConsole(stderr=True, quiet=quiet, soft_wrap=True)
        self._better = max if options.higher_is_better else min
        self._episodes = {str(trial.number): trial.episodes for trial in trials}
        self._scores = [own.score for own in trials if own.status == "finished" and own.score is not None]
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(None), TextColumn("episodes"), MofNCompleteColumn(),
            TimeElapsedColumn(), console=self.console, transient=True,
            disable=quiet or not self.console.is_terminal,
        )  # fmt: skip
        total = options.budget_episodes or (None if options.trials is None else options.trials * each)
        self._task = self._bar.add_task("", total=total, completed=sum(self._episodes.values()))
        if trials:
            self.say(f"going on after {sum(own.status != 'running' for own in trials)} trials")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._bar.stop()

    def say(self, text: str) -> None:
        """Show a line."""
        with suppress(OSError):  # the terminal may be gone
            self.console.print(text, markup=False, highlight=False)

    def tell(self, progress: TrialProgress) -> None:
        """Move the bar."""
        self._episodes[progress.name] = progress.episodes
        best = f"best {self._better(self._scores):.4g}" if self._scores else ""
        self._bar.update(self._task, description=best, completed=sum(self._episodes.values()))

    def ended(self, trial: SweepTrial) -> None:
        """Show how a trial ended."""
        self._episodes[str(trial.number)] = trial.episodes
        if trial.status == "finished" and trial.score is not None:
            self._scores.append(trial.score)
        values = " ".join(f"{key}={_short(own)}" for key, own in trial.values.items())
        score = "" if trial.score is None else f" {trial.score:.4g}"
        reason = f" ({trial.why})" if trial.why else ""
        self.say(f"trial {trial.number} {values}: {trial.status}{score}{reason}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
