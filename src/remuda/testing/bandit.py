"""A contextual bandit, small enough that every learner should solve it within seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core import rng
from remuda.core.game import Group
from remuda.core.options import Options
from remuda.testing.odd_games import OddGame, entry_for

CONTEXTS = 3


class BanditOptions(Options):
    """Options of the bandit."""

    agents: int = Field(4, ge=1, description="agents in the group")
    turns: int = Field(8, ge=1, description="turns in an episode")


class Bandit(OddGame):
    """Each turn shows each agent one of three contexts; the action of the same number pays 1, others 0."""

    def __init__(self, options: BanditOptions, worlds: Sequence[int]) -> None:
        group = Group("gamblers", options.agents, (CONTEXTS,), np.float32, CONTEXTS, low=0, high=1)
        super().__init__(options, worlds, group)

    def _contexts(self, first: int, last: int) -> NDArray[np.int64]:
        """The context of each agent in this turn, (worlds, agents)."""
        keys = rng.keys(rng.keys(self.keys, self.turn)[:, None], np.arange(first, last))
        contexts: NDArray[np.int64] = (rng.uniforms(keys, 1)[..., 0] * CONTEXTS).astype(np.int64)
        return contexts

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write the context as a one-hot vector."""
        out[...] = np.eye(CONTEXTS)[self._contexts(first, last)]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay 1 for the action that fits the context."""
        self.pay(group, first, last, actions == self._contexts(first, last))


BANDIT = entry_for(Bandit, BanditOptions)
