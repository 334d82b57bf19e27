"""The options of a search, and what it records about each trial."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remuda.core.options import Options
from remuda.studies.trials.places import ON_HELP, PROCESSES, on_ray

Method = Literal["gp-ucb", "random", "halving", "conditioned"]


class SearchOptions(Options):
    """How to search. All other settings are settings of the trials."""

    method: Method = Field(
        "gp-ucb",
        description="gp-ucb: the order with the largest upper confidence bound of a Gaussian process; random; halving: "
        "all orders, then again the better half; conditioned: one policy for all orders at once",
    )
    total_episodes: int = Field(100_000, ge=1, description="episodes of training, over all trials")
    trial_episodes: int | None = Field(None, ge=1, description="most episodes of a trial; default: a tenth of all")
    compliance_threshold: float = Field(0.9, ge=0, le=1, description="a trial below it reports no return")
    patience: int = Field(20, ge=1, description="rounds without improvement after which a trial ends")
    exploration: float = Field(2.0, ge=0, description="gp-ucb: standard deviations added to the expected return")
    side_by_side: int = Field(1, ge=1, le=256, description="trials at once, each in its own process")
    on: str = Field(PROCESSES, description=ON_HELP)
    score_episodes: int = Field(500, ge=2, description="fresh episodes on which each order is scored at the end")
    seed: int = Field(0, ge=0, lt=2**50, description="decides every random number of the search and its trials")

    def check(self) -> None:
        """Refuse what is no place."""
        on_ray(self.on)

    @property
    def max_trial_episodes(self) -> int:
        """The most episodes of a trial."""
        return self.trial_episodes or max(1, self.total_episodes // 10)


class WorkflowTrial(Options):
    """One order to try: trained for at most `episodes`, starting from the final weights of trial `parent`."""

    number: int = Field(ge=0)
    workflow: str
    parent: int | None = Field(None, ge=0)
    episodes: int = Field(ge=1)
    patient: bool = True  # ends early when it no longer improves


class TrialResult(Options):
    """The result of a trial; returns and compliance are means over its last rounds."""

    trial: WorkflowTrial
    episodes: int = Field(ge=0)
    compliance: float = Field(ge=0, le=1)
    fixes: float = Field(ge=0)
    env_return: float
    env_return_se: float = Field(ge=0)
    passed: bool
    why: str  # the reason why it ended
    collect_s: float = Field(ge=0)
    learn_s: float = Field(ge=0)
    wall_s: float = Field(ge=0)
