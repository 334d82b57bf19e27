"""Playing: worlds × policies → fragments. Every placement collects through here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda import rng
from remuda.config import Plan
from remuda.errors import GameError, RemudaError
from remuda.fragment import Fragment, Origin, Purpose, blank, cut
from remuda.game import Game, GameEntry, GameSpec, Group, check_options, make_game
from remuda.kernels import kernel
from remuda.policy import Choice, Policy, Sight
from remuda.rng import Keys, Stream
from remuda.telemetry.timeline import span

STREAMS = {
    Purpose.TRAIN: Stream.TRAIN,
    Purpose.EVALUATE: Stream.EVALUATE,
    Purpose.TEST: Stream.TEST,
}
MAX_PLAYERS = 64
"""Players kept for reuse; each holds the arrays of its worlds."""


@dataclass(frozen=True)
class Seat:
    """Who plays for neighbouring agents of a group."""

    group: int
    first: int
    last: int
    policy: Policy


@dataclass(frozen=True)
class Task:
    """Episodes to play; each decides its own world and all of its chance."""

    episodes: tuple[int, ...]
    purpose: Purpose = Purpose.TRAIN
    exploration: float | None = None  # see Sight

    def __str__(self) -> str:
        first, last = self.episodes[0], self.episodes[-1]
        return f"{self.purpose} " + (f"episode {first}" if first == last else f"episodes {first} to {last}")


@dataclass(frozen=True)
class Flaw:
    """Numbers nobody can learn from, in an agent's episode."""

    purpose: Purpose
    episode: int
    world: int
    agent: int  # herd-wide number
    turn: int
    what: str

    def __str__(self) -> str:
        where = f"turn {self.turn} of {self.purpose} episode {self.episode}, world {self.world}"
        return f"{self.what} for agent {self.agent} in {where}"


@dataclass(frozen=True)
class Manner:
    """How turns are played."""

    seed: int
    worlds: int  # of the whole plan: episode e is played in world e % worlds
    parallel_actions: bool = True
    one_by_one: bool = False  # one agent's forward pass at a time

    @classmethod
    def of(cls, plan: Plan, one_by_one: bool = False) -> Manner:
        """As a plan has it."""
        return cls(plan.seed, plan.worlds, plan.parallel_actions, one_by_one)

    def places(self, task: Task) -> str:
        """In which worlds a task is played, in words."""
        first, last = task.episodes[0] % self.worlds, task.episodes[-1] % self.worlds
        return f"world {first}" if first == last else f"worlds {first} to {last}"


