"""A conformance suite for games: does yours keep the promises that training rests on?"""

from __future__ import annotations

import bdb
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from remuda.core import rng
from remuda.core.errors import RemudaError
from remuda.core.fragment import Fragment
from remuda.core.game import GameEntry, make_game
from remuda.core.machine import family
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.registry import AnyGame, find_game, name_of
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

WORLDS = 3
PER_TURN = ("rewards", "terminated", "truncated", "alive")
MOST_TURNS = 200


@dataclass(frozen=True)
class Finding:
    """One promise: whether it holds, and what it means for training if it does not."""

    promise: str
    problem: str | None
    meaning: str

    @property
    def good(self) -> bool:
        """Whether the promise holds."""
        return self.problem is None


def check(game: AnyGame, **options: Any) -> list[Finding]:
    """Run every check on a game, given by name, entry or factory; never raises for what the game does."""
    entry = game if isinstance(game, GameEntry) else find_game(name_of(game))
    findings = []
    for promise, meaning, test in CHECKS:
        problem = None
        try:
            problem = test(entry, options)
        except RemudaError as error:
            problem = str(error)
        except bdb.BdbQuit:  # from a breakpoint
            raise
        except Exception as error:  # the game is the user's code: whatever it raises is a finding
            problem = f"raised {type(error).__name__}: {error}"
        findings.append(Finding(promise, problem, meaning))
    return findings


def _play(
    entry: GameEntry, options: Mapping[str, Any], worlds: list[int], parallel: bool = True, seed: int = 0
) -> list[Fragment]:
    """What the game shows, as it shows it."""
    rollout = _rollout(entry, options, worlds, parallel, seed)
    rollout.judge = lambda fragment: []
    return rollout.play(rollout.empty_fragments(min(rollout.game.spec.turns, MOST_TURNS)))


def _rollout(
    entry: GameEntry, options: Mapping[str, Any], worlds: list[int], parallel: bool = True, seed: int = 0
) -> Rollout:
    game = make_game(entry, options, worlds)
    rollout = Rollout(game, random_bindings(game), RolloutConfig(seed, WORLDS, parallel))
    rollout.start(Task(tuple(worlds)))
    return rollout


