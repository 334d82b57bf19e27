"""Playing: worlds × policies → fragments. Every placement collects through here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.errors import GameError, RemudaError
from remuda.core.fragment import Fragment, cut
from remuda.core.game import Game
from remuda.core.kernels import kernel
from remuda.core.policy import PolicyBinding, PolicyInput, PolicyOutput
from remuda.core.rng import Keys, Stream
from remuda.core.task import InvalidSample, Task
from remuda.core.timeline import span
from remuda.rollout.config import STREAMS, RolloutConfig, empty_fragments
from remuda.rollout.invalid_samples import remove_invalid_samples


@contextmanager
def game_errors(game: str, task: Task, config: RolloutConfig, turn: int = 0) -> Iterator[None]:
    """Whatever a game raises is told with where it happened."""
    try:
        yield
    except GameError as error:
        error.turn = turn
        raise
    except RemudaError:
        raise
    except Exception as error:
        where = f"turn {turn} of {task}, {config.places(task)}, seed {config.seed}"
        raise GameError(f"{game} raised {type(error).__name__} in {where}: {error}", turn) from error


class Rollout:
    """Plays one set of worlds. A turn's work is done in place, in the fragments it will hand over."""

    def __init__(self, game: Game, bindings: Sequence[PolicyBinding], config: RolloutConfig) -> None:
        self.game = game
        self.bindings = bindings
        self.config = config
        self.task: Task | None = None
        self.judge: Callable[[Fragment], list[InvalidSample]] = lambda fragment: remove_invalid_samples(
            fragment, game.spec
        )
        self.invalid_samples: list[InvalidSample] = []
        """What was wrong with the numbers of the fragments last played."""

    def start(self, task: Task) -> None:
        """Begin the task's episodes, one per world of this player's game."""
        config, spec = self.config, self.game.spec
        self.task = task
        with game_errors(spec.name, task, config):
            self.game.reset(np.arange(self.game.worlds), config.keys(task))
        acting = rng.keys(rng.key(config.seed, Stream.ACT, int(STREAMS[task.purpose])), np.array(task.episodes))
        self._keys: list[Keys] = [
            rng.keys(acting[:, None], spec.first_agent(g) + np.arange(group.size))
            for g, group in enumerate(spec.groups)
        ]  # per group (worlds, agents)
        self._ages = [np.zeros((self.game.worlds, group.size), np.int64) for group in spec.groups]
        self._acted = [np.full((self.game.worlds, group.size), -1, np.int64) for group in spec.groups]  # last, in `out`
        self._tails: list[NDArray[Any] | None] = [None] * len(spec.groups)  # last frames of a slice
        self._turn = 0
        self._begun = False

    def empty_fragments(self, turns: int | None = None) -> list[Fragment]:
        """Empty fragments for the next `turns` turns (default: a whole episode)."""
        assert self.task is not None, "start a task first"
        return empty_fragments(self.game.spec, self.bindings, self.config, self.task, self._turn, turns)

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
            with game_errors(self.game.spec.name, self.task, self.config, self._turn):
                self._play_turn(out, turn)
            turn += 1
            self._turn += 1
        with game_errors(self.game.spec.name, self.task, self.config, self._turn):
            return self._hand_over(out, turn)

    def _hand_over(self, out: Sequence[Fragment], turn: int) -> list[Fragment]:
        """What the last turn led to, and everything cut to the turns played."""
        if turn and not self.game.over.all():
            self.game.begin()
            self._begun = True
        self.invalid_samples = []
        fragments = []
        for g, fragment in enumerate(out):
            if turn:
                self._collect_signals(g, fragment, turn - 1, 0, self.game.spec.groups[g].size)
            self._observe(g, fragment, turn, 0, self.game.spec.groups[g].size)
            fragment.metrics[:] = self.game.signals[g].metrics
            fragments.append(cut(fragment, slice(None), turn))
            self.invalid_samples += self.judge(fragments[g])
            self._tails[g] = None if self.game.over.all() else fragments[g].obs[-1 - fragment.before : -1].copy()
        return fragments

    def _carry_over(self, g: int, fragment: Fragment) -> None:
        """Put the last frames of the previous slice before the first turn of this one; nothing precedes the first."""
        tail = self._tails[g]
        self._acted[g][:] = -1
        fragment.obs[: fragment.before] = 0
        if tail is not None and len(tail):
            fragment.obs[fragment.before - len(tail) : fragment.before] = tail

    def _play_turn(self, out: Sequence[Fragment], turn: int) -> None:
        game, groups = self.game, self.game.spec.groups
        if not self._begun:
            game.begin()
        self._begun = False
        keys = [rng.keys(keys, self._turn) for keys in self._keys]
        if self.config.parallel_actions and not game.spec.in_turn:
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
        alive = signals.alive[:, first:last] & ~self.game.over[:, None]
        fragment.alive[turn, :, first:last] = alive
        self._acted[g][:, first:last][alive] = turn
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
            self._acted[g],
            (fragment.rewards, fragment.terminated, fragment.truncated),
            turn,
            first,
            last,
        )

    def _choose(self, g: int, fragment: Fragment, turn: int, keys: Keys) -> None:
        """Every agent of a group chooses: stacked, or one after another."""
        for binding in self.bindings:
            if binding.group == g and not self.config.one_by_one:
                self.ask(binding, fragment, turn, keys, binding.first, binding.last)
        if self.config.one_by_one:
            for i in range(self.game.spec.groups[g].size):
                self._choose_one(g, fragment, turn, keys, i)

    def _choose_one(self, g: int, fragment: Fragment, turn: int, keys: Keys, agent: int) -> None:
        for binding in self.bindings:
            if binding.group == g and binding.first <= agent < binding.last:
                self.ask(binding, fragment, turn, keys, agent, agent + 1)

    def ask(self, binding: PolicyBinding, fragment: Fragment, turn: int, keys: Keys, first: int, last: int) -> None:
        """Have the seat's policy choose for agents first … last-1 of the group and write it down."""
        assert self.task is not None
        policy, now = binding.policy, fragment.before + turn
        inputs = PolicyInput(
            obs=fragment.obs[now - policy.frames + 1 : now + 1, :, first:last],
            ages=self._ages[binding.group][:, first:last],
            mask=None if fragment.mask is None else fragment.mask[turn, :, first:last],
            keys=np.ascontiguousarray(keys[:, first:last]),
            exploration=self.task.exploration,
        )
        with span("infer"):
            output: PolicyOutput = policy.act(inputs, first - binding.first, last - binding.first)
        fragment.actions[turn, :, first:last] = output.actions
        fragment.versions[turn, first:last] = policy.versions[first - binding.first : last - binding.first]
        for name, values in output.extras.items():
            fragment.extras[name][turn, :, first:last] = values


