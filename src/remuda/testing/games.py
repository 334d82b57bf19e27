"""Small odd games, for tests of remuda and of your own policies and learners.

Plain numpy, nothing compiled. Most observations say where they come from (world, agent, turn), so that
a test can recompute what has to arrive elsewhere. `BROKEN` holds games that break one promise each;
`SLOW` and `BUSY` are for engines: their turns cost real time, asleep or on the processor.
"""

from __future__ import annotations

import random
import subprocess
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core import rng
from remuda.core.errors import ConfigError, GameError
from remuda.core.game import Game, GameEntry, GameSpec, Group, StepCost
from remuda.core.options import Options
from remuda.core.rng import Keys


class OddOptions(Options):
    """What every game here can be told."""

    agents: int = Field(3, ge=1, description="agents per group")
    turns: int = Field(12, ge=1, description="the most an episode can last")


class OddGame(Game):
    """Counts turns and truncates everybody after the last; agents see (world's low bits, agent, turn)."""

    def __init__(self, options: Any, worlds: Sequence[int], *groups: Group) -> None:
        name = type(self).__name__.lower()
        groups = groups or (Group("odd", options.agents, (3,), np.int32, 3, low=0, high=1 << 20),)
        super().__init__(GameSpec(name, groups, options.turns, options.model_dump()), len(worlds))
        self.keys: Keys = np.zeros(len(worlds), np.uint64)
        self.turn = np.zeros(len(worlds), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Everybody alive, turn 0."""
        for signals in self.signals:
            signals.clear(worlds)
        self.keys[worlds] = keys
        self.turn[worlds] = 0
        self.over[worlds] = False

    def begin(self) -> None:
        """Nothing changes by itself."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Where this is seen from."""
        out[..., 0] = low_bits(self.keys)[:, None]
        out[..., 1] = np.arange(first, last)
        out[..., 2] = self.turn[:, None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Actions are their own reward."""
        self.pay(group, first, last, actions)

    def pay(self, group: int, first: int, last: int, rewards: NDArray[Any]) -> None:
        """Reward agents first … last-1 where the world goes on and they live."""
        signals = self.signals[group]
        acting = signals.alive[:, first:last] & ~self.over[:, None]
        signals.rewards[:, first:last] += np.where(acting, rewards, 0).astype(np.float32)

    def end(self) -> None:
        """Count; after the last turn nobody goes on."""
        self.turn[~self.over] += 1
        done = ~self.over & (self.turn >= self.spec.turns)
        for signals in self.signals:
            signals.truncated[done] = True
        self.over |= done


def low_bits(keys: Keys) -> NDArray[np.int64]:
    """A small number that tells worlds and episodes apart."""
    return (keys & np.uint64(0xFFFF)).astype(np.int64)


class Unequal(OddGame):
    """Two groups of different shape, dtype and actions in one world; who acts later sees it."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        walkers = Group("walkers", options.agents, (4,), np.float32, 3, metrics=("steps",), low=0, high=1)
        sitters = Group("sitters", options.agents + 1, (2, 3), np.uint8, 5, low=0, high=255)
        super().__init__(options, worlds, walkers, sitters)
        self.sum = np.zeros(len(worlds), np.int64)  # of all actions so far

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """As always, and nothing was done yet."""
        super().reset(worlds, keys)
        self.sum[worlds] = 0

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """The world, the agent, the turn and all actions so far, scaled to the group's space."""
        agents = np.arange(first, last)
        scale = 256.0 if group == 0 else 1.0
        flat = out.reshape(len(out), last - first, -1)
        flat[...] = 0
        flat[..., 0] = (low_bits(self.keys)[:, None] % 256) / scale
        flat[..., 1] = agents / scale
        flat[..., 2] = (self.turn[:, None] % 256) / scale
        flat[..., 3] = (self.sum[:, None] % 256) / scale

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """The reward is the action; walkers count their steps."""
        super().act(group, first, last, actions)
        self.sum[~self.over] += actions[~self.over].sum(axis=1)
        if group == 0:
            self.signals[0].metrics[~self.over, first:last, 0] += 1


class RespawnOptions(OddOptions):
    """How long agents live and stay away."""

    longest_life: int = Field(4, ge=1, description="turns an agent lives at most")
    longest_rest: int = Field(2, ge=0, description="turns it is gone at most; 0: back at once")
    at_begin: bool = Field(False, description="agents die at the start of the next turn, not at the end of this one")


class Respawn(OddGame):
    """Agents die and come back. They see (world, agent, turn, stretch) and earn 1 + the turn."""

    def __init__(self, options: RespawnOptions, worlds: Sequence[int]) -> None:
        group = Group("mortals", options.agents, (4,), np.int32, 3, metrics=("deaths",), low=0, high=1 << 20)
        super().__init__(options, worlds, group)
        self.options = options
        shape = (len(worlds), options.agents)
        self.segment = np.zeros(shape, np.int64)
        self.until = np.zeros(shape, np.int64)  # the turn in which the agent dies, or returns

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Everybody begins a first stretch."""
        super().reset(worlds, keys)
        self.segment[worlds] = 0
        self.until[worlds] = self.span(0, 1, self.options.longest_life)[worlds]

    def span(self, purpose: int, least: int, most: int) -> NDArray[np.int64]:
        """A number of turns for each world, agent and stretch, from its key."""
        agents = rng.keys(self.keys[:, None], np.arange(self.options.agents))
        u = rng.uniforms(rng.keys(rng.keys(agents, self.segment), purpose), 1)[..., 0]
        return least + (u * (most - least + 1)).astype(np.int64)

    def begin(self) -> None:
        """Who rested long enough returns; who dies late dies now."""
        signals = self.signals[0]
        back = ~signals.alive & (self.turn[:, None] >= self.until) & ~self.over[:, None]
        self.revive(back)
        if self.options.at_begin:
            self.kill()

    def end(self) -> None:
        """Who lived long enough dies, unless that waits for the next turn."""
        super().end()
        if not self.options.at_begin:
            self.kill()

    def kill(self) -> None:
        """End the stretches whose time has come."""
        signals, turn = self.signals[0], self.turn[:, None]
        dead = signals.alive & (turn >= self.until) & ~self.over[:, None]
        signals.alive[dead] = False
        signals.terminated |= ~signals.alive & ~self.over[:, None]  # also who died before: that must not matter
        signals.metrics[dead, 0] += 1
        rest = self.span(1, min(1, self.options.longest_rest), self.options.longest_rest)
        self.until[dead] = (turn + rest)[dead]
        self.revive(dead & (rest == 0))

    def revive(self, who: NDArray[np.bool_]) -> None:
        """Begin a new stretch."""
        self.signals[0].alive[who] = True
        self.segment[who] += 1
        self.until[who] = (self.turn[:, None] + self.span(0, 1, self.options.longest_life))[who]

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Where this is seen from, and in which stretch."""
        super().observe(group, first, last, out)
        out[..., 3] = self.segment[:, first:last]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Whatever one does, one earns 1 + the turn."""
        self.pay(0, first, last, 1 + self.turn[:, None])


class Masked(OddGame):
    """Forbids action (turn + agent) % 4; each world ends by its own rules, at a turn its key decides."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        group = Group("bound", options.agents, (3,), np.int32, 4, low=0, high=1 << 20, masked=True)
        super().__init__(options, worlds, group)

    @property
    def length(self) -> NDArray[np.int64]:
        """Turns each world lasts."""
        return 1 + low_bits(self.keys) % self.spec.turns

    def forbidden(self, first: int, last: int) -> NDArray[np.int64]:
        """The action each agent may not take, (worlds, last-first)."""
        return (self.turn[:, None] + np.arange(first, last)) % 4

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """All but one."""
        out[:] = np.arange(4) != self.forbidden(first, last)[..., None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """The reward is the action; a forbidden one is an error."""
        if (actions == self.forbidden(first, last))[~self.over].any():
            raise GameError("somebody took a forbidden action")
        super().act(group, first, last, actions)

    def end(self) -> None:
        """Count; worlds whose time has come terminate everybody."""
        self.turn[~self.over] += 1
        done = ~self.over & (self.turn >= self.length)
        self.signals[0].terminated[done] = True
        self.over |= done


class Gifts(OddGame):
    """Acting rewards the next agent, the last one the first; all see what they were given so far."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds)
        self.given = np.zeros((len(worlds), options.agents), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """As always, and nothing was given yet."""
        super().reset(worlds, keys)
        self.given[worlds] = 0

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """World, gifts so far, turn."""
        super().observe(group, first, last, out)
        out[..., 1] = self.given[:, first:last]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Agent i gives 1 + i + agents × turn, so that every gift is another number."""
        for agent in range(first, last):
            to = (agent + 1) % self.spec.agents
            gift = np.where(self.over, 0, 1 + agent + self.spec.agents * self.turn)
            self.given[:, to] += gift
            self.signals[0].rewards[:, to] += gift.astype(np.float32)


class SlowOptions(Options):
    """How long turns last."""

    turns: int = Field(20, ge=1, description="turns of an episode")
    mean_ms: float = Field(100.0, ge=0, description="mean length of a turn, in milliseconds")
    long_ms: float = Field(500.0, ge=0, description="length of a long turn, in milliseconds")
    long_share: float = Field(0.05, ge=0, lt=1, description="share of the turns that are long")

    def check(self) -> None:
        """Long turns alone must not take longer than all turns."""
        if self.long_share * self.long_ms > self.mean_ms:
            raise ConfigError(
                f"long_share={self.long_share} of long_ms={self.long_ms} is more than mean_ms={self.mean_ms} allows: "
                "lower one of the two or raise mean_ms"
            )

    @property
    def short_ms(self) -> float:
        """How long the other turns last, for the mean to be right."""
        return (self.mean_ms - self.long_share * self.long_ms) / (1 - self.long_share)


class Slow(OddGame):
    """Turns cost time, asleep: most a little less than the mean, now and then one much longer.

    Each world is a simulator of its own: in one process they sleep one after another. How long a turn
    lasts is drawn from the world's key; the metric `asleep_s` is the sum of what was drawn.
    """

    def __init__(self, options: SlowOptions, worlds: Sequence[int]) -> None:
        group = Group("sleepers", 1, (3,), np.int32, 3, metrics=("asleep_s",), low=0, high=1 << 20)
        super().__init__(options, worlds, group)
        self.options = options

    def lengths_s(self) -> NDArray[np.float64]:
        """Seconds this turn lasts in each world."""
        u = rng.uniforms(rng.keys(self.keys, self.turn), 1)[:, 0]
        lengths: NDArray[np.float64] = np.where(
            u < self.options.long_share, self.options.long_ms, self.options.short_ms
        )
        return np.where(self.over, 0.0, lengths / 1000)

    def end(self) -> None:
        """Sleep for every world that goes on."""
        lengths = self.lengths_s()
        time.sleep(lengths.sum())
        self.signals[0].metrics[:, 0, 0] += lengths
        super().end()


class BusyOptions(Options):
    """How much there is to compute."""

    turns: int = Field(20, ge=1, description="turns of an episode")
    work: int = Field(100_000, ge=0, description="steps of plain Python per turn and world")


class Busy(OddGame):
    """Turns cost processor time, in plain Python that holds the GIL, for one world after another.

    What is computed is a number that actions are added to and the agent sees, so nothing of it can be left out.
    """

    def __init__(self, options: BusyOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("workers", 1, (3,), np.int32, 3, low=0, high=1 << 20))
        self.options = options
        self.number = np.zeros(len(worlds), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """As always, and the number comes from the key."""
        super().reset(worlds, keys)
        self.number[worlds] = low_bits(keys)

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """World, number, turn."""
        super().observe(group, first, last, out)
        out[..., 1] = self.number[:, None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """The reward is the action, which is also added to the number."""
        super().act(group, first, last, actions)
        self.number += np.where(self.over, 0, actions.sum(axis=1))

    def end(self) -> None:
        """Compute, for every world that goes on."""
        for world in np.flatnonzero(~self.over):
            self.number[world] = churn(int(self.number[world]), self.options.work)
        super().end()


def churn(number: int, steps: int) -> int:
    """The number after so many steps of a congruential walk through 0 … 65535."""
    for _ in range(steps):
        number = (number * 25173 + 13849) & 0xFFFF
    return number


class OneAction(OddGame):
    """Leaves its agents no choice."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("stuck", 1, (3,), np.int32, 1))


class Raises(OddGame):
    """Fails in the third turn."""

    def begin(self) -> None:
        """Divide by nothing."""
        if (self.turn == 2).any():
            raise ZeroDivisionError("a bug of the game's author")


class OutOfSpace(OddGame):
    """Shows more than it declares."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """One number too large, in one turn of one agent."""
        super().observe(group, first, last, out)
        if first == 0:
            out[self.turn == 3, 0, 1] = (1 << 20) + 1


class NanReward(OddGame):
    """Pays nan once."""

    def end(self) -> None:
        """In the fifth turn."""
        self.signals[0].rewards[self.turn == 4, -1] = np.nan
        super().end()


class GlobalRandom(OddGame):
    """Draws from the interpreter's own generator."""

    def end(self) -> None:
        """A reward nobody can repeat."""
        self.signals[0].rewards += random.random()
        super().end()


class SameAgain(OddGame):
    """Does not listen to its key, nor to anybody."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Only the turn."""
        out[:] = self.turn[:, None, None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Nothing."""


class SeesOthers(OddGame):
    """Shows every world how many worlds there are."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """The neighbours leak in."""
        super().observe(group, first, last, out)
        out[..., 1] += self.worlds


class PaysOthers(OddGame):
    """Pays every world what the worlds beside it earn; nothing of that can be seen."""

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """The mean over worlds."""
        self.pay(group, first, last, np.broadcast_to(actions.mean(axis=0), actions.shape))


class Remembers(OddGame):
    """Counts episodes for ever, and shows the count."""

    count = 0

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Everything but the count."""
        super().reset(worlds, keys)
        self.count += 1

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """The past leaks in."""
        super().observe(group, first, last, out)
        out[..., 1] += self.count


class Endless(OddGame):
    """Goes on after its last turn."""

    def end(self) -> None:
        """Only count."""
        self.turn += 1


class SilentEnd(OddGame):
    """Is over without telling anybody."""

    def end(self) -> None:
        """Neither terminated nor truncated."""
        super().end()
        self.signals[0].truncated[:] = False


class NoMove(Masked):
    """Allows nothing in the first turn, and minds nothing."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """All or nothing."""
        out[:] = (self.turn > 0)[:, None, None]

    def forbidden(self, first: int, last: int) -> NDArray[np.int64]:
        """No action has this number."""
        return np.full((self.worlds, last - first), -1)


class Prints(OddGame):
    """Says what it thinks."""

    def begin(self) -> None:
        """To everybody who listens."""
        print("a turn begins")


class Starts(OddGame):
    """Has a process of its own."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds)
        self.helper = subprocess.Popen(["sleep", "60"])
        weakref.finalize(self, _end, self.helper)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _entry(
    game: type[OddGame], options: type[Options] = OddOptions, step_cost: StepCost = StepCost.BATCHED
) -> GameEntry:
    summary = (game.__doc__ or "").split("\n")[0]
    return GameEntry(game.__name__.lower(), summary, options, game, step_cost=step_cost)


UNEQUAL = _entry(Unequal)
RESPAWN = _entry(Respawn, RespawnOptions)
MASKED = _entry(Masked)
GIFTS = _entry(Gifts)
ODD = (UNEQUAL, RESPAWN, MASKED, GIFTS)
SLOW = _entry(Slow, SlowOptions, step_cost=StepCost.SLOW)
BUSY = _entry(Busy, BusyOptions, step_cost=StepCost.SLOW)
_BREAKS_ONE_PROMISE: list[type[OddGame]] = [OneAction, Raises, OutOfSpace, NanReward, GlobalRandom, SameAgain]

_BREAKS_ONE_PROMISE += [SeesOthers, PaysOthers, Remembers, Endless, SilentEnd, NoMove, Prints, Starts]

BROKEN = {game.__name__.lower(): _entry(game) for game in _BREAKS_ONE_PROMISE}
