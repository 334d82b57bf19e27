"""Shows a study on the console: a bar over the episodes of all runs, and a line for each run that ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rich.progress import TimeRemainingColumn

from remuda.studies.design import Design
from remuda.studies.trials.episode_bar import EpisodeBar
from remuda.studies.trials.trial import TrialOutcome, TrialProgress

LINE_EVERY_S = 30.0
"""Seconds between two lines about the whole study where there is no terminal."""


class StudyProgress(EpisodeBar):
    """A bar on a terminal, lines elsewhere."""

    def __init__(self, folder: Path, design: Design, done: Mapping[str, Path], quiet: bool) -> None:
        self._folder = folder
        self._plans = {own.name: own.plan.total_episodes for own in design.runs}
        self._episodes = {name: self._plans[name] for name in done}
        self._ended = len(done)
        self._running: dict[str, int] = {}
        self._began = self._last_line = time.monotonic()
        self._known = sum(self._episodes.values())  # episodes that were there when the study started
        super().__init__(quiet, sum(self._plans.values()), sum(self._episodes.values()), TimeRemainingColumn())
        variants, runs = len(design.variants), len(design.runs)
        known = f", {self._ended} of them are there already" if self._ended else ""
        self.say(f"{variants} {'variant' if variants == 1 else 'variants'}, {runs} runs{known}; directory {folder}")
        if design.warning:
            self.say(design.warning)

    def tell(self, progress: TrialProgress) -> None:
        """Move the bar."""
        self._running[progress.name] = self._episodes[progress.name] = progress.episodes
        self._update()
        if not self.console.is_terminal and time.monotonic() - self._last_line > LINE_EVERY_S:
            self._last_line = time.monotonic()
            total = sum(self._plans.values())
            self.say(f"{self._line()}; {sum(self._episodes.values()):,} of {total:,} episodes{self._time_left()}")

    def ended(self, outcome: TrialOutcome) -> None:
        """Show how a run ended."""
        name = outcome.trial.name
        self._running.pop(name, None)
        if outcome.status in ("finished", "ended"):
            self._ended += 1
            self._episodes[name] = self._plans[name]
        reason = f": {outcome.why}" if outcome.why else ""
        self.say(f"{self._ended}/{len(self._plans)} {name} {outcome.status}{reason}{self._time_left()}")
        self._update()

    def close_with(self, finished: bool, stopped_by: int | None) -> None:
        """Say what is left."""
        missing = len(self._plans) - self._ended
        if stopped_by is not None:
            self.say(f"stopped with {missing} runs to go; continue with: remuda resume {self._folder}")
        elif not finished:
            self.say(
                f"{missing} runs failed, see {self._folder}/errors; `remuda resume {self._folder}` tries them again"
            )

    def _time_left(self) -> str:
        """How long the rest takes at the speed so far; nothing on a terminal, whose bar shows it."""
        done, total = sum(self._episodes.values()), sum(self._plans.values())
        if self.console.is_terminal or not self._known < done < total:
            return ""
        seconds = (time.monotonic() - self._began) / (done - self._known) * (total - done)
        return f"; about {seconds / 60:.0f} min left" if seconds >= 90 else f"; about {seconds:.0f} s left"

    def _line(self) -> str:
        return f"{self._ended}/{len(self._plans)} runs, {len(self._running)} under way"

    def _update(self) -> None:
        self.move(self._line(), sum(self._episodes.values()))
