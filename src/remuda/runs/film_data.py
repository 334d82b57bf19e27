"""A film as data: one episode, turn by turn, in a small JSON file that the board plays and `watch` draws.

The header has `game`, `episodes` (trained for), `agents` (their names), `colours`, `turns_planned`, and what the first
scene says: `kinds` ([name, colour, shape]), `size` ([rows, columns] of cells, or pixels of a picture), `columns`,
`boxes` ([name, column]). A turn has `turn`, `scores` (return of each agent so far) and what changed in it:

| entry | what it is |
| --- | --- |
| `cells` | [number of the cell, kind], row by row |
| `agents` | [number, row, column, facing or null, the colour of its ring if it has one]; all that are in the world |
| `beams` | [row, column, colour] |
| `boxes` | [number of the box, fill, frame, note, [[mark, colour], …]] |
| `lines` | what happened, in words |
| `picture` | a PNG in base64, of games that have no scene |
| `text` | the game's own text, only for a terminal |
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from remuda.core.errors import GameError, RemudaError, RunError, first_line
from remuda.core.game import Game, GameSpec
from remuda.core.scene import Scene, agent_colour

FORMAT = "remuda-film"
MAX_BYTES = 16 << 20
"""Largest file that is read as a film."""


class PictureLimits(NamedTuple):
    """How much is kept of games that have pictures instead of scenes."""

    pictures: int = 100  # of longer episodes every second, fourth … turn is kept
    pixels: int = 320  # the longer side
    texts: bool = False  # keep the game's own text instead, if it has one


SMALL = PictureLimits()


class PlayedTurn(NamedTuple):
    """A game after a turn."""

    game: Game
    rewards: NDArray[np.float64]  # (agents of the herd,): of this turn


@dataclass
class Film:
    """One episode of world 0, recorded turn by turn."""

    header: dict[str, Any]
    turns: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """The film as JSON."""
        return json.dumps({"format": FORMAT, **self.header, "turns": self.turns}, separators=(",", ":"))


def film_of(
    played: Iterable[PlayedTurn], spec: GameSpec, facts: Mapping[str, Any], limits: PictureLimits = SMALL
) -> Film:
    """Record an episode; `facts` go into the header."""
    maker = _FilmMaker(spec, facts, limits)
    for turn in played:
        maker.add(turn)
    return maker.film


class _FilmMaker:
    def __init__(self, spec: GameSpec, facts: Mapping[str, Any], limits: PictureLimits) -> None:
        names = [
            f"{name.removesuffix('s')} {i}" if group.size > 1 else name
            for group in spec.groups
            for name in ["agent" if group.name == "all" else group.name]
            for i in range(group.size)
        ]
        self.film = Film(
            {
                "game": spec.name,
                "agents": names,
                "colours": [agent_colour(number) for number in range(spec.agents)],
                "turns_planned": spec.turns,
                **facts,
            }
        )
        self._limits = limits
        self._turn = 0
        self._scores = np.zeros(spec.agents)
        self._cells: NDArray[np.uint8] | None = None
        self._boxes: list[list[Any]] = []
        self._every = 1

    def add(self, played: PlayedTurn) -> None:
        """Add the next turn; the first is the start of the episode."""
        number, self._turn = self._turn, self._turn + 1
        self._scores += played.rewards
        turn: dict[str, Any] = {"turn": number, "scores": [round(float(score), 4) for score in self._scores]}
        with _drawing(played.game):
            scene = played.game.scene(0)
            if scene is None and self._limits.texts and type(played.game).text is not Game.text:
                self.film.turns.append({**turn, "text": played.game.text(0)})
            elif scene is None:
                self._add_picture(turn, played.game)
            else:
                self._add_scene(turn, scene)
                self.film.turns.append(turn)

    def _add_picture(self, turn: dict[str, Any], game: Game) -> None:
        if turn["turn"] % self._every and not game.over[0]:
            return
        picture = Image.fromarray(np.ascontiguousarray(game.render(0), np.uint8))
        share = self._limits.pixels / max(picture.size)
        if share < 1:
            picture = picture.resize((max(1, round(picture.width * share)), max(1, round(picture.height * share))))
        file = io.BytesIO()
        picture.quantize(64).save(file, "PNG")
        self.film.header["size"] = [picture.height, picture.width]
        turn["picture"] = base64.b64encode(file.getvalue()).decode("ascii")
        self.film.turns.append(turn)
        if len(self.film.turns) > self._limits.pictures:
            self._every *= 2
            self.film.turns = [own for own in self.film.turns if own["turn"] % self._every == 0 or own is turn]

    def _add_scene(self, turn: dict[str, Any], scene: Scene) -> None:
        header = self.film.header
        if "kinds" not in header:
            header["kinds"] = [list(kind) for kind in scene.kinds]
            header["size"] = [] if scene.cells is None else list(scene.cells.shape)
            header["columns"] = list(scene.columns)
            header["boxes"] = [[box.name, box.column] for box in scene.boxes]
            self._boxes = [[] for _ in scene.boxes]
        if scene.cells is not None:
            flat = scene.cells.reshape(-1)
            changed = np.arange(flat.size) if self._cells is None else np.flatnonzero(flat != self._cells)
            turn["cells"] = [[int(i), int(flat[i])] for i in changed]
            self._cells = flat.copy()
            turn["agents"] = [list(agent if agent.ring else agent[:-1]) for agent in scene.agents]
            if scene.beams:
                turn["beams"] = [list(beam) for beam in scene.beams]
        looks = [[box.fill, box.frame, box.note, [list(mark) for mark in box.marks]] for box in scene.boxes]
        turn["boxes"] = [[i, *look] for i, look in enumerate(looks) if look != self._boxes[i]]
        self._boxes = looks
        if scene.lines:
            turn["lines"] = list(scene.lines)


def kinds_seen(film: Film) -> list[list[str]]:
    """The legend: of a grid what is to be seen in the film besides the floor, of boxes everything."""
    kinds: list[list[str]] = film.header.get("kinds", [])
    if not film.header.get("size"):
        return kinds
    cells = {kind for turn in film.turns for _, kind in turn.get("cells", ())}
    colours = {beam[2] for turn in film.turns for beam in turn.get("beams", ())}
    colours |= {ring for turn in film.turns for _, _, _, _, *rings in turn.get("agents", ()) for ring in rings}
    return [own for number, own in enumerate(kinds) if number and (number in cells or own[1] in colours)]


def read_film(path: Path) -> Film:
    """Read a film that a run left; whatever is wrong with the file is a RunError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        content = json.loads(text) if len(text) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"film {path} cannot be read: {first_line(error)}") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise RunError(f"{path} is not a film of remuda")
    turns = content.pop("turns", None)
    if not isinstance(turns, list) or not turns:
        raise RunError(f"film {path} has no turns")
    return Film(content, turns)


@contextmanager
def _drawing(game: Game) -> Iterator[None]:
    """Tell in one sentence what a game raises while it is drawn: often a library for pictures is not installed."""
    try:
        yield
    except RemudaError:
        raise
    except Exception as error:
        raise GameError(f"{game.spec.name} cannot be drawn: {first_line(error)}") from error