@kernel
def _take_signals(signals: Any, ages: Any, acted: Any, out: Any, turn: int, first: int, last: int) -> None:
    """Move what reached some agents into the turn they last acted in, and count how long they have lived.

    That is `turn`, unless an agent waits while others act.
    """
    rewards, terminated, truncated, alive = signals
    out_rewards, out_terminated, out_truncated = out
    for w in range(rewards.shape[0]):
        for a in range(first, last):
            t = acted[w, a]
            if t < turn:
                out_rewards[turn, w, a] = 0
                out_terminated[turn, w, a] = False
                out_truncated[turn, w, a] = False
            if t == turn:
                out_rewards[t, w, a] = rewards[w, a]
                out_terminated[t, w, a] = terminated[w, a]
                out_truncated[t, w, a] = truncated[w, a] and not terminated[w, a]
            elif t >= 0 and not (out_terminated[t, w, a] or out_truncated[t, w, a]):
                out_rewards[t, w, a] += rewards[w, a]
                out_terminated[t, w, a] = terminated[w, a]
                out_truncated[t, w, a] = truncated[w, a] and not terminated[w, a]
            ended = terminated[w, a] or truncated[w, a]
            ages[w, a] = ages[w, a] + 1 if alive[w, a] and t == turn and not ended else 0
            rewards[w, a] = 0
            terminated[w, a] = False
            truncated[w, a] = False