def shares(count: int, parts: int) -> list[tuple[int, int]]:
    """0 … count-1 cut into at most `parts` balanced ranges."""
    parts = min(parts, count)
    return list(pairwise(count * i // parts for i in range(parts + 1)))


def frames(seats: Sequence[Seat], group: int) -> int:
    """The most frames any policy of a group looks at."""
    return max([seat.policy.frames for seat in seats if seat.group == group], default=1)


def room(
    spec: GameSpec,
    seats: Sequence[Seat],
    manner: Manner,
    task: Task,
    first_turn: int = 0,
    turns: int | None = None,
) -> list[Fragment]:
    """Empty fragments, one per group, for `turns` turns (default: a whole episode) of a task."""
    episodes = np.array(task.episodes, np.int64)
    fragments = []
    for g, group in enumerate(spec.groups):
        origin = Origin(g, episodes % manner.worlds, episodes, first_turn, task.purpose)
        names = sorted({name for seat in seats if seat.group == g for name in seat.policy.extras})
        before = frames(seats, g) - 1
        fragments.append(blank(origin, group, turns or spec.turns, before, tuple(names)))
    return fragments


class Players:
    """Players kept for reuse, so that no game is built anew for every task."""

    def __init__(
        self, entry: GameEntry, options: Mapping[str, Any], manner: Manner, make: Callable[[Game], Player]
    ) -> None:
        self._entry, self._options, self._manner, self._make = entry, options, manner, make
        self._kinds = entry.kinds(check_options(entry, options))
        self._kept: OrderedDict[tuple[int, ...], Player] = OrderedDict()

    def begin(self, task: Task, thread: int = 0) -> Player:
        """This thread's player for worlds like the task's, ready to play it."""
        key = self._key(task, thread)
        player = self._kept.pop(key, None)  # for good, if it fails
        if player is None:
            with guarded(self._entry.name, task, self._manner):
                player = self._make(make_game(self._entry, self._options, self._worlds(task)))
        player.start(task)
        self._kept[key] = player
        if len(self._kept) > MAX_PLAYERS:
            self._kept.popitem(last=False)
        return player

    def forget(self, task: Task, thread: int = 0) -> None:
        """Never use the player of this task again: who knows what state its game is in."""
        self._kept.pop(self._key(task, thread), None)

    def _key(self, task: Task, thread: int) -> tuple[int, ...]:
        return (thread, *self._worlds(task))

    def _worlds(self, task: Task) -> list[int]:
        """Numbers of the worlds, alike ones alike."""
        return [episode % self._manner.worlds % self._kinds for episode in task.episodes]


@contextmanager
def guarded(game: str, task: Task, manner: Manner, turn: int = 0) -> Iterator[None]:
    """Whatever a game raises is told with where it happened."""
    try:
        yield
    except GameError as error:
        error.turn = turn
        raise
    except RemudaError:
        raise
    except Exception as error:
        where = f"turn {turn} of {task}, {manner.places(task)}, seed {manner.seed}"
        raise GameError(f"{game} raised {type(error).__name__} in {where}: {error}", turn) from error


class Player:
    """Plays one set of worlds. A turn's work is done in place, in the fragments it will hand over."""

    def __init__(self, game: Game, seats: Sequence[Seat], manner: Manner) -> None:
        self.game = game
        self.seats = seats
        self.manner = manner
        self.task: Task | None = None
        self.judge: Callable[[Fragment], list[Flaw]] = lambda fragment: spoilt(fragment, game.spec)
        self.flaws: list[Flaw] = []
        """What was wrong with the numbers of the fragments last played."""

    def start(self, task: Task) -> None:
        """Begin the task's episodes, one per world of this player's game."""
        manner, spec = self.manner, self.game.spec
        self.task = task
        episodes = np.array(task.episodes, np.int64)
        stream = STREAMS[task.purpose]
        keys = rng.keys(rng.keys(rng.key(manner.seed, stream), episodes % manner.worlds), episodes)
        with guarded(spec.name, task, manner):
            self.game.reset(np.arange(self.game.worlds), keys)
        acting = rng.keys(rng.key(manner.seed, Stream.ACT, int(stream)), episodes)
        self._keys: list[Keys] = [
            rng.keys(acting[:, None], spec.first_agent(g) + np.arange(group.size))
            for g, group in enumerate(spec.groups)
        ]  # per group (worlds, agents)
        self._ages = [np.zeros((self.game.worlds, group.size), np.int64) for group in spec.groups]
        self._tails: list[NDArray[Any] | None] = [None] * len(spec.groups)  # last frames of a slice
        self._turn = 0
        self._begun = False

    def room(self, turns: int | None = None) -> list[Fragment]:
        """Empty fragments for the next `turns` turns (default: a whole episode)."""
        assert self.task is not None, "start a task first"
        return room(self.game.spec, self.seats, self.manner, self.task, self._turn, turns)

    def play(self, out: Sequence[Fragment], stop: Callable[[], None] = lambda: None) -> list[Fragment]:
        """Play until `out` is full or every world is over; returns `out` cut to the turns played.

        `stop` is called every turn and may raise.
        """
        assert self.task is not None, "start a task first"
        for g, fragment in enumerate(out):
            self._carry_over(g, fragment)
        turn = 0
        while turn < out[0].turns and not self.game.over.all():
            stop()
            with guarded(self.game.spec.name, self.task, self.manner, self._turn):
                self._play_turn(out, turn)
            turn += 1
            self._turn += 1
        with guarded(self.game.spec.name, self.task, self.manner, self._turn):
            return self._hand_over(out, turn)

    def _hand_over(self, out: Sequence[Fragment], turn: int) -> list[Fragment]:
        """What the last turn led to, and everything cut to the turns played."""
        if turn and not self.game.over.all():
            self.game.begin()
            self._begun = True
        self.flaws = []
        fragments = []
        for g, fragment in enumerate(out):
            if turn:
                self._collect_signals(g, fragment, turn - 1, 0, self.game.spec.groups[g].size)
            self._observe(g, fragment, turn, 0, self.game.spec.groups[g].size)
            fragment.metrics[:] = self.game.signals[g].metrics
            fragments.append(cut(fragment, slice(None), turn))
            self.flaws += self.judge(fragments[g])
            self._tails[g] = None if self.game.over.all() else fragments[g].obs[-1 - fragment.before : -1].copy()
        return fragments

    def _carry_over(self, g: int, fragment: Fragment) -> None:
        """Put the last frames of the previous slice before the first turn of this one; nothing precedes the first."""
        tail = self._tails[g]
        fragment.obs[: fragment.before] = 0
        if tail is not None and len(tail):
            fragment.obs[fragment.before - len(tail) : fragment.before] = tail

    def _play_turn(self, out: Sequence[Fragment], turn: int) -> None:
        game, groups = self.game, self.game.spec.groups
        if not self._begun:
            game.begin()
        self._begun = False
        keys = [rng.keys(keys, self._turn) for keys in self._keys]
        if self.manner.parallel_actions and not game.spec.in_turn:
            for g, group in enumerate(groups):
                self._look(g, out[g], turn, 0, group.size)
            for g in range(len(groups)):
                self._choose(g, out[g], turn, keys[g])
            for g, group in enumerate(groups):
                game.act(g, 0, group.size, out[g].actions[turn])
        else:
            for g, group in enumerate(groups):
                for i in range(group.size):
                    self._look(g, out[g], turn, i, i + 1)
                    self._choose_one(g, out[g], turn, keys[g], i)
                    game.act(g, i, i + 1, np.ascontiguousarray(out[g].actions[turn, :, i : i + 1]))
        game.end()

    def _look(self, g: int, fragment: Fragment, turn: int, first: int, last: int) -> None:
        """Agents observe; what reached them since they last did belongs to the turn before."""
        if turn:
            self._collect_signals(g, fragment, turn - 1, first, last)
        elif self._turn == 0:
            self.game.signals[g].forget(first, last)  # nobody had seen anything yet
        self._observe(g, fragment, turn, first, last)
        signals = self.game.signals[g]
        fragment.alive[turn, :, first:last] = signals.alive[:, first:last] & ~self.game.over[:, None]
        fragment.ages[turn, :, first:last] = self._ages[g][:, first:last]

    def _observe(self, g: int, fragment: Fragment, turn: int, first: int, last: int) -> None:
        group = self.game.spec.groups[g]
        place = fragment.obs[fragment.before + turn]
        whole = last - first == group.size
        out = place if whole else np.empty((self.game.worlds, last - first, *group.obs_shape), place.dtype)
        self.game.observe(g, first, last, out)
        if not whole:
            place[:, first:last] = out
        if fragment.mask is not None:
            allowed = np.ones((self.game.worlds, last - first, group.actions), np.bool_)
            self.game.mask(g, first, last, allowed)
            fragment.mask[turn, :, first:last] = allowed

    def _collect_signals(self, g: int, fragment: Fragment, turn: int, first: int, last: int) -> None:
        signals = self.game.signals[g]
        _take_signals(
            (signals.rewards, signals.terminated, signals.truncated, signals.alive),
            self._ages[g],
            (fragment.rewards[turn], fragment.terminated[turn], fragment.truncated[turn], fragment.alive[turn]),
            first,
            last,
        )

    def _choose(self, g: int, fragment: Fragment, turn: int, keys: Keys) -> None:
        """Every agent of a group chooses: stacked, or one after another."""
        for seat in self.seats:
            if seat.group == g and not self.manner.one_by_one:
                self.ask(seat, fragment, turn, keys, seat.first, seat.last)
        if self.manner.one_by_one:
            for i in range(self.game.spec.groups[g].size):
                self._choose_one(g, fragment, turn, keys, i)

    def _choose_one(self, g: int, fragment: Fragment, turn: int, keys: Keys, agent: int) -> None:
        for seat in self.seats:
            if seat.group == g and seat.first <= agent < seat.last:
                self.ask(seat, fragment, turn, keys, agent, agent + 1)

    def ask(self, seat: Seat, fragment: Fragment, turn: int, keys: Keys, first: int, last: int) -> None:
        """Have the seat's policy choose for agents first … last-1 of the group and write it down."""
        assert self.task is not None
        policy, now = seat.policy, fragment.before + turn
        sight = Sight(
            obs=fragment.obs[now - policy.frames + 1 : now + 1, :, first:last],
            ages=self._ages[seat.group][:, first:last],
            mask=None if fragment.mask is None else fragment.mask[turn, :, first:last],
            keys=np.ascontiguousarray(keys[:, first:last]),
            exploration=self.task.exploration,
        )
        with span("infer"):
            choice: Choice = policy.act(sight, first - seat.first, last - seat.first)
        fragment.actions[turn, :, first:last] = choice.actions
        fragment.versions[turn, first:last] = policy.versions[first - seat.first : last - seat.first]
        for name, values in choice.extras.items():
            fragment.extras[name][turn, :, first:last] = values


def spoilt(fragment: Fragment, spec: GameSpec) -> list[Flaw]:
    """Episodes with numbers no agent can learn from; they are taken out of the agent's life, and zeroed."""
    group = spec.groups[fragment.origin.group]
    obs = fragment.obs[fragment.before :].reshape(fragment.turns + 1, *fragment.alive.shape[1:], -1)
    if _within(obs, group) and np.isfinite(fragment.rewards).all():
        return []
    lived = fragment.alive.copy()
    seen = np.concatenate([lived, np.zeros_like(lived[:1])])
    seen[1:] |= lived
    wrong_obs = seen & ~((obs >= group.low) & (obs <= group.high) & np.isfinite(obs)).all(axis=3)
    wrong_rewards = lived & ~np.isfinite(fragment.rewards)
    flaws = []
    for world, agent in np.argwhere(wrong_obs.any(axis=0) | wrong_rewards.any(axis=0)).tolist():
        rewards, sights = np.flatnonzero(wrong_rewards[:, world, agent]), np.flatnonzero(wrong_obs[:, world, agent])
        if len(rewards):
            turn, what = int(rewards[0]), f"a reward of {fragment.rewards[rewards[0], world, agent]}"
        else:
            turn, what = int(sights[0]), f"an observation outside {group.low:g} to {group.high:g}"
        origin, number = fragment.origin, spec.first_agent(fragment.origin.group) + agent
        turn += origin.first_turn
        flaws.append(Flaw(origin.purpose, int(origin.episodes[world]), int(origin.worlds[world]), number, turn, what))
        fragment.alive[:, world, agent] = False
    fragment.rewards[~np.isfinite(fragment.rewards)] = 0
    obs[~np.isfinite(obs)] = 0
    return flaws


def _within(obs: NDArray[Any], group: Group) -> bool:
    """Whether all observations are numbers of the group's space: a quick look at the extremes."""
    if np.issubdtype(obs.dtype, np.integer):
        limits = np.iinfo(obs.dtype)
        if group.low <= limits.min and group.high >= limits.max:
            return True
    if not obs.size:
        return True
    low, high = obs.min(), obs.max()
    return bool(np.isfinite(low) and np.isfinite(high) and low >= group.low and high <= group.high)


@kernel
def _take_signals(signals: Any, ages: Any, out: Any, first: int, last: int) -> None:
    """Move what reached some agents into the turn it belongs to, and count how long they have lived."""
    rewards, terminated, truncated, alive = signals
    out_rewards, out_terminated, out_truncated, acted = out
    for w in range(rewards.shape[0]):
        for a in range(first, last):
            out_rewards[w, a] = rewards[w, a]
            out_terminated[w, a] = terminated[w, a] and acted[w, a]
            out_truncated[w, a] = truncated[w, a] and acted[w, a] and not terminated[w, a]
            ended = terminated[w, a] or truncated[w, a]
            ages[w, a] = ages[w, a] + 1 if alive[w, a] and acted[w, a] and not ended else 0
            rewards[w, a] = 0
            terminated[w, a] = False
            truncated[w, a] = False
