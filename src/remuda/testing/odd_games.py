"""Small games with unusual shapes, for tests of remuda and of your own policies and learners.

They are plain numpy; nothing is compiled. An observation usually says where it comes from (world, agent, turn), so a
test can recompute what must arrive elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from remuda.core import rng
from remuda.core.errors import GameError
from remuda.core.game import Game, GameEntry, GameSpec, Group, StepCost
from remuda.core.options import Options
from remuda.core.rng import Keys


class OddOptions(Options):
    """The options that most games here have."""

    agents: int = Field(3, ge=1, description="agents per group")
    turns: int = Field(12, ge=1, description="the most an episode can last")


class OddGame(Game):
    """The base class: counts turns and truncates every agent after the last.

    An agent observes (low bits of the world's key, its number, the turn). Its reward is its action.
    """

    def __init__(self, options: Any, worlds: Sequence[int], *groups: Group) -> None:
        name = type(self).__name__.lower()
        groups = groups or (Group("odd", options.agents, (3,), np.int32, 3, low=0, high=1 << 20),)
        super().__init__(GameSpec(name, groups, options.turns, options.model_dump()), len(worlds))
        self.keys: Keys = np.zeros(len(worlds), np.uint64)
        self.turn = np.zeros(len(worlds), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Start at turn 0 with every agent alive."""
        for signals in self.signals:
            signals.clear(worlds)
        self.keys[worlds] = keys
        self.turn[worlds] = 0
        self.over[worlds] = False

    def begin(self) -> None:
        """Do nothing: the world does not change by itself."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write which world, agent and turn this observation comes from."""
        out[..., 0] = low_bits(self.keys)[:, None]
        out[..., 1] = np.arange(first, last)
        out[..., 2] = self.turn[:, None]

    def act(self, group: int, first: int, last: int, actions: NDArray[Any]) -> None:
        """Pay each agent its action as a reward."""
        self.pay(group, first, last, actions)

    def pay(self, group: int, first: int, last: int, rewards: NDArray[Any]) -> None:
        """Add `rewards` (worlds, last-first) where the world is not over and the agent is alive."""
        signals = self.signals[group]
        acting = signals.alive[:, first:last] & ~self.over[:, None]
        signals.rewards[:, first:last] += np.where(acting, rewards, 0).astype(np.float32)

    def end(self) -> None:
        """Count the turn; after the last one truncate every agent."""
        self.turn[~self.over] += 1
        done = ~self.over & (self.turn >= self.spec.turns)
        for signals in self.signals:
            signals.truncated[done] = True
        self.over |= done


def low_bits(keys: Keys) -> NDArray[np.int64]:
    """A small number that distinguishes worlds and episodes."""
    return (keys & np.uint64(0xFFFF)).astype(np.int64)


def entry_for(
    game: type[OddGame], options: type[Options] = OddOptions, step_cost: StepCost = StepCost.BATCHED
) -> GameEntry:
    """The registry entry of a class of odd games; its summary is the first line of the class's docstring."""
    summary = (game.__doc__ or "").split("\n")[0]
    return GameEntry(game.__name__.lower(), summary, options, game, step_cost=step_cost)


class Unequal(OddGame):
    """Two groups that differ in observation shape, dtype and actions; agents that act later see earlier actions."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        walkers = Group("walkers", options.agents, (4,), np.float32, 3, metrics=("steps",), low=0, high=1)
        sitters = Group("sitters", options.agents + 1, (2, 3), np.uint8, 5, low=0, high=255)
        super().__init__(options, worlds, walkers, sitters)
        self.sum = np.zeros(len(worlds), np.int64)  # of all actions so far

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Also set the sum of actions to 0."""
        super().reset(worlds, keys)
        self.sum[worlds] = 0

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write world, agent, turn and the sum of actions, scaled to the group's space."""
        agents = np.arange(first, last)
        scale = 256.0 if group == 0 else 1.0
        flat = out.reshape(len(out), last - first, -1)
        flat[...] = 0
        flat[..., 0] = (low_bits(self.keys)[:, None] % 256) / scale
        flat[..., 1] = agents / scale
        flat[..., 2] = (self.turn[:, None] % 256) / scale
        flat[..., 3] = (self.sum[:, None] % 256) / scale

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay the action and add it to the sum; walkers count their steps."""
        super().act(group, first, last, actions)
        self.sum[~self.over] += actions[~self.over].sum(axis=1)
        if group == 0:
            self.signals[0].metrics[~self.over, first:last, 0] += 1


class RespawnOptions(OddOptions):
    """How long agents live and stay dead."""

    longest_stay: int = Field(4, ge=1, description="turns an agent lives at most")
    longest_rest: int = Field(2, ge=0, description="turns it is gone at most; 0: back at once")
    at_begin: bool = Field(False, description="agents die at the start of the next turn, not at the end of this one")


class Respawn(OddGame):
    """Agents die and come back. They observe (world, agent, turn, segment) and earn 1 + the turn.

    A segment is the turns from an agent's birth to its death.
    """

    def __init__(self, options: RespawnOptions, worlds: Sequence[int]) -> None:
        group = Group("mortals", options.agents, (4,), np.int32, 3, metrics=("deaths",), low=0, high=1 << 20)
        super().__init__(options, worlds, group)
        self.options = options
        shape = (len(worlds), options.agents)
        self.segment = np.zeros(shape, np.int64)
        self.until = np.zeros(shape, np.int64)  # the turn in which the agent dies, or returns

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Also begin every agent's first segment."""
        super().reset(worlds, keys)
        self.segment[worlds] = 0
        self.until[worlds] = self.span(0, 1, self.options.longest_stay)[worlds]

    def span(self, purpose: int, low: int, high: int) -> NDArray[np.int64]:
        """A random number of turns for each world, agent and segment, derived from the world's key."""
        agents = rng.keys(self.keys[:, None], np.arange(self.options.agents))
        u = rng.uniforms(rng.keys(rng.keys(agents, self.segment), purpose), 1)[..., 0]
        return low + (u * (high - low + 1)).astype(np.int64)

    def begin(self) -> None:
        """Revive agents that have been dead long enough; with `at_begin`, kill those whose time is up."""
        signals = self.signals[0]
        back = ~signals.alive & (self.turn[:, None] >= self.until) & ~self.over[:, None]
        self.revive(back)
        if self.options.at_begin:
            self.kill()

    def end(self) -> None:
        """Count the turn; without `at_begin`, kill the agents whose time is up."""
        super().end()
        if not self.options.at_begin:
            self.kill()

    def kill(self) -> None:
        """End the segments whose time is up."""
        signals, turn = self.signals[0], self.turn[:, None]
        dead = signals.alive & (turn >= self.until) & ~self.over[:, None]
        signals.alive[dead] = False
        # Agents that died earlier are marked again, on purpose: rollouts must ignore that.
        signals.terminated |= ~signals.alive & ~self.over[:, None]
        signals.metrics[dead, 0] += 1
        rest = self.span(1, min(1, self.options.longest_rest), self.options.longest_rest)
        self.until[dead] = (turn + rest)[dead]
        self.revive(dead & (rest == 0))

    def revive(self, who: NDArray[np.bool_]) -> None:
        """Begin a new segment for these agents, (worlds, agents)."""
        self.signals[0].alive[who] = True
        self.segment[who] += 1
        self.until[who] = (self.turn[:, None] + self.span(0, 1, self.options.longest_stay))[who]

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write world, agent, turn and segment."""
        super().observe(group, first, last, out)
        out[..., 3] = self.segment[:, first:last]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay 1 + the turn, whatever the action."""
        self.pay(0, first, last, 1 + self.turn[:, None])


class Masked(OddGame):
    """Forbids action (turn + agent) % 4; each world terminates at a turn that its key decides."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        group = Group("bound", options.agents, (3,), np.int32, 4, low=0, high=1 << 20, masked=True)
        super().__init__(options, worlds, group)

    @property
    def length(self) -> NDArray[np.int64]:
        """How many turns each world lasts, (worlds,)."""
        return 1 + low_bits(self.keys) % self.spec.turns

    def forbidden(self, first: int, last: int) -> NDArray[np.int64]:
        """The action each agent may not take, (worlds, last-first)."""
        return (self.turn[:, None] + np.arange(first, last)) % 4

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Allow every action but the forbidden one."""
        out[:] = np.arange(4) != self.forbidden(first, last)[..., None]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay the action; raise if it is forbidden."""
        if (actions == self.forbidden(first, last))[~self.over].any():
            raise GameError("an agent took a forbidden action")
        super().act(group, first, last, actions)

    def end(self) -> None:
        """Count the turn; terminate the worlds that have reached their length."""
        self.turn[~self.over] += 1
        done = ~self.over & (self.turn >= self.length)
        self.signals[0].terminated[done] = True
        self.over |= done


class Gifts(OddGame):
    """Each action rewards the next agent, the last agent's the first; agents observe what they have received."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds)
        self.given = np.zeros((len(worlds), options.agents), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Also set all gifts to 0."""
        super().reset(worlds, keys)
        self.given[worlds] = 0

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write world, gifts so far, turn."""
        super().observe(group, first, last, out)
        out[..., 1] = self.given[:, first:last]

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Agent i gives 1 + i + agents × turn, so no two gifts of an episode are equal."""
        for agent in range(first, last):
            to = (agent + 1) % self.spec.agents
            gift = np.where(self.over, 0, 1 + agent + self.spec.agents * self.turn)
            self.given[:, to] += gift
            self.signals[0].rewards[:, to] += gift.astype(np.float32)


class ErrandOptions(OddOptions):
    """How long an errand takes."""

    away: int = Field(3, ge=1, description="turns that an agent is away")


class Errands(OddGame):
    """Agents leave without dying and come back: to a learner that is one life.

    At home an agent observes (1, 0) or (0, 1), and its action does not matter. After (1, 0) it is away for some turns;
    a reward of 1 reaches it as the first of them ends, and it comes back to (0, 1). That pays 2 and leads to (1, 0).
    With the discount g the values are V(1, 0) = 1 + g ** (away + 1) V(0, 1) and V(0, 1) = 2 + g V(1, 0). While it is
    away it is shown what nobody may learn from.
    """

    NONSENSE = 99.0

    def __init__(self, options: ErrandOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("odd", options.agents, (2,), np.float32, 2, low=0, high=self.NONSENSE))
        self.leaves = np.zeros((len(worlds), options.agents), np.bool_)  # whether its next action sends it away
        self.until = np.zeros((len(worlds), options.agents), np.int64)  # the turn in which it is back
        self.away = options.away

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Begin with some agents that leave and some that do not, so that episodes are cut off anywhere."""
        super().reset(worlds, keys)
        self.until[worlds] = 0
        self.leaves[worlds] = (low_bits(keys)[:, None] + np.arange(self.leaves.shape[1])) % 2 == 0

    def begin(self) -> None:
        """Bring back who has been away long enough."""
        alive = self.signals[0].alive
        alive |= (self.turn[:, None] >= self.until) & ~self.over[:, None]

    def observe(self, group: int, first: int, last: int, out: NDArray[np.float32]) -> None:
        """Write what comes next, or nonsense to who is away."""
        leaves = self.leaves[:, first:last]
        out[..., 0], out[..., 1] = leaves, ~leaves
        out[~self.signals[0].alive[:, first:last]] = self.NONSENSE

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay who stays, and send the others away."""
        agents, alive = slice(first, last), self.signals[0].alive
        acting = alive[:, agents] & ~self.over[:, None]
        leaving = acting & self.leaves[:, agents]
        self.pay(group, first, last, np.where(leaving, 0, 2))
        self.until[:, agents][leaving] = np.broadcast_to(self.turn[:, None] + self.away + 1, leaving.shape)[leaving]
        self.leaves[:, agents] ^= acting

    def end(self) -> None:
        """Let agents leave, and pay those who left a turn ago; cut off who is there after the last turn."""
        signals = self.signals[0]
        left = (self.turn[:, None] - self.until == -self.away) & ~self.over[:, None]
        signals.rewards[left] += 1
        signals.alive &= self.until <= self.turn[:, None]
        self.turn[~self.over] += 1
        done = ~self.over & (self.turn >= self.spec.turns)
        signals.truncated[done] = signals.alive[done]
        self.over |= done


class Steering(OddGame):
    """A Box of three numbers, each with other bounds; an agent is paid for being near its own target."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        space = spaces.Box(np.array([-1, 0, -np.inf], np.float32), np.array([3, 0.5, np.inf], np.float32))
        group = Group("odd", options.agents, (3,), np.int32, low=0, high=1 << 20, action_space=space)
        super().__init__(options, worlds, group)
        self.low, self.high = space.low, space.high

    def act(self, group: int, first: int, last: int, actions: NDArray[np.float32]) -> None:
        """Pay at most 0, less the farther from (2, 0.1 × number, -1)."""
        assert (actions >= self.low).all()
        assert (actions <= self.high).all()
        targets = np.array([[2.0, 0.1 * (agent % 5), -1.0] for agent in range(first, last)])
        self.pay(group, first, last, -np.abs(actions - targets).sum(axis=2))


class Levers(OddGame):
    """Two levers of two and three positions, MultiDiscrete; the right pair of an agent depends on its number."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        space = spaces.MultiDiscrete([2, 3])
        super().__init__(
            options, worlds, Group("odd", options.agents, (3,), np.int32, low=0, high=1 << 20, action_space=space)
        )

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay one half for each lever in its right position."""
        agents = np.arange(first, last)
        right = (actions[:, :, 0] == agents % 2).astype(float) + (actions[:, :, 1] == agents % 3)
        self.pay(group, first, last, right / 2)


class BrightRow(OddGame):
    """Agents see small pictures, bytes, in which the right action's row is bright."""

    def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
        super().__init__(options, worlds, Group("odd", options.agents, (6, 5, 3), np.uint8, 3, low=0, high=255))

    def _right(self, first: int, last: int) -> NDArray[np.int64]:
        return (low_bits(self.keys)[:, None] + np.arange(first, last) + self.turn[:, None]) % 3

    def observe(self, group: int, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Write a picture with one bright row."""
        right = self._right(first, last)
        out[:] = np.arange(90, dtype=np.uint8).reshape(6, 5, 3)
        worlds, agents = np.indices(right.shape)
        out[worlds, agents, right * 2] = 255

    def act(self, group: int, first: int, last: int, actions: NDArray[Any]) -> None:
        """Pay for the row that is bright."""
        self.pay(group, first, last, actions == self._right(first, last))


UNEQUAL = entry_for(Unequal)
RESPAWN = entry_for(Respawn, RespawnOptions)
MASKED = entry_for(Masked)
ERRANDS = entry_for(Errands, ErrandOptions)
GIFTS = entry_for(Gifts)
STEERING = entry_for(Steering)
LEVERS = entry_for(Levers)
BRIGHT_ROW = entry_for(BrightRow)
ODD = (UNEQUAL, RESPAWN, MASKED, GIFTS)