def _check_spec(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    spec = make_game(entry, options, [0]).spec
    if spec.turns < 1 or not spec.groups:
        return "the spec has no turns or no groups"
    for group in spec.groups:
        if group.size < 1 or group.actions < 2:
            return (
                f"group {group.name!r} has {group.size} agents and {group.actions} actions; it needs 1 and 2 at least"
            )
    return None


def _check_runs(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    for parallel in (True, False):
        for fragment in _play(entry, options, [0, 1, 2], parallel):
            if fragment.turns < 1:
                return "an episode has no turns"
            if not fragment.alive[0].all():
                return "not every agent is alive in the first turn"
    return None


def _check_space(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    return _first_flaw(entry, options, "an observation")


def _check_rewards(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    return _first_flaw(entry, options, "a reward")


def _first_flaw(entry: GameEntry, options: Mapping[str, Any], kind: str) -> str | None:
    rollout = _rollout(entry, options, [0, 1, 2])
    rollout.play(rollout.empty_fragments(min(rollout.game.spec.turns, MOST_TURNS)))
    return next(
        (str(invalid_sample) for invalid_sample in rollout.invalid_samples if invalid_sample.what.startswith(kind)),
        None,
    )


def _same(a: list[Fragment], b: list[Fragment]) -> bool:
    return all(
        np.array_equal(getattr(x, name), getattr(y, name), equal_nan=name in ("rewards", "metrics"))
        for x, y in zip(a, b, strict=True)
        for name in ("obs", *PER_TURN, "metrics")
    )


def _check_repeats(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    if not _same(_play(entry, options, [0, 1, 2]), _play(entry, options, [0, 1, 2])):
        return (
            "the same key and actions gave two different episodes: take all chance from what reset is given, "
            "not from a generator that the game or its libraries seed themselves"
        )
    return None


def _check_seeds(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    a, b = (_play(entry, options, [0, 1, 2], seed=seed) for seed in (0, 1))
    if _same(a, b):
        return "two seeds gave the same episode: use what reset is given instead of a seed of the game's own"
    return None


def _check_apart(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    together = _play(entry, options, [0, 1, 2])
    for world in range(WORLDS):
        for whole, alone in zip(together, _play(entry, options, [world]), strict=True):
            turns = alone.turns
            pairs = [(whole.obs[: whole.before + turns, world], alone.obs[: alone.before + turns, 0])]
            pairs += [(getattr(whole, n)[:turns, world], getattr(alone, n)[:, 0]) for n in PER_TURN]
            pairs.append((whole.metrics[world], alone.metrics[0]))
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
                return f"world {world} plays differently beside others than alone"
    return None


def _check_again(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    game = make_game(entry, options, [0])
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(1))
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1))
    rollout.start(Task((0,)))
    first = rollout.play(rollout.empty_fragments(min(game.spec.turns, MOST_TURNS)))
    game.reset(np.arange(1), keys)
    rollout.start(Task((0,)))
    again = rollout.play(rollout.empty_fragments(min(game.spec.turns, MOST_TURNS)))
    return None if _same(first, again) else "an episode depends on what was played before the reset"


def _check_over(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    game = make_game(entry, options, [0])
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1))
    rollout.start(Task((0,)))
    fragments = rollout.play(rollout.empty_fragments())
    if not game.over.all():
        return f"the episode goes on after the {game.spec.turns} turns the spec allows"
    for fragment in fragments:
        last = fragment.turns - 1
        ended = fragment.terminated[last] | fragment.truncated[last]
        if not ended[fragment.alive[last]].all():
            return "the world is over, but an agent alive in its last turn is neither terminated nor truncated"
    return None


def _check_silence(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    with _heard() as said:
        _play(entry, options, [0])
    return f"it prints, e.g. {said[0][:80]!r}: say such things in metrics, or not at all" if said else None


@contextmanager
def _heard() -> Iterator[list[str]]:
    """The lines that this process writes to its standard output meanwhile, whoever writes them; filled at the end."""
    said: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 1)
        try:
            with redirect_stdout(file):
                yield said
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        said += file.read().splitlines()


def _check_alone(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    before = set(family(os.getpid()))
    game = make_game(entry, options, [0])
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1))
    rollout.start(Task((0,)))
    rollout.play(rollout.empty_fragments(1))
    started = len(set(family(os.getpid())) - before)
    return f"it started {started} processes: simulate in the process that asks" if started else None


def _check_mask(entry: GameEntry, options: Mapping[str, Any]) -> str | None:
    for fragment in _play(entry, options, [0, 1, 2]):
        if fragment.mask is not None and not fragment.mask[:-1][fragment.alive].any(axis=-1).all():
            return "an agent that must act is allowed no action"
    return None


Test = Callable[[GameEntry, Mapping[str, Any]], str | None]
CHECKS: tuple[tuple[str, str, Test], ...] = (
    ("the spec makes sense", "nothing can be built", _check_spec),
    ("episodes run, with parallel actions and without", "training cannot start", _check_runs),
    ("observations stay in their space", "the agent learns nothing from such an episode", _check_space),
    ("rewards are finite", "the agent learns nothing from such an episode", _check_rewards),
    ("the same key gives the same episode", "runs cannot be repeated, resumed or replayed", _check_repeats),
    ("another key gives another episode", "agents learn one episode by heart", _check_seeds),
    (
        "worlds do not influence each other",
        "results depend on how many worlds and workers there are",
        _check_apart,
    ),
    ("reset forgets everything", "results depend on which worker played before", _check_again),
    ("episodes end, and say how", "values are bootstrapped from the wrong place", _check_over),
    ("it prints nothing", "its lines land between those of the progress, from every worker", _check_silence),
    ("it starts no processes", "every worker starts them anew, and they may outlive it", _check_alone),
    ("somebody who must act may act", "the agent has no move", _check_mask),
)
