"""Which run of a study is started next, and with how many threads: all cores are busy until the last run ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from remuda.core import session
from remuda.core.errors import RemudaError
from remuda.core.machine import cores
from remuda.engines.table import AUTO, find_engine
from remuda.runs.run import Run
from remuda.studies.design import Design, StudyRun
from remuda.studies.trials.places import on_ray, threads_on_cluster
from remuda.studies.trials.trial import Trial, TrialOutcome, TrialProgress

WIDEN_S = 10.0
"""A run that has so many seconds to go is saved and continued with more threads once cores have nothing else to do.

A choice, not a measurement: it should be well above what saving, reading a checkpoint and starting anew take.
"""


class RunSchedule:
    """Starts one run of each variant, then the longest of those that are left, as measured: short ones fill gaps."""

    def __init__(
        self,
        todo: Sequence[StudyRun],
        folders: Mapping[str, Path],
        design: Design,
        done: Mapping[str, Path] | None = None,
    ) -> None:
        """`folders` are those of the runs to do, `done` are runs that are there already, both by name."""
        self._runs = {own.name: own for own in todo}
        self._waiting = [*todo]
        self._folders = folders
        self._begun: set[str] = set()  # variants of which a run was started or measured
        self._costs: dict[str, list[float]] = {}  # by variant: processor seconds per episode of each finished run
        self._rates: dict[str, _TrainingRate] = {}  # of the runs under way
        for own in design.runs:
            if done is not None and own.name in done:
                self._measure(own.variant.name, done[own.name])
        self._on_cluster = on_ray(design.options.on)
        fixed = [own.plan.n_workers or 1 for own in todo]
        fitting = len(todo) if self._on_cluster else max(1, cores() // max(fixed, default=1))
        self.side_by_side = max(1, min(design.options.side_by_side or fitting, len(todo)))

    @property
    def objects(self) -> set[str]:
        """Names of games and networks of this Python session."""
        values = [own.plan.game for own in self._waiting]
        values += [
            value for own in self._waiting for opts in own.plan.learner_options.values() for value in opts.values()
        ]
        return {value for value in values if session.is_session_name(value)}

    def next_trial(self, busy: int) -> Trial | None:
        """The next run, with its share of the cores; on a cluster with those that it claims."""
        if not self._waiting:
            return None
        share = max(1, cores() // min(self.side_by_side, busy + len(self._waiting)))
        own = min(self._waiting, key=lambda run: (run.variant.name in self._begun, -self._expected_s(run)))
        self._waiting.remove(own)
        self._begun.add(own.variant.name)
        return Trial(
            name=own.name,
            folder=self._folders[own.name],
            settings=own.settings,
            episodes=own.plan.total_episodes,
            n_workers=threads_on_cluster(own.plan) if self._on_cluster else own.plan.n_workers or share,
        )

    def widen(self, trial: Trial, busy: int) -> Trial | None:
        """The trial with more threads, if cores are idle and it has long to go; resuming does not change its result."""
        own, rate = self._runs[trial.name], self._rates.get(trial.name)
        share = cores() // max(1, busy)
        if self._waiting or own.plan.n_workers is not None or share <= (trial.n_workers or 1) or not _can_widen(own):
            return None
        if rate is None or rate.seconds_left(trial.episodes) < WIDEN_S:
            return None
        del self._rates[trial.name]  # it begins anew with the threads
        return replace(trial, n_workers=share)

    def tell(self, progress: TrialProgress) -> None:
        """Note how fast a run is."""
        self._rates.setdefault(progress.name, _TrainingRate(progress.episodes)).episodes = progress.episodes

    def ended(self, outcome: TrialOutcome) -> None:
        """Note what a run took."""
        self._rates.pop(outcome.trial.name, None)
        if outcome.status == "finished":
            self._measure(self._runs[outcome.trial.name].variant.name, outcome.trial.folder)

    def _measure(self, variant: str, path: Path) -> None:
        self._begun.add(variant)
        result = Run(path).result
        self._costs.setdefault(variant, []).append(float(result["cpu_s"]) / max(1, int(result["episodes"])))

    def _expected_s(self, own: StudyRun) -> float:
        """Processor seconds that a run has to go; episodes, while nothing is measured."""
        costs = self._costs.get(own.variant.name) or [cost for costs in self._costs.values() for cost in costs]
        left = own.plan.total_episodes - _saved_episodes(self._folders[own.name])
        return left * (sum(costs) / len(costs) if costs else 1.0)


class _TrainingRate:
    """How fast a run is, from the first report on."""

    def __init__(self, episodes: int) -> None:
        self._began, self._first = time.monotonic(), episodes
        self.episodes = episodes

    def seconds_left(self, total: int) -> float:
        """Until the run ends, if it goes on like this; 0 while that is not known."""
        done = self.episodes - self._first
        return (time.monotonic() - self._began) / done * (total - self.episodes) if done > 0 else 0.0


def _can_widen(own: StudyRun) -> bool:
    """Whether a run can be stopped and continued with other threads, and more of them help."""
    if own.plan.engine in (AUTO, "vectorized"):
        return True
    engine = find_engine(own.plan.engine)
    return engine.name != "sequential" and not engine.machines and (own.plan.deterministic or not engine.free)


def _saved_episodes(folder: Path) -> int:
    """Episodes of the newest checkpoint of a run that was interrupted."""
    try:
        saved = Run(folder).checkpoints()
    except RemudaError:
        return 0
    return int(saved[0].name) if saved else 0
