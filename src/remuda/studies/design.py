"""The design of a study: which variants, which seeds, and the runs they make.

A study file is YAML:

    settings: {game: cage2, total_episodes: 2000}   # of every run, as for `remuda train`
    variants:                                       # named settings; or
      plain: {}
      wide: {layers: [256, 256]}
    grid:                                           # every combination of these values; or both, crossed
      lr: [0.001, 0.003]
    seeds: 10                                       # 0 … 9; or a list
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from remuda.core.errors import ConfigError, UsageError
from remuda.core.options import MAX_INT, Options, short_repr
from remuda.core.plan import Plan
from remuda.core.rewards import REWARD
from remuda.core.yamlfile import read_yaml
from remuda.engines.table import AUTO
from remuda.runs.settings import make_plan
from remuda.studies.metric import check_metric
from remuda.studies.trials.places import ON_HELP, PROCESSES, on_ray

MAX_RUNS = 10_000
"""Of one study: each has its plan in memory before the first one starts."""
UNCOMPARED = (
    "n_workers", "n_learners", "address", "actor_cpus", "actor_gpus", "actor_resources", "pictures", "callbacks",
    "timeline", "log_schedule", "checkpoint_every", "checkpoint_every_s", "keep_checkpoints", "max_failures",
    "start_limit_s", "turn_limit_s",
)  # fmt: skip
"""Settings in which a run may differ from the design and still be one of its runs: they do not change its results."""
CHOSEN_BY_AUTO = ("engine", "deterministic")
"""Settings that engine=auto fills in when a run starts."""
DEFAULTS: dict[str, Any] = {"pictures": False}
"""Settings of every run, unless the study gives others: the study draws its own curves."""


class StudyOptions(Options):
    """What a study file may say."""

    name: str = Field("", description="of the study; default: the name of its file")
    settings: dict[str, Any] = Field({}, description="settings of every run, as for `remuda train`")
    variants: dict[str, dict[str, Any]] = Field({}, description="named settings, on top of those of every run")
    grid: dict[str, list[Any]] = Field({}, description="lists of values; every combination of them is a variant")
    seeds: int | list[int] = Field(10, description="seeds of each variant: a number N stands for 0 … N-1; or a list")
    metric: str = Field("return", description="what is compared: a column of evaluations.csv, mean over the agents")
    group: str | None = Field(None, description="compare only the agents of this group; default: all")
    higher_is_better: bool = Field(True, description="whether a larger metric is better")
    baseline: str | None = Field(None, description="the variant that others are compared with; default: the first")
    margin: float | None = Field(
        None, gt=0, description="differences from the baseline up to this count as none (test of equivalence, TOST)"
    )
    side_by_side: int | None = Field(None, ge=1, le=4096, description="runs at once; default: the cores")
    on: str = Field(PROCESSES, description=ON_HELP)

    def check(self) -> None:
        """Refuse lists that make no runs."""
        on_ray(self.on)
        if "/" in self.name or self.name in (".", ".."):
            raise ConfigError(f"name={self.name!r} (the study) is the name of its directory: give one without a slash")
        count = self._count()
        if count > MAX_RUNS:
            raise ConfigError(
                f"the study has {count:,} runs, more than {MAX_RUNS:,}: give fewer seeds or values of grid"
            )
        if isinstance(self.seeds, int) and self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} (the study) should be at least 1, or a list of seeds")
        if not self.seed_list or len(set(self.seed_list)) < len(self.seed_list):
            raise ConfigError(f"seeds={self.seeds} (the study) should be different seeds, at least one")
        if any(not 0 <= seed <= MAX_INT for seed in self.seed_list):
            raise ConfigError(f"seeds={self.seeds} (the study) should be from 0 to {MAX_INT}")
        for name, values in self.grid.items():
            if not values:
                raise ConfigError(f"grid: {name} has no values: give a list of at least one")
        if "seed" in self.settings or "seed" in self.grid:
            raise ConfigError("seed is given by the study: write seeds: N, or a list of seeds")

    def _count(self) -> int:
        """How many runs the study has."""
        points = math.prod(len(values) for values in self.grid.values())
        seeds = self.seeds if isinstance(self.seeds, int) else len(self.seeds)
        return max(1, len(self.variants)) * points * seeds

    @property
    def seed_list(self) -> list[int]:
        """The seeds one by one."""
        return [*range(self.seeds)] if isinstance(self.seeds, int) else self.seeds


@dataclass(frozen=True)
class Variant:
    """Settings that are compared with others."""

    name: str
    settings: Mapping[str, Any]  # what it adds to the settings of every run

    @property
    def folder(self) -> str:
        """Its name as that of a directory."""
        return re.sub(r"[^\w.=+-]+", "-", self.name).strip("-.") or "variant"


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    variant: Variant
    seed: int
    settings: Mapping[str, Any]
    plan: Plan

    @property
    def name(self) -> str:
        """Its directory below the study's `runs`."""
        return f"{self.variant.folder}/seed-{self.seed}"

    def differs_from(self, other: Plan) -> str | None:
        """The first setting that decides results and that another plan has otherwise; None if there is none."""
        skipped = {*UNCOMPARED, *(CHOSEN_BY_AUTO if self.plan.engine == AUTO else ())}
        mine, theirs = (own.model_dump(mode="json", exclude=skipped) for own in (self.plan, other))
        return _first_difference(mine, theirs)


