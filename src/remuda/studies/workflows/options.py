"""What a search is told, and what it writes down about each trial."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remuda.core.options import Options

Method = Literal["gp-ucb", "random", "halving", "conditioned"]


class SearchOptions(Options):
    """How to search. Everything else is a setting of the trials."""

    method: Method = Field(
        "gp-ucb",
        description="gp-ucb: where a Gaussian process hopes for most; random; halving: all of them, and again the "
        "better half; conditioned: one policy for all of them at once",
    )
    total_episodes: int = Field(100_000, ge=1, description="episodes of training, over all trials")
    trial_episodes: int | None = Field(None, ge=1, description="most episodes of a trial; default: a tenth of all")
    compliance_threshold: float = Field(0.9, ge=0, le=1, description="a trial below it reports no return")
    patience: int = Field(20, ge=1, description="rounds without getting better after which a trial ends")
    exploration: float = Field(2.0, ge=0, description="gp-ucb: standard deviations added to the expected return")
    side_by_side: int = Field(1, ge=1, le=256, description="trials at once, each in a process of its own")
    score_episodes: int = Field(500, ge=2, description="fresh episodes that each order is scored on at the end")
    seed: int = Field(0, ge=0, lt=2**50, description="decides every random number of the search and its trials")

    @property
    def longest(self) -> int:
        """Most episodes of a trial."""
        return self.trial_episodes or max(1, self.total_episodes // 10)


class WorkflowTrial(Options):
    """One order to be tried: trained for at most `episodes`, from the weights that trial `parent` ended with."""

    number: int = Field(ge=0)
    workflow: str
    parent: int | None = Field(None, ge=0)
    episodes: int = Field(ge=1)
    patient: bool = True  # ends early when it gets no better


class TrialResult(Options):
    """What came of a trial; returns and compliance are means over its last rounds."""

    trial: WorkflowTrial
    episodes: int = Field(ge=0)
    compliance: float = Field(ge=0, le=1)
    fixes: float = Field(ge=0)
    env_return: float
    env_return_se: float = Field(ge=0)
    passed: bool
    why: str  # it ended
    collect_s: float = Field(ge=0)
    learn_s: float = Field(ge=0)
    wall_s: float = Field(ge=0)
