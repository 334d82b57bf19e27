"""Shows a sweep on the console: a bar over episodes, and a line for each trial that ended."""

from __future__ import annotations

from collections.abc import Sequence

from remuda.studies.sweeps.options import SweepOptions, SweepTrial
from remuda.studies.trials.episode_bar import EpisodeBar
from remuda.studies.trials.trial import TrialProgress


class SweepProgress(EpisodeBar):
    """A bar on a terminal, lines elsewhere."""

    def __init__(self, options: SweepOptions, each: int, trials: Sequence[SweepTrial], quiet: bool) -> None:
        self._better = max if options.higher_is_better else min
        self._episodes = {str(trial.number): trial.episodes for trial in trials}
        self._scores = [own.score for own in trials if own.status == "finished" and own.score is not None]
        total = options.budget_episodes or (None if options.trials is None else options.trials * each)
        super().__init__(quiet, total, sum(self._episodes.values()))
        if trials:
            self.say(f"going on after {sum(own.status != 'running' for own in trials)} trials")

    def tell(self, progress: TrialProgress) -> None:
        """Move the bar."""
        self._episodes[progress.name] = progress.episodes
        best = f"best {self._better(self._scores):.4g}" if self._scores else ""
        self.move(best, sum(self._episodes.values()))

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
