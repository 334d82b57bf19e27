"""Games whose turns cost real time, asleep (`SLOW`) or on the processor (`BUSY`), for tests of engines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import Group, StepCost
from remuda.core.options import Options
from remuda.core.rng import Keys
from remuda.testing.odd_games import OddGame, entry_for, low_bits


class SlowOptions(Options):
    """How long turns last."""

    turns: int = Field(20, ge=1, description="turns of an episode")
    mean_ms: float = Field(100.0, ge=0, description="mean length of a turn, in milliseconds")
    long_ms: float = Field(500.0, ge=0, description="length of a long turn, in milliseconds")
    long_share: float = Field(0.05, ge=0, lt=1, description="share of the turns that are long")

    def check(self) -> None:
        """Refuse long turns that alone exceed the mean."""
        if self.long_share * self.long_ms > self.mean_ms:
            raise ConfigError(
                f"long_share={self.long_share} of long_ms={self.long_ms} is more than mean_ms={self.mean_ms} allows: "
                "lower one of the two or raise mean_ms"
            )

    @property
    def short_ms(self) -> float:
        """How long the other turns last, so that the mean is `mean_ms`."""
        return (self.mean_ms - self.long_share * self.long_ms) / (1 - self.long_share)


class Slow(OddGame):
    """Every turn sleeps: most a little less than the mean, a few much longer.

    Each world is its own simulator: worlds in one process sleep one after another. The length of a turn is drawn from
    the world's key. The metric `asleep_s` is the sum of these lengths.
    """

    def __init__(self, options: SlowOptions, worlds: Sequence[int]) -> None:
        group = Group("sleepers", 1, (3,), np.int32, 3, metrics=("asleep_s",), low=0, high=1 << 20)
        super().__init__(options, worlds, group)
        self.options = options

    def lengths_s(self) -> NDArray[np.float64]:
        """How long this turn lasts in each world, (worlds,)."""
        u = rng.uniforms(rng.keys(self.keys, self.turn), 1)[:, 0]
        lengths: NDArray[np.float64] = np.where(
            u < self.options.long_share, self.options.long_ms, self.options.short_ms
        )
        return np.where(self.over, 0.0, lengths / 1000)

    def end(self) -> None:
        """Sleep once for every world that is not over."""
        lengths = self.lengths_s()
        time.sleep(lengths.sum())
        self.signals[0].metrics[:, 0, 0] += lengths
        super().end()


class BusyOptions(Options):
    """How much there is to compute."""

    turns: int = Field(20, ge=1, description="turns of an episode")
    work: int = Field(100_000, ge=0, description="steps of plain Python per turn and world")


class Busy(OddGame):
    """Every turn computes in plain Python, holding the GIL, for one world after another.

    The result is a number that the agent observes and that its actions change, so no part of the computation can be
    skipped.
    """

    def __init__(self, options: BusyOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("workers", 1, (3,), np.int32, 3, low=0, high=1 << 20))
        self.options = options
        self.number = np.zeros(len(worlds), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Also take the first number from the key."""
        super().reset(worlds, keys)
        self.number[worlds] = low_bits(keys)

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write world, number, turn."""
        super().observe(group, first, last, out)
        out[..., 1] = self.number[:, None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay the action and add it to the number."""
        super().act(group, first, last, actions)
        self.number += np.where(self.over, 0, actions.sum(axis=1))

    def end(self) -> None:
        """Compute the next number of every world that is not over."""
        for world in np.flatnonzero(~self.over):
            self.number[world] = congruential(int(self.number[world]), self.options.work)
        super().end()


def congruential(number: int, steps: int) -> int:
    """`steps` steps of a linear congruential generator over 0 … 65535."""
    for _ in range(steps):
        number = (number * 25173 + 13849) & 0xFFFF
    return number


SLOW = entry_for(Slow, SlowOptions, step_cost=StepCost.SLOW)
BUSY = entry_for(Busy, BusyOptions, step_cost=StepCost.SLOW)
