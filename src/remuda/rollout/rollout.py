"""Rollout: plays worlds with policies and fills fragments. Every collector uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.errors import GameError, RemudaError, message_of, place_of
from remuda.core.fragment import Fragment, slice_worlds
from remuda.core.game import Game
from remuda.core.kernels import kernel
from remuda.core.policy import PolicyBinding, PolicyInput, PolicyOutput
from remuda.core.rng import Keys, Stream
from remuda.core.task import InvalidSample, Task
from remuda.core.threads import restore_torch
from remuda.core.timeline import span
from remuda.rollout.config import STREAM_OF_PURPOSE, RolloutConfig, empty_fragments, fragment_layout
from remuda.rollout.frames import frame_window
from remuda.rollout.invalid_samples import remove_invalid_samples


@contextmanager
def game_error_context(game: str, task: Task, config: RolloutConfig, turn: int = 0) -> Iterator[None]:
    """Turn whatever a game raises into a GameError that says where it happened; only Ctrl-C is passed on.

    `sys.exit()` in a game must not end training silently, so this is not only about `Exception`. What a game did to
    torch's settings is undone (0.2 µs where it did nothing).
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (RemudaError, KeyboardInterrupt)) and not isinstance(error, GameError):
            raise
        where = f"turn {turn} of {task}, {config.describe_worlds(task)}, seed {config.seed}"
        told = (
            f"{game}: {error}; in {where}"
            if isinstance(error, GameError)
            else f"{game} raised {type(error).__name__} in {where}{place_of(error)}: {message_of(error)}"
        )
        raise GameError(told, turn) from error
    finally:
        restore_torch()


