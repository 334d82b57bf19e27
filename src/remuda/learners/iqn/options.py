"""Options of IQN."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from remuda.core.errors import ConfigError
from remuda.core.options import Options
from remuda.learners.recurrent import CELLS
from remuda.learners.schedule import PerAgent


class IQNOptions(Options):
    """Options of IQN. A value marked "per agent" may be a list, or a schedule "from:to:share" over the run."""

    layer: int = Field(250, ge=1, description="width of the hidden layers; default with body=gru or lstm: 256")
    frames: int = Field(5, ge=1, description="stacked observations, the newest included")
    quantiles: int = Field(12, ge=1, description="quantiles in the loss")
    acting_quantiles: int = Field(8, ge=1, description="fixed quantiles whose mean chooses actions")
    batch_size: int = Field(64, ge=4, description="transitions per update and agent")
    replay_size: int | None = Field(None, ge=1, description="observations kept per agent; default: at least 4 rounds")
    n_step: int = Field(1, ge=1, description="turns of reward before the bootstrap")
    learning_starts: int | None = Field(None, ge=1, description="transitions before learning; default: batch_size")
    lr: PerAgent = Field("0.002:0.0002", description="learning rate; per agent")
    gamma: PerAgent = Field(0.99, description="discount; per agent")
    epsilon: PerAgent = Field("0.9:0.05:0.6", description="share of random actions while training; per agent")
    tau: float = Field(
        0.003, gt=0, le=1, description="share by which the target network moves to the network per update"
    )
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    sigma: float = Field(0.017, ge=0, description="initial noise of the noisy layers; 0 turns it off")
    body: str | None = Field(
        None, description="what reads observations: mlp (default, one layer), cnn, gru, lstm, or your own, module:Class"
    )
    sequence: int = Field(
        8, ge=1, description="with body=gru or lstm: turns that are learned in a row, of which batches are made"
    )
    compile: bool = Field(
        False, description="learn with torch.compile: other last bits, and a minute of compiling at the start"
    )
    burn_in: int = Field(8, ge=0, description="with body=gru or lstm: turns before them that renew a stored state")

    @model_validator(mode="before")
    @classmethod
    def _default_of_memories(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Widths of memories are multiples of 8, and the default of the other networks is none."""
        return {"layer": 256, **values} if values.get("body") in CELLS else values

    def check(self) -> None:
        """Raise if options contradict each other."""
        if self.replay_size is not None and self.batch_size > self.replay_size:
            raise ConfigError(
                f"batch_size={self.batch_size} is larger than replay_size={self.replay_size}: "
                "lower batch_size or raise replay_size"
            )
