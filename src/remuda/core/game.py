"""What a game is: B worlds stepped together, arrays in, arrays out.

A turn is `begin`, then for each agent in order `observe` and `act`, then `end`. What reaches an agent
between two of its observations (reward, death, the end of time) waits in its group's `Signals`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from remuda.core.errors import ConfigError

if TYPE_CHECKING:  # both import numba or torch; listing games must not
    from remuda.core.policy import Policy
    from remuda.core.rng import Keys


@dataclass(frozen=True)
class Group:
    """Agents of one shape: the same observation, the same actions. Each is still its own learner."""

    name: str
    size: int
    obs_shape: tuple[int, ...]
    obs_dtype: DTypeLike
    actions: int
    metrics: tuple[str, ...] = ()
    low: float = -np.inf
    high: float = np.inf
    masked: bool = False
    """Whether the game forbids some actions some of the time and fills `mask`."""

    def __post_init__(self) -> None:
        if not isinstance(self.actions, int) or self.actions < 1:
            raise ConfigError(
                f"group {self.name!r} has actions={self.actions!r}: actions must be discrete; give how many there are"
            )
        if self.size < 1:
            raise ConfigError(f"group {self.name!r} has size={self.size}: it needs at least one agent")


@dataclass(frozen=True)
class GameSpec:
    """The shape of a game. `turns` is the most an episode can last."""

    name: str
    groups: tuple[Group, ...]
    turns: int
    options: Mapping[str, Any] = field(default_factory=dict)
    in_turn: bool = False
    """Whether agents act one after another, each seeing what those before it did."""

    @property
    def agents(self) -> int:
        """How many agents the herd has, over all groups."""
        return sum(group.size for group in self.groups)

    def first_agent(self, group: int) -> int:
        """The herd-wide number of a group's first agent."""
        return sum(g.size for g in self.groups[:group])


@dataclass
class Signals:
    """What has reached the agents of a group since each last observed. The collector empties it."""

    rewards: NDArray[np.float32]  # (worlds, agents)
    terminated: NDArray[np.bool_]  # (worlds, agents): died, or the game ended by its own rules
    truncated: NDArray[np.bool_]  # (worlds, agents): cut off by a limit that is not a rule
    alive: NDArray[np.bool_]  # (worlds, agents): acts this turn; not emptied
    metrics: NDArray[np.float32]  # (worlds, agents, metrics): of the episode so far; not emptied

    @classmethod
    def empty(cls, group: Group, worlds: int) -> Signals:
        """Signals of a group before anything happened."""
        shape = (worlds, group.size)
        return cls(
            np.zeros(shape, np.float32),
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.bool_),
            np.zeros((*shape, len(group.metrics)), np.float32),
        )

    def clear(self, worlds: NDArray[np.int64]) -> None:
        """Forget everything about these worlds: a new episode begins with every agent alive."""
        for array in (self.rewards, self.terminated, self.truncated, self.metrics):
            array[worlds] = 0
        self.alive[worlds] = True

    def forget(self, first: int, last: int) -> None:
        """Drop what is waiting for agents first … last-1."""
        for array in (self.rewards, self.terminated, self.truncated):
            array[:, first:last] = 0


class Game(ABC):
    """B worlds of one game. Subclasses write the verbs.

    A world that is `over` ignores begin, act and end, and shows its last state to observe.
    """

    def __init__(self, spec: GameSpec, worlds: int) -> None:
        self.spec = spec
        self.worlds = worlds
        self.signals = [Signals.empty(group, worlds) for group in spec.groups]
        self.over = np.ones(worlds, np.bool_)  # (worlds,): no episode under way

    @abstractmethod
    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Start an episode in these worlds; all its chance derives from the world's key."""

    @abstractmethod
    def begin(self) -> None:
        """Open a turn: whatever changes by itself changes now."""

    @abstractmethod
    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write what agents first … last-1 see into `out` (worlds, last-first, *obs)."""

    @abstractmethod
    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Carry out `actions` (worlds, last-first) of agents first … last-1, in that order."""

    @abstractmethod
    def end(self) -> None:
        """Close the turn: count it, and mark worlds that are over."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Write which actions are allowed into `out` (worlds, last-first, actions)."""
        raise NotImplementedError(f"{self.spec.name} declares a masked group but has no mask()")

    def render(self, world: int) -> NDArray[np.uint8]:
        """A picture of one world, (height, width, 3); one pixel per cell is enough."""
        raise ConfigError(f"game {self.spec.name!r} has no picture: give it a render() method")

    def text(self, world: int) -> str:
        """One world as text, for a terminal."""
        raise ConfigError(f"game {self.spec.name!r} has no text form: give it a text() method")

    def step(self, actions: Sequence[NDArray[np.int64]]) -> None:
        """One whole turn with known actions, (worlds, agents) for each group."""
        self.begin()
        for index, group in enumerate(self.spec.groups):
            self.act(index, 0, group.size, actions[index])
        self.end()


def deal(value: Any, worlds: Sequence[int]) -> list[Any]:
    """An option's value in each world: world w takes entry w of a list, starting over at its end."""
    values = value if isinstance(value, list) else [value]
    return [values[world % len(values)] for world in worlds]


def kinds_of_worlds(options: Any) -> int:
    """World w is the same as world w % kinds: how many differ by options given as lists."""
    return math.lcm(*(max(len(value), 1) for value in options.model_dump().values() if isinstance(value, list)))


class Pace(Enum):
    """What it costs to play many worlds in one process."""

    TOGETHER = "all at once, cheaper than one by one"
    QUICK = "one after another, each about as quick as asking the agents what to do"
    SLOW = "one after another, and each takes its time: best one per worker"


@dataclass(frozen=True)
class GameEntry:
    """A game as the registry knows it: how to make it, and what its options are."""

    name: str
    summary: str
    options: type[Any]
    make: Callable[[Any, Sequence[int]], Game]
    players: Mapping[str, Callable[[Group, int], Policy]] = field(default_factory=dict)
    """Scripted players made for this game, by name; each is made for a group and a number of agents."""
    kinds: Callable[[Any], int] = kinds_of_worlds
    """How many different worlds there are with these options; world w is the same as world w % kinds."""
    pace: Pace | Callable[[Any], Pace] = Pace.TOGETHER
    """What worlds cost. A function says so by the options, where they decide it."""

    def pace_of(self, options: Mapping[str, Any]) -> Pace:
        """`pace` with these options."""
        return self.pace(check_options(self, options)) if callable(self.pace) else self.pace


def make_game(entry: GameEntry, options: Mapping[str, Any], worlds: Sequence[int]) -> Game:
    """Make the worlds with these numbers; an option given as a list is dealt out over the worlds."""
    return entry.make(check_options(entry, options), worlds)


def check_options(entry: GameEntry, options: Mapping[str, Any]) -> Any:
    """The game's options object, or a sentence about the first one that is wrong."""
    return entry.options.read(options, f"game {entry.name}")
