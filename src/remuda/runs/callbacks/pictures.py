"""Pictures of a run: small films while it trains, the learning curve and a film of the herd when it is finished.

A film is one greedy episode of the herd as it is now, played in this process. The first is played before anything is
learned, the last when training ends; between them each evaluation leaves one, as far as films take a hundredth of the
time at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from remuda.core.errors import RemudaError, first_line
from remuda.core.game import Game
from remuda.core.timeline import span
from remuda.engines.interfaces import LostRounds
from remuda.engines.table import find_engine
from remuda.games.registry import SHIPPED
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.film import SIZE, SPEED, no_picture, pictured_game, play
from remuda.runs.film_data import Film, PlayedTurn, film_of

FILMS = "films"
"""The folder of a run with a film (JSON) for some of its versions, named by the episodes trained."""
MAX_FILMS = 24
"""Films a run keeps: the first, and later ones ever further apart."""
SHARE, CREDIT_S = 0.01, 1.0
"""Share of the time that films may take while the run trains, and seconds that they may take in advance."""
PAUSE_S = 30.0
"""Time after which there is a new film though nothing was evaluated."""
LONGEST_S = 2.0
"""Time after which a film ends though its episode goes on; the last film may take ten times as long."""


class Pictures(Callback):
    """Writes films/, curve.png and herd.gif."""

    is_internal = True

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._game: Game | None = None
        self._live = False
        self._first = False  # the film of the untrained herd is due
        self._began_at = self._last_at = 0.0
        self._spent_s = 0.0

    def start(self, training: Training) -> None:
        """Say if there will be no film; remove films of episodes that will be trained again."""
        plan, done = training.config, training.config.episodes_after(training.rounds)
        for path in films(training.path):
            if int(path.stem) > done:
                path.unlink(missing_ok=True)
        game = pictured_game(plan)
        if not game.can_be_seen():
            self._say(f"no film and no `remuda watch`: {no_picture(plan.game)}")
            return
        self._game = game
        # A game that hangs or dies must do so in a worker, where it is replaced, and not in this process.
        self._live = plan.game in SHIPPED or not find_engine(plan.engine).has_workers
        self._first = training.rounds == 0
        self._began_at = self._last_at = time.monotonic()

    def collected(self, training: Training, episodes: int, agent_steps: int) -> None:
        """Before the first update: the film of the untrained herd."""
        if self._first:
            self._first = False
            self._record_live(training, 0)

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        """A film if there has been none for long."""
        if time.monotonic() - self._last_at > PAUSE_S and self._has_time():
            self._record_live(training, int(system["episodes"]))

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        """A film of the version that was evaluated."""
        if self._has_time():
            self._record_live(training, int(rows[0]["episodes"]))

    def _has_time(self) -> bool:
        return self._spent_s < CREDIT_S + SHARE * (time.monotonic() - self._began_at)

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        """Draw, if the run is finished."""
        if result is None or not result["finished"]:
            return
        from remuda.runs.curve import draw_curve  # imports matplotlib
        from remuda.runs.film_picture import write_film

        self._say(f"curve: {draw_curve(training.run)}")
        if self._game is None:
            return
        try:
            film = self._record(training, result["episodes"], 10 * LONGEST_S)
            target = training.path / "herd.gif"
            write_film(film, target, SIZE, SPEED)
            self._say(f"film:  {target}")
        except RemudaError as error:
            self._say(f"no film: {error}")

    def _record_live(self, training: Training, episodes: int) -> None:
        if not self._live:
            return
        began = time.monotonic()
        try:
            with span("film"):
                self._record(training, episodes, LONGEST_S)
        except LostRounds:  # of learners on Ray, which the loop mends
            raise
        except Exception as error:  # whatever a game raises here must not end the training
            self._live = False
            self._say(f"no more films while training: {first_line(error)}")
        self._last_at = time.monotonic()
        self._spent_s += self._last_at - began

    def _record(self, training: Training, episodes: int, longest_s: float) -> Film:
        assert self._game is not None
        played = play(training.config, self._game, training.policies(), 0)
        film = film_of(_within(played, longest_s), self._game.spec, {"episodes": episodes})
        write_text(training.path / FILMS / f"{episodes:09d}.json", film.text())
        thin(training.path)
        return film


def _within(played: Iterator[PlayedTurn], seconds: float) -> Iterator[PlayedTurn]:
    """The turns until the time is over."""
    end = time.monotonic() + seconds
    for turn in played:
        yield turn
        if time.monotonic() > end:
            return


def films(run: Path) -> list[Path]:
    """The films of a run, oldest first."""
    return sorted(path for path in (run / FILMS).glob("[0-9]*.json") if path.stem.isascii() and path.stem.isdigit())


def thin(run: Path) -> None:
    """Remove films beyond MAX_FILMS: every second one, except the first and the newest."""
    found = films(run)
    if len(found) > MAX_FILMS:
        for path in found[1:-1:2]:
            with suppress(OSError):
                path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a file at once: a reader finds the old one or the new one. A full disk costs the film, not the run."""
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
