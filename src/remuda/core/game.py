"""Game: B worlds stepped together, arrays in, arrays out.

A turn is `begin`, then for each agent in order `observe` and `act`, then `end`. A reward, a death or a time limit that
reaches an agent between two of its observations is kept in the `Signals` of its group until the agent observes again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from remuda.core.errors import ConfigError, GameError, RemudaError, message_of, place_of
from remuda.core.options import Options
from remuda.core.rewards import GAME_RETURN, REWARD, RewardOptions
from remuda.core.spaces import array_of, check_action_space, choices_of, count_of, discrete, is_box

if TYPE_CHECKING:
    from remuda.core.policy import Policy
    from remuda.core.rng import Keys
    from remuda.core.scene import Scene


@dataclass(frozen=True)
class Group:
    """Agents with the same observation space and the same actions. Each still learns on its own."""

    name: str
    size: int
    obs_shape: tuple[int, ...] = ()
    obs_dtype: DTypeLike = np.float32
    actions: int = 0  # how many discrete actions there are; 0 where `action_space` says something else
    metrics: tuple[str, ...] = ()  # names of what the game reports per agent and episode
    low: float = -np.inf  # smallest value in an observation
    high: float = np.inf  # largest value in an observation
    masked: bool = False
    """Whether the game sometimes forbids actions; it then has a method `mask`."""
    state_shape: tuple[int, ...] | None = None
    """Shape of the privileged state of a world, which critics may see; the game then has a method `observe_state`."""
    state_dtype: DTypeLike = np.float32
    action_space: Any = None
    """Gymnasium's space instead of `actions`: Discrete, MultiDiscrete, MultiBinary, or a Box of floats."""
    observation_space: Any = None
    """Gymnasium's space instead of obs_shape, obs_dtype, low and high; what is not a Box becomes flat."""
    raw_space: Any = field(default=None, compare=False, repr=False)
    """Gymnasium's space that the flat observations were made of; None where they are shown as they are."""

    def __post_init__(self) -> None:
        self._read_spaces()
        self._set("obs_shape", tuple(self.obs_shape))
        if self.state_shape is not None:
            self._set("state_shape", tuple(self.state_shape))
        if self.action_space is None and (not isinstance(self.actions, int) or self.actions < 1):
            raise ConfigError(
                f"group {self.name!r} has actions={self.actions!r}: give how many discrete actions there are, or an "
                "action_space"
            )
        if self.masked and self.action_space is not None:
            raise ConfigError(f"group {self.name!r} is masked, and its actions are not Discrete: leave masked out")
        if self.size < 1:
            raise ConfigError(f"group {self.name!r} has size={self.size}: it needs at least one agent")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _read_spaces(self) -> None:
        """Derive the other fields from Gymnasium's spaces, if they are given."""
        if self.observation_space is not None:
            shape, dtype, low, high = array_of(self.observation_space)
            for name, value in (("obs_shape", shape), ("obs_dtype", dtype), ("low", low), ("high", high)):
                self._set(name, value)
            self._set("raw_space", None if is_box(self.observation_space) else self.observation_space)
        if self.action_space is not None:
            check_action_space(self.action_space, f"group {self.name!r}")
            if (count := count_of(self.action_space)) is not None:
                self._set("actions", count)
                self._set("action_space", None)  # the one way to say that actions are Discrete

    @property
    def choices(self) -> tuple[int, ...]:
        """How many choices each discrete part of an action has; none for a Box."""
        return (self.actions,) if self.action_space is None else choices_of(self.action_space)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one agent's action: () for Discrete."""
        return () if self.action_space is None else tuple(self.action_space.shape)

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """int64 for what is chosen, float32 for a Box."""
        return np.dtype(np.int64 if self.choices else np.float32)

    @property
    def gymnasium_actions(self) -> Any:
        """The action space as Gymnasium's."""
        return discrete(self.actions) if self.action_space is None else self.action_space

    def require_discrete(self, learner: str) -> None:
        """Raise unless actions are Discrete, for a learner that knows no others."""
        if self.action_space is not None:
            raise ConfigError(
                f"learner {learner} chooses one of some actions, and group {self.name!r} has {self.action_space}: "
                "use learner=ppo, or wrap the environment so that its actions are Discrete"
            )