class Rollout:
    """Plays one set of worlds, task after task, and writes directly into the fragments that it returns."""

    def __init__(self, game: Game, bindings: Sequence[PolicyBinding], config: RolloutConfig) -> None:
        self.game = game
        self.bindings = bindings
        self.config = config
        self.task: Task | None = None
        self.keep_invalid_samples = False
        """Whether rewards and observations that are not finite or out of range stay in the fragments, unreported."""
        self.invalid_samples: list[InvalidSample] = []
        """Invalid samples in the fragments that `play` returned last."""

    def start(self, task: Task) -> None:
        """Start the task's episodes, one per world of the game."""
        config, spec = self.config, self.game.spec
        self.task = task
        with game_error_context(spec.name, task, config):
            self.game.reset(np.arange(self.game.worlds), config.keys(task))
        acting = rng.keys(
            rng.key(config.seed, Stream.ACT, int(STREAM_OF_PURPOSE[task.purpose])), np.array(task.episodes)
        )
        self._keys: list[Keys] = [
            rng.keys(acting[:, None], spec.first_agent(g) + np.arange(group.size))
            for g, group in enumerate(spec.groups)
        ]  # per group (worlds, agents)
        self._ages = [np.zeros((self.game.worlds, group.size), np.int64) for group in spec.groups]
        # Per group: the turn of the current fragment in which each agent acted last, or -1; (worlds, agents).
        self._last_acted = [np.full((self.game.worlds, group.size), -1, np.int64) for group in spec.groups]
        # Per group: recurrent states, (worlds, agents, numbers).
        self._memory = [
            np.zeros((self.game.worlds, group.size, fragment_layout(self.bindings, g).memory), np.float32)
            for g, group in enumerate(spec.groups)
        ]
        # Per group: the last observations of the previous fragment, (before, worlds, agents, *obs).
        self._last_frames: list[NDArray[Any] | None] = [None] * len(spec.groups)
        self._turn = 0  # of the episodes
        self._begun = False  # whether `begin` of turn `_turn` has been called already

    def empty_fragments(self, turns: int | None = None) -> list[Fragment]:
        """Empty fragments for the next `turns` turns (default: a whole episode)."""
        assert self.task is not None, "start a task first"
        return empty_fragments(self.game.spec, self.bindings, self.config, self.task, self._turn, turns)

    def play(self, out: Sequence[Fragment], before_turn: Callable[[], None] = lambda: None) -> list[Fragment]:
        """Play until `out` is full or every world is over; returns the turns played, as views of `out`.

        `before_turn` is called before every turn. It may load newer weights, and it may raise to stop playing.
        """
        assert self.task is not None, "start a task first"
        for g, fragment in enumerate(out):
            self._copy_last_frames(g, fragment)
        turn = 0
        while turn < out[0].turns and not self.game.over.all():
            before_turn()
            with game_error_context(self.game.spec.name, self.task, self.config, self._turn):
                self._play_turn(out, turn)
            turn += 1
            self._turn += 1
        with game_error_context(self.game.spec.name, self.task, self.config, self._turn):
            return self._finish(out, turn)

    def _finish(self, out: Sequence[Fragment], turns: int) -> list[Fragment]:
        """Store what the last turn led to, and return views of the turns played."""
        if turns and not self.game.over.all():
            # What happens as the next turn begins still belongs to the last turn of these fragments.
            self.game.begin()
            self._begun = True
        self.invalid_samples = []
        fragments = []
        for g, fragment in enumerate(out):
            if turns:
                self._store_signals(g, fragment, turns - 1, 0, self.game.spec.groups[g].size)
            self._observe(g, fragment, turns, 0, self.game.spec.groups[g].size)
            fragment.metrics[:] = self.game.signals[g].metrics
            fragment.away[:] = ~self.game.signals[g].alive
            fragments.append(slice_worlds(fragment, slice(None), turns))
            if not self.keep_invalid_samples:
                self.invalid_samples += remove_invalid_samples(fragments[g], self.game.spec)
            over, agents = self.game.over.all(), self.game.spec.groups[g].size
            last = None if over else frame_window(fragments[g], turns, fragment.before + 1, 0, agents)[:-1].copy()
            self._last_frames[g] = last
        return fragments

    def _copy_last_frames(self, g: int, fragment: Fragment) -> None:
        """Copy the last observations of the previous fragment in front of this one; zeros if an episode begins."""
        frames = self._last_frames[g]
        self._last_acted[g][:] = -1
        fragment.obs[: fragment.before] = 0
        if frames is not None and len(frames):
            fragment.obs[fragment.before - len(frames) : fragment.before] = frames

    def _play_turn(self, out: Sequence[Fragment], turn: int) -> None:
        game, groups = self.game, self.game.spec.groups
        if not self._begun:
            game.begin()
        self._begun = False
        keys = [rng.keys(keys, self._turn) for keys in self._keys]
        if self.config.parallel_actions and not game.spec.in_turn:
            for g, group in enumerate(groups):
                self._begin_agents_turn(g, out[g], turn, 0, group.size)
            for g in range(len(groups)):
                self._choose_for_group(g, out[g], turn, keys[g])
            for g, group in enumerate(groups):
                game.act(g, 0, group.size, out[g].actions[turn])
        else:
            for g, group in enumerate(groups):
                for i in range(group.size):
                    self._begin_agents_turn(g, out[g], turn, i, i + 1)
                    self._choose_for_agent(g, out[g], turn, keys[g], i)
                    game.act(g, i, i + 1, np.ascontiguousarray(out[g].actions[turn, :, i : i + 1]))
        game.end()

    def _begin_agents_turn(self, g: int, fragment: Fragment, turn: int, first: int, last: int) -> None:
        """Agents first … last-1 observe. What reached them since their last observation belongs to the turn before."""
        if turn:
            self._store_signals(g, fragment, turn - 1, first, last)
        elif self._turn == 0:
            self.game.signals[g].forget(first, last)  # no agent has observed yet, so no turn can take it
        self._observe(g, fragment, turn, first, last)
        signals = self.game.signals[g]
        alive = signals.alive[:, first:last] & ~self.game.over[:, None]
        fragment.alive[turn, :, first:last] = alive
        self._last_acted[g][:, first:last][alive] = turn
        fragment.ages[turn, :, first:last] = self._ages[g][:, first:last]

    def _observe(self, g: int, fragment: Fragment, turn: int, first: int, last: int) -> None:
        group = self.game.spec.groups[g]
        target = fragment.obs[fragment.before + turn]  # (worlds, agents, *obs)
        whole = last - first == group.size  # then the game may write into the fragment: the array is contiguous
        out = target if whole else np.empty((self.game.worlds, last - first, *group.obs_shape), target.dtype)
        self.game.observe(g, first, last, out)
        if not whole:
            target[:, first:last] = out
        if fragment.mask is not None:
            allowed = np.ones((self.game.worlds, last - first, group.actions), np.bool_)
            self.game.mask(g, first, last, allowed)
            fragment.mask[turn, :, first:last] = allowed
        if fragment.state is not None and first == 0:
            self.game.observe_state(g, fragment.state[turn])

    def _store_signals(self, g: int, fragment: Fragment, turn: int, first: int, last: int) -> None:
        signals = self.game.signals[g]
        _move_signals(
            (signals.rewards, signals.terminated, signals.truncated),
            self._ages[g],
            self._last_acted[g],
            (fragment.rewards, fragment.terminated, fragment.truncated),
            turn,
            first,
            last,
        )

    def _choose_for_group(self, g: int, fragment: Fragment, turn: int, keys: Keys) -> None:
        """Choose actions for all agents of a group, in one call per policy or one agent at a time."""
        for binding in self.bindings:
            if binding.group == g and not self.config.one_by_one:
                self.choose_actions(binding, fragment, turn, keys, binding.first, binding.last)
        if self.config.one_by_one:
            for i in range(self.game.spec.groups[g].size):
                self._choose_for_agent(g, fragment, turn, keys, i)

    def _choose_for_agent(self, g: int, fragment: Fragment, turn: int, keys: Keys, agent: int) -> None:
        for binding in self.bindings:
            if binding.group == g and binding.first <= agent < binding.last:
                self.choose_actions(binding, fragment, turn, keys, agent, agent + 1)

    def choose_actions(
        self, binding: PolicyBinding, fragment: Fragment, turn: int, keys: Keys, first: int, last: int
    ) -> None:
        """Let the policy choose for agents first … last-1 of the group, and store its output in the fragment."""
        assert self.task is not None
        policy = binding.policy
        inputs = PolicyInput(
            obs=frame_window(fragment, turn, policy.frames, first, last),
            ages=self._ages[binding.group][:, first:last],
            mask=None if fragment.mask is None else fragment.mask[turn, :, first:last],
            keys=np.ascontiguousarray(keys[:, first:last]),
            exploration=None if binding.sampled else self.task.exploration,
            memory=self._memory_of(binding, fragment, turn, first, last),
        )
        restore_torch()  # the game may have changed its settings earlier in this turn
        with span("infer"):
            output: PolicyOutput = policy.act(inputs, first - binding.first, last - binding.first)
        fragment.actions[turn, :, first:last] = output.actions
        fragment.versions[turn, first:last] = policy.versions[first - binding.first : last - binding.first]
        for name, values in output.extras.items():
            fragment.extras[name][turn, :, first:last] = values
        if output.memory is not None:
            acted = fragment.alive[turn, :, first:last]  # others forget nothing while they are away
            self._memory[binding.group][:, first:last, : policy.memory_size][acted] = output.memory[acted]

    def _memory_of(
        self, binding: PolicyBinding, fragment: Fragment, turn: int, first: int, last: int
    ) -> NDArray[np.float32] | None:
        """The recurrent states before this turn, zero where a life begins; the first turn's go into the fragment."""
        size = binding.policy.memory_size
        if not size:
            return None
        memory = self._memory[binding.group][:, first:last, :size]
        memory[self._ages[binding.group][:, first:last] == 0] = 0
        if turn == 0 and fragment.memory is not None:
            fragment.memory[:, first:last, :size] = memory
        return memory


@kernel
def _move_signals(signals: Any, ages: Any, acted: Any, out: Any, turn: int, first: int, last: int) -> None:
    """Move rewards and flags of agents first … last-1 into the turn each acted in last, and update their ages.

    That turn is `turn`, except for an agent that is away or waits while others act: it is an earlier one, or none in
    `out`. A limit that is reached meanwhile cuts nothing off after that turn: the agent has not seen what it led to.
    """
    rewards, terminated, truncated = signals
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
            if terminated[w, a] or truncated[w, a]:
                ages[w, a] = 0
            elif t == turn:
                ages[w, a] += 1
            rewards[w, a] = 0
            terminated[w, a] = False
            truncated[w, a] = False
