"""What both ways of learning from a round share: `stacked.py` (torch, any network) and `tiled.py` (compiled, CPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remuda.core import rng
from remuda.core.learner import LearnerContext
from remuda.core.rng import Keys, Stream
from remuda.learners.job_pool import JobPool
from remuda.learners.ppo.inputs import NetworkInputs
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.stack import Adam

METRICS = ("loss", "value_loss", "entropy", "kl", "grad_norm")


@dataclass(frozen=True)
class Agents:
    """The agents of a learner: networks, weights, optimiser and inputs."""

    context: LearnerContext
    options: PPOOptions
    network: PPONetwork
    weights: Tensor  # (agents, columns)
    adam: Adam
    inputs: NetworkInputs
    pool: JobPool


class RoundSettings(NamedTuple):
    """What holds for all gradient steps of a round, per agent of the learner."""

    rates: NDArray[np.float64]  # (agents,)
    bonuses: NDArray[np.float64]  # (agents,): weights of the entropy
    value_moments: NDArray[np.float64]  # (agents, 2): mean and std of the returns
    passes: NDArray[np.int64]  # (agents,): in this round
    passes_before: NDArray[np.int64]  # (agents,)

    def sample_keys(self, context: LearnerContext, agents: slice, number: int) -> Keys:
        """Keys of the minibatches of some agents in a pass, (agents,)."""
        keys = rng.keys(rng.key(context.seed, Stream.SAMPLE), context.agent_numbers[agents])
        return rng.keys(keys, self.passes_before[agents] + number)


class Learned(NamedTuple):
    """What learning from a round gave, per agent of the round."""

    means: dict[str, NDArray[np.float64]]  # of METRICS over the gradient steps, (agents,)
    made: NDArray[np.int64]  # gradient steps, (agents,)


class RoundLearning(Protocol):
    """Learns from one round."""

    def values(self) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
        """The critics' plain outputs for all rows, (agents, rows), and after the end of each agent's data."""

    def learn(self, settings: RoundSettings) -> Learned:
        """Make all passes; the round has its advantages and returns by now."""
