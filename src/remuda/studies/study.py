"""A study: seeds times variants, run side by side in one directory.

    DIR/study.yaml            the design
    DIR/runs/VARIANT/seed-N   ordinary run directories
    DIR/study.json            runs that a callback ended, and runs that failed

Everything else is read from the runs: a run whose result.json says that it is finished is not run again, one with a
checkpoint goes on from there. So a study can be killed at any moment and continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from remuda.core import session
from remuda.core.code_names import refuse_while_importing
from remuda.core.errors import RemudaError, RunError
from remuda.core.paths import is_file
from remuda.core.yamlfile import read_yaml
from remuda.games.registry import AnyGame, game_name
from remuda.runs.callbacks.base import Row
from remuda.runs.directory import CONFIG
from remuda.runs.display import text_table
from remuda.runs.folder import locked
from remuda.runs.run import Run
from remuda.runs.storage import storage_errors
from remuda.runs.trust import check_trust, sign, sign_runs
from remuda.studies.design import Design, StudyOptions, read_design
from remuda.studies.page import PAGE, write_page
from remuda.studies.progress import StudyProgress
from remuda.studies.report import StudyReport
from remuda.studies.schedule import RunSchedule
from remuda.studies.state import StudyState
from remuda.studies.trials.opening import open_places
from remuda.studies.trials.places import on_ray
from remuda.studies.trials.pool import TrialPool
from remuda.studies.trials.trial import TrialOutcome, TrialProgress
from remuda.transport.processes import refuse_inside_workers

STUDY, RUNS, ERRORS = "study.yaml", "runs", "errors"
STUDIES = Path("studies")


def study(
    file: Path | str | None = None,
    *,
    game: AnyGame | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    side_by_side: int | None = None,
    on: str | None = None,
    out: Path | str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Study:
    """Run a study, from a file or from arguments, and return it; in the same directory it goes on where it stopped.

    `settings` are those of every run, as for `train`. `variants` are named settings, `grid` has lists of values,
    `seeds` is a number or a list. `on="ray:HOST:PORT"` has the runs on a Ray cluster. `out` defaults to studies/NAME.
    """
    given: dict[str, Any] = {
        "variants": variants, "grid": grid, "seeds": seeds, "metric": metric, "baseline": baseline, "margin": margin,
        "side_by_side": side_by_side, "on": on,
    }  # fmt: skip
    changes = {name: _plain(value) for name, value in given.items() if value is not None}
    if game is not None:
        settings["game"] = game
    if "game" in settings:
        settings["game"] = game_name(settings["game"])
    if settings:
        changes["settings"] = _plain(settings)
    if file is None:
        options = StudyOptions.read(changes, "the study")
        return run_study(Design.of(options), _next_folder(options) if out is None else Path(out), quiet)
    path = Path(file)
    options = read_design(path, changes)
    return run_study(Design.of(options), Path(out) if out is not None else STUDIES / options.name, quiet)


def _plain(value: Any) -> Any:
    """The value as plain data, which a YAML file can hold: classes and functions become names."""
    if isinstance(value, Mapping):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(own) for own in value]
    return session.name_object(value) if callable(value) else value


def _next_folder(options: StudyOptions) -> Path:
    """A free directory for a study that has no file."""
    name = options.name or str(options.settings.get("game", "study")).replace(":", "-")
    return next(folder for n in count(1) if not (folder := STUDIES / f"{name}-{n:03d}").exists())


def resume_study(folder: Path, quiet: bool = False, trust: bool = False, on: str | None = None) -> Study:
    """Continue the study in a directory; `trust` follows names of code in one that somebody else made."""
    if trust:
        sign_runs(folder)
    design = open_design(folder, trust)
    if on is not None:
        on_ray(on)
        design = replace(design, options=design.options.model_copy(update={"on": on}))
    return run_study(design, folder, quiet)


def is_study(folder: Path) -> bool:
    """Whether the directory holds a study."""
    return is_file(folder / STUDY)


def open_design(folder: Path, trust: bool = False) -> Design:
    """The design of the study in a directory."""
    if not is_study(folder):
        raise RunError(f"{folder} is not a study: it has no {STUDY}")
    settings = read_yaml(folder / STUDY)
    check_trust(folder, settings, trust)
    return Design.of(StudyOptions.read(settings, f"{folder / STUDY}"))


@dataclass(frozen=True, repr=False)
class Study:
    """A study and its runs, finished or not."""

    path: Path
    design: Design
    folders: Mapping[str, Path]  # by name of the run
    failures: Mapping[str, str]  # by name of the run: why it failed
    stopped_by: int | None = None

    @property
    def finished(self) -> bool:
        """Whether every run has come to its end."""
        return not self.failures and all(own.name in self.folders for own in self.design.runs)

    def runs(self) -> dict[str, list[Run]]:
        """The runs that have come to their end, by variant."""
        found: dict[str, list[Run]] = {variant.name: [] for variant in self.design.variants}
        for own in self.design.runs:
            if own.name in self.folders:
                found[own.variant.name].append(Run(self.folders[own.name]))
        return found

    @cached_property
    def report(self) -> StudyReport:
        """The statistics of the runs that have come to their end."""
        return StudyReport.of(self.design, self.folders)

    def result(self) -> Row:
        """What came out, for programs."""
        return {
            "study": str(self.path),
            "finished": self.finished,
            "metric": self.design.options.metric,
            "variants": self.report.variant_rows(),
            "comparisons": self.report.comparison_rows(),
            "runs": self.report.run_rows(),
            "compute": self.report.compute(),
            "failures": dict(self.failures),
        }

    def __repr__(self) -> str:
        report = self.report
        lines = [f"study {self.path}: {len(self.folders)} of {len(self.design.runs)} runs are there"]
        lines += [text_table(report.table())] if report.variants else []
        lines += [f"{own.name}: {own.note}" for own in report.variants if own.note]
        lines += [self.design.warning] if self.design.warning else []
        lines += [f"{name} failed: {why}" for name, why in self.failures.items()]
        lines += [f"look at {self.path / PAGE}"] if (self.path / PAGE).exists() else []
        return "\n".join(lines)


def run_study(design: Design, folder: Path, quiet: bool = False) -> Study:
    """Run what is not there yet."""
    refuse_while_importing()
    refuse_inside_workers()
    with locked(folder):
        state = StudyState.of(folder)
        found = find_runs(design, folder)
        _write_design(folder, design.options)
        done = {name: path for name, path in found.items() if Run(path).finished or name in state.ended}
        todo = [own for own in design.runs if own.name not in done]
        with StudyProgress(folder, design, done, quiet) as progress:
            folders = {own.name: found.get(own.name, folder / RUNS / own.name) for own in todo}
            schedule = RunSchedule(todo, folders, design, done)

            def tell(told: TrialProgress) -> None:
                progress.tell(told)
                schedule.tell(told)

            plans = [own.plan for own in todo]
            places = open_places(
                design.options.on, schedule.side_by_side, folder, plans, schedule.objects, progress.say
            )
            with TrialPool(places, tell) as pool:
                for outcome in pool.run(schedule.next_trial, schedule.widen):
                    progress.ended(outcome)
                    schedule.ended(outcome)
                    state = state.with_outcome(outcome)
                    state.write(folder)
                    _write_trace(folder, outcome)
                    if outcome.status in ("finished", "ended"):
                        done[outcome.trial.name] = outcome.trial.folder
            failures = {own.name: state.failed[own.name] for own in todo if own.name in state.failed}
            made = Study(folder, design, done, failures, pool.stopped_by)
            if done:
                made.report.write(folder)
                write_page(made.report, folder, failures)
            progress.close_with(made.finished, pool.stopped_by)
    return made


def open_study(folder: Path | str) -> Study:
    """The study in a directory, as far as it has come; nothing is run."""
    path = Path(folder)
    design, state = open_design(path), StudyState.of(path)
    found = find_runs(design, path)
    done = {name: own for name, own in found.items() if Run(own).finished or name in state.ended}
    return Study(path, design, done, {name: why for name, why in state.failed.items() if name not in done})


def find_runs(design: Design, folder: Path) -> dict[str, Path]:
    """The directories of the design's runs that exist, by name.

    A run is found by its plan, under whatever name: where a grid has grown by a setting, the runs that had its default
    are still the same runs. A directory of the right name with another plan is refused.
    """
    plans = {}
    for config in sorted((folder / RUNS).glob(f"*/seed-*/{CONFIG}")):
        try:
            plans[config.parent] = Run(config.parent).plan
        except RemudaError as error:
            raise RunError(
                f"{config.parent} cannot be read ({error}): remove it, and the study makes it anew"
            ) from None
    found = {}
    for own in design.runs:
        place = folder / RUNS / own.name
        same = [path for path, plan in plans.items() if own.differs_from(plan) is None]
        if same:
            found[own.name] = place if place in same else same[0]
        elif place in plans:
            name = own.differs_from(plans[place])
            raise RunError(
                f"{place} differs from the study as it is now in {name}: choose another --out, or name the variant "
                "otherwise"
            )
    return found


def _write_design(folder: Path, options: StudyOptions) -> None:
    with storage_errors(folder):
        draft = folder / f".{STUDY}.draft"
        draft.write_text(yaml.safe_dump(options.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
        sign(folder, read_yaml(draft))
        draft.replace(folder / STUDY)


def _write_trace(folder: Path, outcome: TrialOutcome) -> None:
    """Keep the traceback of a run that failed, and remove the one of an earlier attempt."""
    path = folder / ERRORS / f"{outcome.trial.name.replace('/', '-')}.txt"
    with storage_errors(folder):
        path.unlink(missing_ok=True)
        if outcome.status == "failed":
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{outcome.why}\n\n{outcome.trace}", encoding="utf-8")
