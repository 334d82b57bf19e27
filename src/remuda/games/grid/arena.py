"""Arena: a game on a map with agents that face a direction, see ahead, fire beams, and are sent away or frozen.

A game on it has a map, a kernel that resets worlds and a kernel that plays a turn. All agents act at once: `act` keeps
the actions, and `end` plays the turn.

The map has layers: the ground (a kind per cell), who stands there, and marks that beams leave for one turn. Views and
pictures show one code per cell: the agent, else the ground, else the mark.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Game, GameSpec, Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys
from remuda.core.scene import Scene, SceneAgent, SceneBeam, SceneKind, agent_colour
from remuda.games.grid.arena_state import ArenaState
from remuda.games.grid.planes import DOWN, LEFT, RIGHT, UP, WALL, draw_text
from remuda.games.grid.views import View, clear_view, write_view

SOCIAL_METRICS = ("collective_return", "equality", "sustainability", "peace")
"""Metrics of every arena game, the last of its list. They are the same for all agents, and known when an episode ends.

collective_return: the sum of all agents' returns. equality: 1 - Gini coefficient of the returns; if their sum is not
positive, 1 where all are equal, else 0. sustainability: the mean turn in which an agent is rewarded, averaged over the
agents that are. peace: how many agents are in the game, on average over the turns; the others wait to come back.
"""
AGENT_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Arena(Game):
    """Worlds of a game on a map; a subclass resets worlds and plays turns."""

    kinds: tuple[SceneKind, ...]
    """How each code below the agents' is drawn: kinds of ground and marks."""
    signs: str
    """A sign for each of them, for the terminal."""

    def __init__(
        self, spec: GameSpec, worlds: int, shape: tuple[int, int], view: View, kinds: int = 1, beams: int = 1
    ) -> None:
        super().__init__(spec, worlds)
        self.view = view
        signals, agents = self.signals[0], spec.groups[0].size
        padded = (worlds, shape[0] + 2 * view.margin, shape[1] + 2 * view.margin)
        inner = np.s_[:, view.margin : view.margin + shape[0], view.margin : view.margin + shape[1]]
        padded_ground, padded_marks = np.full(padded, WALL, np.uint8), np.zeros(padded, np.uint8)
        self.state = ArenaState(
            ground=padded_ground[inner],
            marks=padded_marks[inner],
            who=np.zeros((worlds, *shape), np.uint8),
            codes=np.zeros(padded, np.uint8),
            padded_ground=padded_ground,
            padded_marks=padded_marks,
            places=np.zeros((worlds, agents, 3), np.int64),
            starts=np.zeros((worlds, agents, 3), np.int64),
            inventory=np.zeros((worlds, agents, kinds), np.int64),
            away=np.zeros((worlds, agents), np.int64),
            frozen=np.zeros((worlds, agents), np.int64),
            cooldown=np.zeros((worlds, agents, beams), np.int64),
            actions=np.zeros((worlds, agents), np.int64),
            gain=np.zeros((worlds, agents), np.float64),
            tally=np.zeros((worlds, agents, 4), np.float64),
            keys=np.zeros(worlds, np.uint64),
            turn=np.zeros(worlds, np.int64),
            over=self.over,
            rewards=signals.rewards,
            truncated=signals.truncated,
            alive=signals.alive,
            metrics=signals.metrics,
        )

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Start an episode in these worlds."""
        self.signals[0].clear(worlds)
        self._reset(worlds, keys)

    @abstractmethod
    def _reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Put the ground and the agents of these worlds where they start."""

    def begin(self) -> None:
        """Nothing: everything happens when all have acted."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write what each agent sees; an agent that is away sees nothing."""
        _observe(self.state.codes, self.state.places, self.state.away, self.view, first, last, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Keep the actions until all agents have acted."""
        self.state.actions[:, first:last] = actions

    def scene(self, world: int) -> Scene:
        """The ground, the agents with their facings, and the cells that beams cover."""
        state = self.state
        agents = tuple(
            SceneAgent(i, int(row), int(col), SCENE_FACINGS[facing])
            for i, (row, col, facing) in enumerate(state.places[world])
            if state.away[world, i] == 0
        )
        marks = state.marks[world]
        beams = tuple(SceneBeam(int(r), int(c), self.kinds[marks[r, c]].colour) for r, c in np.argwhere(marks))
        return Scene(self.kinds, state.ground[world].copy(), agents, beams, lines=self.captions(world))

    def captions(self, world: int) -> tuple[str, ...]:
        """Lines of text below a picture: who is away or stands still, if anybody does."""
        away = self.state.away[world] > 0
        found = {"away": np.flatnonzero(away), "standing still": np.flatnonzero(self.state.frozen[world] * ~away > 0)}
        words = [f"{word}: {', '.join(map(str, who))}" for word, who in found.items() if len(who)]
        return ("; ".join(words),) if words else ()

    def render(self, world: int) -> NDArray[np.uint8]:
        """The map, 4 × 4 pixels per cell; each agent has its colour, and a dark spot where it faces."""
        return draw_arena(self.state, world, self.kinds)

    def text(self, world: int) -> str:
        """The map as text; agents are numbers."""
        margin = self.view.margin
        return draw_text(self.state.codes[world, margin:-margin, margin:-margin], self.signs + AGENT_SIGNS)


def arena_group(name: str, agents: int, view: View, actions: int, metrics: tuple[str, ...]) -> Group:
    """A group of agents that see `view`; the metrics of every arena game come after its own."""
    return Group(
        name=name,
        size=agents,
        obs_shape=(view.side, view.side, view.channels),
        obs_dtype=np.uint8,
        actions=actions,
        metrics=(*metrics, *SOCIAL_METRICS),
        low=0,
        high=1,
    )


CELL = 4
"""Pixels of a cell, to each side."""
DARK = (25, 25, 30)
SCENE_FACINGS = (DOWN, RIGHT, UP, LEFT)
_SPOTS = (
    (slice(3, 4), slice(1, 3)),
    (slice(1, 3), slice(3, 4)),
    (slice(0, 1), slice(1, 3)),
    (slice(1, 3), slice(0, 1)),
)


def draw_arena(state: ArenaState, world: int, kinds: Sequence[SceneKind]) -> NDArray[np.uint8]:
    """One world as a picture, (height * CELL, width * CELL, 3)."""
    colours = np.array([_rgb(kind.colour) for kind in kinds], np.uint8)
    ground, marks = colours[state.ground[world]], state.marks[world]
    ground[marks > 0] = ground[marks > 0] // 3 + colours[marks[marks > 0]] // 3 * 2
    picture: NDArray[np.uint8] = ground.repeat(CELL, axis=0).repeat(CELL, axis=1)
    for i, (row, col, facing) in enumerate(state.places[world]):
        if state.away[world, i] == 0:
            cell = picture[row * CELL : (row + 1) * CELL, col * CELL : (col + 1) * CELL]
            cell[:] = np.array(_rgb(agent_colour(i))) // (2 if state.frozen[world, i] else 1)
            cell[_SPOTS[facing]] = DARK
    return picture


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


@kernel(allocates=False)
def _observe(codes: Any, places: Any, away: Any, view: Any, first: int, last: int, out: Any) -> None:
    """Three arrays, not the state: Python hands over each array in 0.3 µs, which is most of a call for few worlds."""
    for w in range(out.shape[0]):
        for i in range(last - first):
            if away[w, first + i] == 0:
                write_view(codes[w], places[w], first + i, view, out[w, i])
            else:
                clear_view(out[w, i])
