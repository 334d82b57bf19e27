"""The options of a sweep, and what it records about each trial."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.options import Options
from remuda.studies.trials.places import ON_HELP, PROCESSES, on_ray


class SweepOptions(Options):
    """How to sweep. All other settings are settings of the trials; those that are ranges are searched."""

    method: Literal["tpe", "random"] = Field("tpe", description="who proposes values: TPE (Optuna), or chance")
    prune: Literal["hyperband", "halving", "none"] = Field(
        "hyperband", description="which trials end early, by their evaluations"
    )
    trials: int | None = Field(None, ge=1, description="how many; default: 40, or as many as the budget allows")
    budget_episodes: int | None = Field(None, ge=1, description="episodes of training, over all trials")
    minutes: float | None = Field(None, gt=0, description="no trial is started later; cannot be repeated exactly")
    batch: int = Field(4, ge=1, le=4096, description="a trial knows the results of all but the last batch - 1 trials")
    metric: str = Field("return", description="what is maximised: a column of evaluations.csv, mean over the agents")
    higher_is_better: bool = Field(True, description="whether a larger metric is better")
    side_by_side: int | None = Field(None, ge=1, le=4096, description="trials at once; default: the cores")
    on: str = Field(PROCESSES, description=ON_HELP)
    seed: int = Field(0, ge=0, lt=2**50, description="decides every random number of the sweep and its trials")

    def check(self) -> None:
        """Fill in nothing, but refuse what contradicts."""
        on_ray(self.on)
        if self.trials is not None and self.budget_episodes is not None:
            raise ConfigError("trials and budget_episodes both say how long the sweep is: give one of them")

    @property
    def max_trials(self) -> int:
        """The most trials."""
        return self.trials or (40 if self.budget_episodes is None and self.minutes is None else 100_000)


class SweepTrial(Options):
    """A trial: its values, and once it has ended what came out."""

    number: int = Field(ge=0)
    values: dict[str, Any]  # of the settings that are searched
    status: Literal["running", "finished", "pruned", "failed"] = "running"
    score: float | None = None
    evaluations: list[float] = Field([])
    rungs: dict[str, float] = Field({})  # what Optuna's pruner remembers of it
    episodes: int = Field(0, ge=0)
    why: str = ""
