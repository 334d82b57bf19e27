"""Games that each break one promise of the conformance suite, in `BROKEN` by name."""

from __future__ import annotations

import random
import subprocess
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys
from remuda.testing.odd_games import Masked, OddGame, OddOptions, entry_for


class OneAction(OddGame):
    """Has a group with a single action."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("stuck", 1, (3,), np.int32, 1))


class Raises(OddGame):
    """Raises in the third turn."""

    def begin(self) -> None:
        """Raise what a bug in a game would raise."""
        if (self.turn == 2).any():
            raise ZeroDivisionError("a bug of the game's author")


class OutOfBounds(OddGame):
    """Writes behind its observations, with compiled code, which does not notice."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write one number more than there is room for."""
        super().observe(group, first, last, out)
        _write_ones(out, out.shape[2] + 1)


@kernel
def _write_ones(out: Any, count: int) -> None:
    for w, i in np.ndindex(out.shape[:2]):
        for n in range(count):
            out[w, i, n] = 1


class OutOfSpace(OddGame):
    """Shows a value above the declared `high`."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write one number that is too large, in one turn of one agent."""
        super().observe(group, first, last, out)
        if first == 0:
            out[self.turn == 3, 0, 1] = (1 << 20) + 1


class NanReward(OddGame):
    """Pays nan once."""

    def end(self) -> None:
        """Pay nan in the fifth turn."""
        self.signals[0].rewards[self.turn == 4, -1] = np.nan
        super().end()


class GlobalRandom(OddGame):
    """Draws from Python's global generator."""

    def end(self) -> None:
        """Add a reward that cannot be repeated."""
        self.signals[0].rewards += random.random()
        super().end()


class SameAgain(OddGame):
    """Ignores its key and all actions."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write the turn only."""
        out[:] = self.turn[:, None, None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Do nothing."""


class SeesOthers(OddGame):
    """Shows every world how many worlds there are."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Add the number of worlds to the observation."""
        super().observe(group, first, last, out)
        out[..., 1] += self.worlds


class PaysOthers(OddGame):
    """Pays every world the mean over all worlds; observations do not show it."""

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay the mean action over worlds."""
        self.pay(group, first, last, np.broadcast_to(actions.mean(axis=0), actions.shape))


class Remembers(OddGame):
    """Counts episodes across resets, and shows the count."""

    count = 0

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Reset everything but the count."""
        super().reset(worlds, keys)
        self.count += 1

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Add the count to the observation."""
        super().observe(group, first, last, out)
        out[..., 1] += self.count


class Endless(OddGame):
    """Does not end after its last turn."""

    def end(self) -> None:
        """Count the turn only."""
        self.turn += 1


class SilentEnd(OddGame):
    """Is over while no agent is terminated or truncated."""

    def end(self) -> None:
        """Withdraw the truncation."""
        super().end()
        self.signals[0].truncated[:] = False


class NoMove(Masked):
    """Allows no action in the first turn, and accepts any."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Allow nothing in the first turn and everything later."""
        out[:] = (self.turn > 0)[:, None, None]

    def forbidden(self, first: int, last: int) -> NDArray[np.int64]:
        """A number that no action has."""
        return np.full((self.worlds, last - first), -1)


class CutsOff(OddGame):
    """Truncates an agent that is only away for a turn."""

    def begin(self) -> None:
        """Bring everybody back."""
        self.signals[0].alive[~self.over] = self.turn[~self.over, None] != 3

    def end(self) -> None:
        """Take the agents away, and say that it was a limit."""
        super().end()
        self.signals[0].truncated[self.turn == 3] = True


class Prints(OddGame):
    """Prints every turn."""

    def begin(self) -> None:
        """Print a line."""
        print("a turn begins")


class Starts(OddGame):
    """Starts a process."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds)
        self.helper = subprocess.Popen(["sleep", "60"])
        weakref.finalize(self, _kill, self.helper)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


_GAMES: list[type[OddGame]] = [
    OneAction, OutOfBounds, Raises, OutOfSpace, NanReward, GlobalRandom, SameAgain, SeesOthers, PaysOthers, Remembers,
    Endless, SilentEnd, NoMove, CutsOff, Prints, Starts,
]  # fmt: skip
BROKEN = {game.__name__.lower(): entry_for(game) for game in _GAMES}
