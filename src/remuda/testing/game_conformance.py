"""The conformance suite for games: does a game keep the promises that training relies on?"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from time import perf_counter
from traceback import extract_tb
from typing import Any

import numba
import numpy as np

from remuda.adapters.inbound.factories import FactoryOptions
from remuda.adapters.inbound.worlds import SimulatorGame
from remuda.core import rng
from remuda.core.errors import RemudaError, message_of, user_frame
from remuda.core.fragment import Fragment
from remuda.core.game import Game, GameEntry, TransformedGame, make_game
from remuda.core.kernels import uncompiled
from remuda.core.machine import process_tree
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.registry import AnyGame, find_game, game_name
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.testing.finding import Check, Finding, Note, findings

WORLDS = 3
PER_TURN = ("rewards", "terminated", "truncated", "alive")
MAX_TURNS = 200
"""Turns that are played of a long episode."""
UNCOMPILED_TURNS = 25
"""Turns that three worlds play without compiling, some hundred times as slowly: a second or two on the largest map."""
UNCOMPILED_S = 3.0
"""How long one world then plays without compiling, at most."""
UNCOMPILED_STEP = 5
"""Turns after which the time is looked at."""
NECESSARY = 3
"""If one of the first so many checks fails, the others would only repeat its problem: they are left out."""


def check_game(game: AnyGame, **options: Any) -> list[Finding]:
    """Run the checks on a game, given by name, entry or factory; what the game raises becomes a finding.

    A game that cannot be made or played has that one finding as its last.
    """
    entry = game if isinstance(game, GameEntry) else find_game(game_name(game))
    return findings(CHECKS, entry, options, necessary=NECESSARY)


def _rollout(
    entry: GameEntry, options: Mapping[str, Any], worlds: list[int], parallel: bool = True, seed: int = 0
) -> Rollout:
    """Random policies in these worlds, about to play one episode in each."""
    game = make_game(entry, options, worlds)
    rollout = Rollout(game, random_bindings(game), RolloutConfig(seed, WORLDS, parallel))
    rollout.start(Task(tuple(worlds)))
    return rollout


def _play(rollout: Rollout) -> list[Fragment]:
    return rollout.play(rollout.empty_fragments(min(rollout.game.spec.turns, MAX_TURNS)))


def _play_unchecked(
    entry: GameEntry, options: Mapping[str, Any], worlds: list[int], parallel: bool = True, seed: int = 0
) -> list[Fragment]:
    """Fragments exactly as the game filled them: invalid samples are not removed."""
    rollout = _rollout(entry, options, worlds, parallel, seed)
    rollout.keep_invalid_samples = True
    return _play(rollout)


def _check_spec(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    spec = make_game(entry, options, [0]).spec
    if spec.turns < 1 or not spec.groups:
        return "the spec has no turns or no groups"
    for group in spec.groups:
        if group.size < 1 or (group.action_space is None and group.actions < 2):
            return (
                f"group {group.name!r} has {group.size} agents and {group.actions} actions; it needs 1 and 2 at least"
            )
    return None


def _check_uncompiled(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    """What kernels raise as plain Python. What a game raises besides them, later checks tell."""
    note = None
    with uncompiled() as raised:
        try:
            for parallel in (True, False):
                rollout = _rollout(entry, options, [0, 1, 2], parallel)
                rollout.keep_invalid_samples = True
                rollout.play(rollout.empty_fragments(min(rollout.game.spec.turns, UNCOMPILED_TURNS)))
            note = _play_whole_episode(entry, options)
        except RemudaError:
            pass
    return f"raised {type(raised[0]).__name__}: {message_of(raised[0])} {_place(raised[0])}" if raised else note


def _play_whole_episode(entry: GameEntry, options: Mapping[str, Any]) -> Note | None:
    """Play one world until its episode ends or the time is up.

    Environments of other libraries are Python already, and with NUMBA_DISABLE_JIT=1 so is all that later checks play.
    """
    if issubclass(entry.options, FactoryOptions) or numba.config.DISABLE_JIT:
        return None
    rollout = _rollout(entry, options, [0])
    rollout.keep_invalid_samples = True
    played, limit, begun = 0, rollout.game.spec.turns, perf_counter()
    while played < limit and not rollout.game.over.all():
        if perf_counter() - begun > UNCOMPILED_S:
            told = max(played, UNCOMPILED_TURNS)
            return Note(f"the first {told:,} turns ran uncompiled; NUMBA_DISABLE_JIT=1 remuda check … plays the rest")
        rollout.play(rollout.empty_fragments(min(limit - played, UNCOMPILED_STEP)))
        played += UNCOMPILED_STEP
    return None


def _place(error: Exception) -> str:
    """The innermost line of the game's own code that raised, or of ours if there is none."""
    frame = user_frame(error) or extract_tb(error.__traceback__)[-1]
    return f"in {frame.name} ({frame.filename}, line {frame.lineno}): {frame.line}"