@dataclass(frozen=True)
class GameSpec:
    """The shape of a game. `turns` is the maximum length of an episode."""

    name: str
    groups: tuple[Group, ...]
    turns: int
    options: Mapping[str, Any] = field(default_factory=dict)
    in_turn: bool = False
    """Whether agents act one after another, and each observes what the agents before it did in the same turn."""
    turns_assumed: bool = False
    """Whether `turns` is a limit of remuda's own, since neither the environment nor the user gave one."""

    @property
    def agents(self) -> int:
        """Number of agents in the herd, over all groups."""
        return sum(group.size for group in self.groups)

    def first_agent(self, group: int) -> int:
        """Herd-wide number of a group's first agent."""
        return sum(g.size for g in self.groups[:group])


@dataclass
class Signals:
    """What has reached the agents of a group since each last observed.

    The game adds to it. The rollout moves rewards and flags into the fragment and resets them when an agent observes.
    """

    rewards: NDArray[np.float32]  # (worlds, agents)
    terminated: NDArray[np.bool_]  # (worlds, agents): the agent died, or the game ended by its own rules
    truncated: NDArray[np.bool_]  # (worlds, agents): cut off by a limit that is not a rule of the game
    alive: NDArray[np.bool_]  # (worlds, agents): whether the agent acts this turn; not reset
    metrics: NDArray[np.float32]  # (worlds, agents, metrics): of the episode so far; not reset

    @classmethod
    def empty(cls, group: Group, worlds: int) -> Signals:
        """All zero: signals of a group before its first episode."""
        shape = (worlds, group.size)
        return cls(
            np.zeros(shape, np.float32),
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.bool_),
            np.zeros((*shape, len(group.metrics)), np.float32),
        )

    def clear(self, worlds: NDArray[np.int64]) -> None:
        """Reset these worlds for a new episode: everything zero, every agent alive."""
        for array in (self.rewards, self.terminated, self.truncated, self.metrics):
            array[worlds] = 0
        self.alive[worlds] = True

    def forget(self, first: int, last: int) -> None:
        """Drop rewards and flags that agents first … last-1 have not received yet."""
        for array in (self.rewards, self.terminated, self.truncated):
            array[:, first:last] = 0


class Game(ABC):
    """B worlds of one game. A subclass implements `reset`, `begin`, `observe`, `act` and `end`.

    A world that is `over` ignores `begin`, `act` and `end`; `observe` then writes its last state.
    """

    def __init__(self, spec: GameSpec, worlds: int) -> None:
        self.spec = spec
        self.worlds = worlds
        self.signals = [Signals.empty(group, worlds) for group in spec.groups]
        self.over = np.ones(worlds, np.bool_)  # (worlds,): whether the world's episode has ended, or none has begun

    @abstractmethod
    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Start an episode in these worlds; all its randomness derives from the world's key, (worlds,)."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a turn: update everything that changes without an agent's action."""

    @abstractmethod
    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write the observations of agents first … last-1 into `out` (worlds, last-first, *obs)."""

    @abstractmethod
    def act(self, group: int, first: int, last: int, actions: NDArray[Any]) -> None:
        """Execute `actions` (worlds, last-first, *action_shape) of agents first … last-1, in that order."""

    @abstractmethod
    def end(self) -> None:
        """End the turn: count it, and mark worlds that are over."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Write which actions are allowed into `out` (worlds, last-first, actions)."""
        raise NotImplementedError(f"{self.spec.name} declares a masked group but has no mask()")

    def observe_state(self, group: int, out: NDArray[Any]) -> None:
        """Write the privileged state that the critics of a group may see into `out` (worlds, *state_shape)."""
        raise NotImplementedError(f"{self.spec.name} declares a state_shape but has no observe_state()")

    def scene(self, world: int) -> Scene | None:
        """What there is to see in one world; films and the board draw it. None: they use `render`."""
        return None

    def can_be_seen(self) -> bool:
        """Whether `scene` or `render` shows anything."""
        return type(self).scene is not Game.scene or type(self).render is not Game.render

    def render(self, world: int) -> NDArray[np.uint8]:
        """A picture of one world, (height, width, 3); one pixel per cell is enough, films enlarge it."""
        raise ConfigError(f"game {self.spec.name!r} has no picture: give it a render() method")

    def text(self, world: int) -> str:
        """One world as text, for a terminal."""
        raise ConfigError(f"game {self.spec.name!r} has no text form: give it a text() method")

    def step(self, actions: Sequence[NDArray[Any]]) -> None:
        """Play one whole turn with given actions, (worlds, agents) for each group, without observing."""
        self.begin()
        for index, group in enumerate(self.spec.groups):
            self.act(index, 0, group.size, actions[index])
        self.end()


