"""Options that every learner for one agent has; a learner of one's own adds to them."""

from __future__ import annotations

from pydantic import Field

from remuda.core.options import Options
from remuda.learners.schedule import Passes, PerAgent


class SingleAgentOptions(Options):
    """Options of both kinds. A value marked "per agent" may be a list, or a schedule "from:to:share" over the run."""

    frames: int = Field(1, ge=1, description="stacked observations, the newest included")
    lr: PerAgent = Field(0.001, description="learning rate of Adam; per agent")
    gamma: PerAgent = Field(0.99, description="discount; per agent")
    grad_clip: float = Field(10.0, gt=0, description="largest gradient norm")
    stack: bool = Field(True, description="compute agents together by torch.func where that gives the same bits")


class OffPolicyOptions(SingleAgentOptions):
    """Options of a learner with a replay buffer and a target network."""

    epsilon: PerAgent = Field("1:0.05:0.5", description="share of random actions while training; per agent")
    batch_size: int = Field(64, ge=1, description="transitions per update")
    n_step: int = Field(1, ge=1, description="turns whose rewards are summed before the value of the next observation")
    replay_size: int | None = Field(None, ge=2, description="observations kept per agent; default: by the game")
    learning_starts: int | None = Field(
        None, ge=1, description="transitions before the first update; default: batch_size"
    )
    tau: float = Field(
        0.01, gt=0, le=1, description="share by which the target network moves to the network per update"
    )


class OnPolicyOptions(SingleAgentOptions):
    """Options of a learner that learns from each round once it is played, and then forgets it."""

    gae_lambda: float = Field(0.95, ge=0, le=1, description="decay of generalised advantages; 1: Monte Carlo")
    passes: Passes = Field(1, description="times each round is learned from; or a list with one number per agent")
    minibatches: int = Field(1, ge=1, description="gradient steps per pass")