def _check_runs(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    for parallel in (True, False):
        rollout = _rollout(entry, options, [0, 1, 2], parallel)
        rollout.keep_invalid_samples = True
        fragments = _play(rollout)
        if any(fragment.turns < 1 for fragment in fragments):
            return "an episode has no turns"
        # An agent may sit out an episode, but somebody must play it.
        if not np.logical_or.reduce([fragment.alive[0].any(axis=1) for fragment in fragments]).all():
            return "no agent is alive in the first turn"
    return _remarks(rollout.game)


def _remarks(game: Game) -> Note | None:
    """What the adapter of a foreign environment noticed while it was played."""
    own = game.game if isinstance(game, TransformedGame) else game
    return Note("; ".join(own.remarks)) if isinstance(own, SimulatorGame) and own.remarks else None


def _check_observations(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    return _first_invalid_sample(entry, options, "an observation")


def _check_rewards(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    return _first_invalid_sample(entry, options, "a reward")


def _first_invalid_sample(entry: GameEntry, options: Mapping[str, Any], kind: str) -> str | None:
    rollout = _rollout(entry, options, [0, 1, 2])
    _play(rollout)
    return next((str(sample) for sample in rollout.invalid_samples if sample.message.startswith(kind)), None)


def _equal(a: list[Fragment], b: list[Fragment]) -> bool:
    return all(
        np.array_equal(getattr(x, name), getattr(y, name), equal_nan=name in ("rewards", "metrics"))
        for x, y in zip(a, b, strict=True)
        for name in ("obs", *PER_TURN, "metrics")
    )


def _check_same_key(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    if not _equal(_play_unchecked(entry, options, [0, 1, 2]), _play_unchecked(entry, options, [0, 1, 2])):
        return (
            f"the same key and actions gave two different episodes: {_seeding(entry)}, not from a generator that the "
            "game or its libraries seed themselves"
        )
    return None


def _check_other_key(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    a, b = (_play_unchecked(entry, options, [0, 1, 2], seed=seed) for seed in (0, 1))
    if _equal(a, b):
        return f"two seeds gave the same episode: {_seeding(entry)}, not from a seed of the game's own"
    return None


def _seeding(entry: GameEntry) -> str:
    """Where the game's randomness should come from."""
    if issubclass(entry.options, FactoryOptions):
        return (
            "draw all randomness from a generator that reset(seed=…) seeds (Gymnasium: super().reset(seed=seed), then "
            "self.np_random)"
        )
    return "derive all randomness from the keys that reset is given"


def _check_worlds_apart(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    together = _play_unchecked(entry, options, [0, 1, 2])
    for world in range(WORLDS):
        for whole, alone in zip(together, _play_unchecked(entry, options, [world]), strict=True):
            turns = alone.turns
            pairs = [(whole.obs[: whole.before + turns, world], alone.obs[: alone.before + turns, 0])]
            pairs += [(getattr(whole, n)[:turns, world], getattr(alone, n)[:, 0]) for n in PER_TURN]
            pairs.append((whole.metrics[world], alone.metrics[0]))
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
                return f"world {world} plays differently together with other worlds than alone"
    return None


def _check_reset(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    rollout = _rollout(entry, options, [0])
    first = _play(rollout)
    rollout.game.reset(np.arange(1), rng.keys(rng.key(0, Stream.CHECK), np.arange(1)))  # another episode in between
    rollout.start(Task((0,)))
    return None if _equal(first, _play(rollout)) else "an episode depends on what was played before the reset"


def _check_end(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    rollout = _rollout(entry, options, [0])
    fragments = rollout.play(rollout.empty_fragments())
    if not rollout.game.over.all():
        return f"the episode does not end after the {rollout.game.spec.turns} turns that the spec allows"
    for fragment in fragments:
        last = fragment.turns - 1
        ended = fragment.terminated[last] | fragment.truncated[last] | fragment.away
        if not ended[fragment.alive[last]].all():
            return "the world is over, but an agent alive in its last turn is neither terminated nor truncated"
    spec = rollout.game.spec
    if spec.turns_assumed and fragments[0].turns == spec.turns:
        return Note(f"the episode did not end by itself and was cut after {spec.turns:,} turns: turns=N sets the limit")
    return _remarks(rollout.game) if fragments[0].turns > MAX_TURNS else None  # otherwise `_check_runs` tells them


def _check_absences(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    """Leaving is not dying: traps of games whose agents do not act in every turn."""
    fragments = _play_unchecked(entry, options, [0, 1, 2])
    for fragment in fragments:
        gone = fragment.truncated[-1] & fragment.away
        for world, agent in np.argwhere(gone & (~fragment.away).any(axis=1, keepdims=True)).tolist():
            return (
                f"agent {agent} is truncated in world {world} although it is away: leave truncated False where alive is"
            )
        for world, agent in np.ndindex(fragment.away.shape):
            acted = np.flatnonzero(fragment.alive[:, world, agent])
            cut = np.flatnonzero(fragment.truncated[acted[:-1], world, agent]) if len(acted) else acted
            if len(cut):
                return (
                    f"agent {agent} is truncated in turn {acted[cut[0]]} and acts again in turn {acted[cut[0] + 1]}: "
                    "while an agent is away set alive to False and no other flag"
                )
    return _note_on_absences(fragments)


def _note_on_absences(fragments: list[Fragment]) -> Note | None:
    lost, back = None, False
    for fragment in fragments:
        for world, agent in np.ndindex(fragment.away.shape):
            acted = np.flatnonzero(fragment.alive[:, world, agent])
            for turn, later in pairwise(acted.tolist()):
                if fragment.terminated[turn, world, agent]:
                    return Note(
                        f"agent {agent} is terminated in turn {turn} and acts again in turn {later}: a death and a new "
                        "life; if it was only away, set alive to False and no other flag"
                    )
                back |= later > turn + 1
            last = int(acted[-1]) if len(acted) else fragment.turns
            if last < fragment.turns - 1 and not fragment.terminated[last, world, agent]:
                lost = lost or (agent, last) if not fragment.truncated[last, world, agent] else lost
    if lost is None or back:
        return None
    return Note(
        f"agent {lost[0]} acts in turn {lost[1]} for the last time without a flag: if it died, set terminated; "
        "its last action is not learned from"
    )


def _check_prints(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    with _captured_stdout() as lines:
        _play_unchecked(entry, options, [0])
    return f"it prints, e.g. {lines[0][:80]!r}: report such things as metrics, or not at all" if lines else None


@contextmanager
def _captured_stdout() -> Iterator[list[str]]:
    """Collects the lines written to this process's standard output; the list is filled when the block ends.

    File descriptor 1 is redirected too, because compiled libraries write to it without `sys.stdout`.
    """
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 1)
        try:
            with redirect_stdout(file):
                yield lines
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        lines += file.read().splitlines()


def _check_processes(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    before = set(process_tree(os.getpid()))
    rollout = _rollout(entry, options, [0])
    rollout.play(rollout.empty_fragments(1))
    started = len(set(process_tree(os.getpid())) - before)
    return f"it started {started} processes: simulate in the process that calls the game" if started else None


def _check_mask(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    for fragment in _play_unchecked(entry, options, [0, 1, 2]):
        if fragment.mask is not None and not fragment.mask[:-1][fragment.alive].any(axis=-1).all():
            return "the mask forbids every action to an agent that is alive"
    return None


CHECKS: tuple[Check, ...] = (
    ("the spec is valid", "the game cannot be created", _check_spec),
    (
        "rules run uncompiled, where every index is checked",
        "compiled, the same error reads or overwrites other memory without a word, or stops training",
        _check_uncompiled,
    ),
    ("episodes run, with parallel actions and without", "training cannot start", _check_runs),
    ("observations stay in their space", "the agent learns nothing from such an episode", _check_observations),
    ("rewards are finite", "the agent learns nothing from such an episode", _check_rewards),
    ("the same key gives the same episode", "runs cannot be repeated, resumed or replayed", _check_same_key),
    ("another key gives another episode", "agents learn one episode by heart", _check_other_key),
    (
        "worlds do not influence each other",
        "results depend on how many worlds and workers there are",
        _check_worlds_apart,
    ),
    ("reset forgets everything", "results depend on which worker played before", _check_reset),
    ("episodes end, and say how", "values are bootstrapped from the wrong state", _check_end),
    ("being away is not the end of a life", "values are taken from what nobody acts on", _check_absences),
    ("it prints nothing", "every worker writes its lines into the progress display", _check_prints),
    ("it starts no processes", "every worker starts its own, and they may outlive it", _check_processes),
    ("an agent that is alive may act", "the agent has no action to choose", _check_mask),
)
