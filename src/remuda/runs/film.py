"""The film of a run: plays an episode of a trained herd and has it drawn.

`film_picture.py` draws GIF, MP4 and WebM, `film_terminal.py` the terminal; the board draws with its `static/film.js`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from remuda.adapters.inbound.factories import options_with_pictures
from remuda.core.errors import ConfigError
from remuda.core.fragment import Purpose
from remuda.core.game import Game, GameEntry, make_game
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.herd import bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.directory import RunDirectory
from remuda.runs.display import show_picture
from remuda.runs.film_data import SMALL, Film, PictureLimits, PlayedTurn, film_of
from remuda.runs.frozen import load_frozen

SIZE = 480
SPEED = 8.0
ALL_PICTURES = 5000


@overload
def watch(
    run: RunDirectory | Path | str,
    out: Path | str | None = None,
    episode: int = 0,
    checkpoint: str | None = None,
    *,
    size: int = SIZE,
    speed: float = SPEED,
    terminal: Literal[False] = False,
    trust: bool = False,
) -> Path: ...


@overload
def watch(
    run: RunDirectory | Path | str,
    *,
    episode: int = 0,
    checkpoint: str | None = None,
    speed: float = SPEED,
    terminal: Literal[True],
    trust: bool = False,
) -> None: ...


def watch(
    run: RunDirectory | Path | str,
    out: Path | str | None = None,
    episode: int = 0,
    checkpoint: str | None = None,
    *,
    size: int = SIZE,
    speed: float = SPEED,
    terminal: bool = False,
    trust: bool = False,
) -> Path | None:
    """Write an evaluation episode of a trained herd as a film and return its path; a notebook shows it.

    `out` is the file to write, .gif, .mp4 or .webm; by default watch.gif in the run directory (of a zoo agent: here).
    `checkpoint` is the name of one, or "best"; the default is the newest. The field is about `size` pixels large;
    `speed` is in turns per second. With `terminal` the episode is played in this terminal instead.
    `trust` follows names of code in a run that somebody else made.
    """
    opened = RunDirectory.of(run, trust=trust)
    target = (Path() if opened.shipped else opened.path) / "watch.gif" if out is None else Path(out)
    limits = PictureLimits(ALL_PICTURES, 160 if terminal else size, texts=terminal)
    trained = opened.checkpoint(checkpoint, only="policy").name
    facts = {"episodes": int(trained)} if trained.isdigit() else {}
    film = film_of_run(opened, trained_bindings(opened, checkpoint), episode, limits, facts)
    if terminal:
        from remuda.runs.film_terminal import play_in_terminal

        play_in_terminal(film, speed)
        return None
    from remuda.runs.film_picture import write_film

    write_film(film, target, size, speed)
    if target.suffix.lower() == ".gif":
        show_picture(target)
    return target


def film_of_run(
    run: RunDirectory,
    bindings: Sequence[PolicyBinding],
    episode: int,
    limits: PictureLimits = SMALL,
    facts: Mapping[str, Any] | None = None,
) -> Film:
    """The film of one evaluation episode; refused where the game has nothing to show."""
    game = pictured_game(run.plan, episode % run.plan.worlds)
    if not game.can_be_seen() and not (limits.texts and type(game).text is not Game.text):
        raise ConfigError(no_picture(run.plan.game))
    return film_of(play(run.plan, game, bindings, episode), game.spec, facts or {}, limits)


def no_picture(game: str) -> str:
    """Why a game cannot be watched, and what would help."""
    return (
        f"{game} has nothing to show: give the game a scene() or render() method, "
        "or its environment a render_mode 'rgb_array'"
    )


def pictured_game(plan: Plan, world: int = 0) -> Game:
    """One world of the plan's game, made so that it draws pictures if it can."""
    entry = find_game(plan.game)
    return make_pictured(entry, plan.options, world)


def make_pictured(entry: GameEntry, options: Mapping[str, Any], world: int) -> Game:
    """One world of a game; a foreign environment is made with render_mode=rgb_array where it takes that."""
    wanted = options_with_pictures(entry, options)
    if wanted != options:
        _open_no_window()
        try:
            game = make_game(entry, wanted, [world])
            if game.can_be_seen():
                return game
        except Exception:  # a foreign environment: without pictures it may still be made
            pass
    return make_game(entry, options, [world])


def _open_no_window() -> None:
    """Keep SDL, with which pygame draws, from looking for a screen where there is none: it prints an error."""
    if sys.platform == "linux" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def trained_bindings(run: RunDirectory, name: str | None = None) -> list[PolicyBinding]:
    """Policies for every agent of a run: those that learned have the weights of a checkpoint."""
    bindings = []
    for part in load_frozen(run.parts, run.spec, run.trust):
        group = run.spec.groups[part.group]
        if part.learns:
            numbers = range(part.herd_first, part.herd_first + part.agents)
            policy = run.policy(numbers, group, "cpu", name)
            bindings.append(PolicyBinding(part.group, part.first, part.last, policy))
        else:
            bindings.append(bind_policy(part, run.plan, run.spec, "cpu"))
    return bindings


def play(
    plan: Plan, game: Game, bindings: Sequence[PolicyBinding], episode: int, exploration: float = 0.0
) -> Iterator[PlayedTurn]:
    """Play one evaluation episode in the one world of `game`; yields its start, and the game after each turn."""
    rollout = Rollout(game, bindings, RolloutConfig.of(plan))
    rollout.start(Task((episode,), Purpose.EVALUATE, exploration))
    yield PlayedTurn(game, np.zeros(game.spec.agents))
    while not game.over.all():
        fragments = rollout.play(rollout.empty_fragments(turns=1))
        yield PlayedTurn(game, np.concatenate([fragment.rewards.sum(axis=(0, 1)) for fragment in fragments]))