class TransformedGame(Game):
    """A game whose agents receive transformed rewards.

    The rewards of a turn are complete when the next turn has begun, or the world is over: then they are transformed.
    """

    def __init__(self, game: Game, options: RewardOptions) -> None:
        spec = _with_game_return(game.spec)
        super().__init__(spec, game.worlds)
        self.game = game
        self._rules = options.per_agent(spec.agents)
        self._compared = np.zeros((game.worlds, spec.agents))  # e, what inequity aversion compares
        self._played = np.zeros(game.worlds, np.bool_)  # worlds with a turn that is not paid yet
        self._follow()

    def _follow(self) -> None:
        """Show the flags and metrics of the game. Its rewards are ours to transform."""
        self.over = self.game.over
        for own, inner in zip(self.signals, self.game.signals, strict=True):
            own.terminated, own.truncated, own.alive = inner.terminated, inner.truncated, inner.alive
            own.metrics[:, :, :-1] = inner.metrics

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Start an episode: nothing was received yet."""
        self.game.reset(worlds, keys)
        for signals in self.signals:
            signals.rewards[worlds] = 0
            signals.metrics[worlds] = 0
        self._compared[worlds] = 0
        self._played[worlds] = False
        self._follow()

    def begin(self) -> None:
        """Begin the turn, and pay the last one."""
        self.game.begin()
        self._pay(self._played)
        for inner in self.game.signals:
            inner.rewards[:] = 0  # before an agent's first observation: nobody can have earned it

    def end(self) -> None:
        """End the turn; worlds that are over are paid now, the others when the next turn begins."""
        self._played |= ~self.game.over
        self.game.end()
        self._pay(self._played & self.game.over)

    def _pay(self, due: NDArray[np.bool_]) -> None:
        from remuda.core.reward_kernel import transform  # with numba: a second, which most runs do without

        worlds = np.flatnonzero(due)
        rewards = np.concatenate([inner.rewards[worlds] for inner in self.game.signals], axis=1).astype(np.float64)
        received = np.zeros(rewards.shape)
        compared = self._compared[worlds]
        transform(rewards, compared, self._rules, received)
        self._compared[worlds] = compared
        self._follow()
        first = 0
        for own, inner in zip(self.signals, self.game.signals, strict=True):
            last = first + own.rewards.shape[1]
            own.rewards[worlds] += received[:, first:last].astype(np.float32)
            own.metrics[worlds, :, -1] += rewards[:, first:last].astype(np.float32)
            inner.rewards[worlds] = 0
            first = last
        self._played[worlds] = False

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """What the game shows."""
        self.game.observe(group, first, last, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[Any]) -> None:
        """What the game does."""
        self.game.act(group, first, last, actions)

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """What the game allows."""
        self.game.mask(group, first, last, out)

    def observe_state(self, group: int, out: NDArray[Any]) -> None:
        """The game's privileged state."""
        self.game.observe_state(group, out)

    def render(self, world: int) -> NDArray[np.uint8]:
        """The game's picture."""
        return self.game.render(world)

    def text(self, world: int) -> str:
        """The game's text."""
        return self.game.text(world)

    def scene(self, world: int) -> Scene | None:
        """The game's scene."""
        return self.game.scene(world)