def _first_difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """The name of a value that differs, with those of the mappings it is in: `options.growth`."""
    for name in {**mine, **theirs}:
        a, b = mine.get(name), theirs.get(name)
        if a != b:
            inner = _first_difference(a, b) if isinstance(a, Mapping) and isinstance(b, Mapping) else None
            return f"{name}.{inner}" if inner else name
    return None


@dataclass(frozen=True)
class Design:
    """A study's options and the runs they make."""

    options: StudyOptions
    variants: Sequence[Variant]
    runs: Sequence[StudyRun]

    @classmethod
    def of(cls, options: StudyOptions) -> Design:
        """All runs, checked: wrong settings are refused before anything is started."""
        variants = make_variants(options)
        if options.baseline is not None and options.baseline not in [variant.name for variant in variants]:
            names = ", ".join(repr(variant.name) for variant in variants)
            raise ConfigError(f"baseline={options.baseline!r} is no variant of the study: it has {names}")
        return cls(options, variants, [run for variant in variants for run in _runs(options, variant)])

    @property
    def baseline(self) -> str:
        """The variant that others are compared with."""
        return self.options.baseline or self.variants[0].name

    @property
    def warning(self) -> str:
        """What makes the comparison doubtful, if anything does."""
        transforms = [own.plan.options.get(REWARD) for own in self.runs]
        if self.options.metric != "return" or all(own == transforms[0] for own in transforms):
            return ""
        return (
            "warning: variants differ in reward.*, and `return` is what agents receive after it; "
            "metric=game_return compares what the game pays"
        )


def make_variants(options: StudyOptions) -> list[Variant]:
    """Named variants times the points of the grid."""
    points = [dict(zip(options.grid, values, strict=True)) for values in product(*options.grid.values())]
    variants = []
    for name, own in (options.variants or {"": {}}).items():
        for point in points:
            words = [name, *(f"{key}={_short(value)}" for key, value in point.items())]
            joined = " ".join(word for word in words if word)
            variants.append(Variant(joined or str(options.settings.get("game", "all")), {**own, **point}))
    folders = [variant.folder for variant in variants]
    twice = next((variant for variant in variants if folders.count(variant.folder) > 1), None)
    if twice is not None:
        raise ConfigError(f"two variants are called {twice.folder!r}: give them different names")
    return variants


def _short(value: Any) -> str:
    return re.sub(r"[\s'\"]", "", short_repr(value))


def _runs(options: StudyOptions, variant: Variant) -> list[StudyRun]:
    settings = {**DEFAULTS, **options.settings, **variant.settings}
    if "seed" in variant.settings:
        raise ConfigError(f"variant {variant.name!r}: seed is given by the study: write seeds: N, or a list of seeds")
    try:
        plan = make_plan(settings)
        check_metric(options.metric, plan, options.group)
    except UsageError as error:
        raise ConfigError(f"variant {variant.name!r}: {error}") from None
    return [
        StudyRun(variant, seed, {**settings, "seed": seed}, plan.model_copy(update={"seed": seed}))
        for seed in options.seed_list
    ]


def read_design(path: Path, changes: Mapping[str, Any] | None = None) -> StudyOptions:
    """The options in a study file; `changes` are laid over them, settings one by one."""
    content = read_yaml(path)
    changes = dict(changes or {})
    own = content.get("settings", {})
    if "settings" in changes and isinstance(own, Mapping):
        changes["settings"] = {**own, **changes["settings"]}
    return StudyOptions.read({"name": path.stem, **content, **changes}, f"study file {path}")
