"""Options of PPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.options import Options
from remuda.learners.schedule import Passes, PerAgent


class PPOOptions(Options):
    """Options of PPO. A value marked "per agent" may be a list, or a schedule "from:to:share" over the run."""

    layers: list[int] = Field([64, 64], description="widths of the hidden layers, of actor and critic alike")
    body: str | None = Field(
        None, description="what reads observations: mlp (default), cnn, gru, lstm, or your own, module:Class"
    )
    features: int = Field(64, ge=1, description="numbers that a body or a memory gives to the layers")
    sequence: int = Field(16, ge=1, description="turns that a gradient goes back through, with body=gru or lstm")
    activation: Literal["tanh", "relu"] = Field("tanh", description="between the layers")
    spread: Literal["shared", "predicted"] = Field(
        "shared", description="of continuous actions: one for all observations, or predicted by the actor"
    )
    initial_std: float = Field(1.0, gt=0.01, le=7, description="standard deviation that spread=shared starts with")
    frames: int = Field(1, ge=1, description="stacked observations, the newest included")
    critic: Literal["obs", "state", "both"] = Field(
        "obs", description="what the critic sees: observations, the game's privileged state, or both"
    )
    passes: Passes = Field(4, description="times each round is learned from; or a list with one number per agent")
    minibatches: int = Field(8, ge=1, description="gradient steps per pass")
    minibatch_size: int | None = Field(
        None, ge=1, description="turns per gradient step, instead of minibatches: longer episodes make more steps"
    )
    lr: PerAgent = Field("0.001:0.0001", description="learning rate; per agent")
    gamma: PerAgent = Field(0.99, description="discount; per agent")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="decay of generalised advantages; 1: Monte Carlo")
    clip: float = Field(0.2, gt=0, description="clip range of the probability ratio")
    entropy: PerAgent = Field(0.01, description="weight of the entropy bonus; per agent")
    value_weight: float = Field(0.5, ge=0, description="weight of the critic's loss")
    beta2: float = Field(0.999, gt=0, lt=1, description="Adam's decay of squared gradients")
    grad_clip: float = Field(0.5, gt=0, description="largest gradient norm")
    normalise_advantages: bool = Field(True, description="to mean 0 and variance 1 over a minibatch")
    normalise_values: bool = Field(True, description="the critic predicts standardised returns")
    normalise_observations: bool = Field(False, description="the networks see standardised observations")
    reward_scale: float = Field(1.0, gt=0, description="rewards are multiplied by this")

    def steps_per_pass(self, rows: int) -> int:
        """Gradient steps in a pass over so many turns of an agent."""
        return self.minibatches if self.minibatch_size is None else max(1, rows // self.minibatch_size)

    def check(self) -> None:
        """Raise if options contradict each other."""
        if not self.layers or min(self.layers) < 1:
            raise ConfigError(f"layers={self.layers} should list at least one width, each at least 1")
        if self.body not in (None, "mlp") and self.normalise_observations:
            raise ConfigError(f"normalise_observations=true goes with body=mlp only: leave it out with {self.body}")