def _with_game_return(spec: GameSpec) -> GameSpec:
    groups = tuple(replace(group, metrics=(*group.metrics, GAME_RETURN)) for group in spec.groups)
    return replace(spec, groups=groups)


def option_per_world(value: Any, worlds: Sequence[int]) -> list[Any]:
    """The value of an option in each world: world w uses entry w % len(value) of a list, or the one value."""
    values = value if isinstance(value, list) else [value]
    return [values[world % len(values)] for world in worlds]


def count_distinct_worlds(options: Any) -> int:
    """How many distinct worlds there are when options may be lists: world w is configured as world w % count."""
    return math.lcm(*(max(len(value), 1) for value in options.model_dump().values() if isinstance(value, list)))


class StepCost(Enum):
    """What a turn of many worlds costs in one process. It decides how many worlds a worker plays at once."""

    BATCHED = "all worlds are stepped at once, which is cheaper than one by one"
    FAST = "worlds are stepped one by one, each about as fast as the policies choose actions"
    SLOW = "worlds are stepped one by one and each is slow: a worker should play one world at a time"


@dataclass(frozen=True)
class GameEntry:
    """A game in the registry: how to make it, and what its options are."""

    name: str
    summary: str
    options: type[Any]
    make: Callable[[Any, Sequence[int]], Game]
    players: Mapping[str, Callable[[Group, int], Policy]] = field(default_factory=dict)
    """Scripted players of this game, by name; each is constructed with a group and a number of agents."""
    distinct_worlds: Callable[[Any], int] = count_distinct_worlds
    """How many distinct worlds there are with these options; world w is configured as world w % distinct_worlds."""
    step_cost: StepCost | Callable[[Any], StepCost] = StepCost.BATCHED
    """What a turn costs, or a function of the options that returns it."""

    exported_files: Callable[[Any], Mapping[str, str]] = lambda options: {}
    """A function of the options: sources, by file name, that an exported agent needs besides its network."""

    def __post_init__(self) -> None:
        if not (isinstance(self.options, type) and issubclass(self.options, Options)):
            given = getattr(self.options, "__name__", repr(self.options))
            raise ConfigError(
                f"game {self.name!r}: the options of a GameEntry should be a class of remuda.Options, not {given}: "
                "write GameEntry(name, summary, options, make)"
            )

    def step_cost_of(self, options: Mapping[str, Any]) -> StepCost:
        """`step_cost` with these options."""
        return self.step_cost(check_options(self, options)) if callable(self.step_cost) else self.step_cost


def make_game(entry: GameEntry, options: Mapping[str, Any], worlds: Sequence[int]) -> Game:
    """Make the worlds with these numbers; see `option_per_world` for options given as lists.

    The option `reward` transforms what reaches the agents of any game, see `remuda.core.rewards`.
    """
    try:
        game = entry.make(check_options(entry, options), worlds)
    except SystemExit as error:  # would end the program without a word
        raise GameError(f"{entry.name} called sys.exit({error.code!r}) while it was made") from error
    except (RemudaError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raised = f"{type(error).__name__} while it was made{place_of(error)}"
        raise GameError(f"{entry.name} raised {raised}: {message_of(error)}") from error
    transforms = reward_options(entry, options)
    return TransformedGame(game, transforms) if transforms else game


def check_options(entry: GameEntry, options: Mapping[str, Any]) -> Any:
    """The validated options of a game; raises ConfigError or UnknownName for the first one that is wrong."""
    reward_options(entry, options)
    own = {name: value for name, value in options.items() if name != REWARD or REWARD in entry.options.model_fields}
    return entry.options.read(own, f"game {entry.name}")


def reward_options(entry: GameEntry, options: Mapping[str, Any]) -> RewardOptions | None:
    """The reward transforms among the options of a game, if it has no option of that name itself."""
    given = None if REWARD in entry.options.model_fields else options.get(REWARD)
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"reward={given!r} should be a mapping of names to values, e.g. reward.team=1")
    return RewardOptions.read(given, "reward")
