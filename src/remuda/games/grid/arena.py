"""Arena: a game on a map with agents that face a direction, see ahead, fire beams, and are sent away or frozen.

A game on it has a map, a kernel that resets worlds and a kernel that plays a turn. All agents act at once: `act` keeps
the actions, and `end` plays the turn.

The map has layers: the ground (a kind per cell), who stands there, and marks that beams leave for one turn. Views and
pictures show one code per cell: the agent, else the ground, else the mark.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Game, GameSpec, Group
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below, fold
from remuda.core.scene import Scene, SceneAgent, SceneBeam, SceneKind, agent_colour
from remuda.games.grid.facing import STAY, move_at_once, move_in_order, shuffle
from remuda.games.grid.planes import DOWN, LEFT, RIGHT, UP, WALL, draw_text
from remuda.games.grid.views import View, write_view

SOCIAL_METRICS = ("collective_return", "equality", "sustainability", "peace")
"""Metrics of every arena game, the last of its list. They are the same for all agents, and known when an episode ends.

collective_return: the sum of all agents' returns. equality: 1 - Gini coefficient of the returns; if their sum is not
positive, 1 where all are equal, else 0. sustainability: the mean turn in which an agent is rewarded, averaged over the
agents that are. peace: how many agents are in the game, on average over the turns; the others wait to come back.
"""
RETURN, REWARD_TIMES, REWARD_TURNS, TURNS_AWAY = 0, 1, 2, 3
AGENT_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ArenaState(NamedTuple):
    """The state of all worlds."""

    ground: NDArray[np.uint8]  # (worlds, height, width)
    marks: NDArray[np.uint8]  # (worlds, height, width): left by beams in the last turn; 0: none
    who: NDArray[np.uint8]  # (worlds, height, width): 1 + the agent that stands there; 0: nobody
    codes: NDArray[np.uint8]  # (worlds, height + 2 margins, width + 2 margins): what views show
    places: NDArray[np.int64]  # (worlds, agents, row/col/facing)
    starts: NDArray[np.int64]  # (worlds, agents, row/col/facing): where each stands when the next turn begins
    inventory: NDArray[np.int64]  # (worlds, agents, kinds)
    away: NDArray[np.int64]  # (worlds, agents): turns until it is back on the map
    frozen: NDArray[np.int64]  # (worlds, agents): turns until it may act again
    cooldown: NDArray[np.int64]  # (worlds, agents, beams): turns until it may fire again
    actions: NDArray[np.int64]  # (worlds, agents): of this turn
    gain: NDArray[np.float64]  # (worlds, agents): the game's own reward of this turn
    tally: NDArray[np.float64]  # (worlds, agents, 4): RETURN, REWARD_TIMES, REWARD_TURNS, TURNS_AWAY
    keys: Keys  # (worlds,)
    turn: NDArray[np.int64]  # (worlds,)
    over: NDArray[np.bool_]  # (worlds,)
    rewards: NDArray[np.float32]  # (worlds, agents)
    truncated: NDArray[np.bool_]  # (worlds, agents)
    alive: NDArray[np.bool_]  # (worlds, agents)
    metrics: NDArray[np.float32]  # (worlds, agents, metrics)


class Scratch(NamedTuple):
    """Memory that a kernel uses while it plays a turn of one world, and the random draws of that turn."""

    wanted: NDArray[np.int64]  # (agents, row/col)
    moving: NDArray[np.bool_]  # (2, agents)
    reach: NDArray[np.int64]  # (cells of a beam, row/col/reached)
    hit: NDArray[np.bool_]  # (agents,): by a beam in this turn
    absent: NDArray[np.bool_]  # (agents,): not on the map
    priority: NDArray[np.int64]  # (agents,): a random order; the highest of several that want one cell gets it
    order: NDArray[np.int64]  # (spawn cells,): a random order
    facing: NDArray[np.int64]  # (agents,): of agents that come back
    grow: NDArray[np.float32]  # (2, cells): uniform, for whatever grows there
    picked: NDArray[np.int64]  # (row/col,): a cell
    luck: NDArray[np.float64]  # (1,): uniform


class RecordedDraws(NamedTuple):
    """Recorded random draws of one turn in each world, in place of those that a world makes itself."""

    priority: NDArray[np.int64]  # (worlds, agents)
    order: NDArray[np.int64]  # (worlds, spawn cells)
    facing: NDArray[np.int64]  # (worlds, agents)
    grow: NDArray[np.float32]  # (worlds, 2, cells)
    picked: NDArray[np.int64]  # (worlds, row/col)
    luck: NDArray[np.float64]  # (worlds,)


class Timing(NamedTuple):
    """How a turn ends."""

    turns: int
    scale: float  # rewards are multiplied by it
    pays_last: bool  # whether the last turn is rewarded


def make_scratch(agents: int, spawns: int, beam_cells: int, cells: int) -> Scratch:
    """Scratch memory for one world."""
    return Scratch(
        wanted=np.zeros((agents, 2), np.int64),
        moving=np.zeros((2, agents), np.bool_),
        reach=np.zeros((beam_cells, 3), np.int64),
        hit=np.zeros(agents, np.bool_),
        absent=np.zeros(agents, np.bool_),
        priority=np.zeros(agents, np.int64),
        order=np.zeros(spawns, np.int64),
        facing=np.zeros(agents, np.int64),
        grow=np.zeros((2, cells), np.float32),
        picked=np.zeros(2, np.int64),
        luck=np.zeros(1, np.float64),
    )


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
        self.state = ArenaState(
            ground=np.zeros((worlds, *shape), np.uint8),
            marks=np.zeros((worlds, *shape), np.uint8),
            who=np.zeros((worlds, *shape), np.uint8),
            codes=np.full(padded, WALL, np.uint8),
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
        _observe(self.state, self.view, first, last, out)

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
        """Lines of text below a picture: the turn, and each agent's return."""
        returns = " ".join(f"{value:g}" for value in self.state.tally[world, :, RETURN])
        return (f"turn {self.state.turn[world]}, returns {returns}",)

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


@kernel
def _observe(state: Any, view: Any, first: int, last: int, out: Any) -> None:
    out[:] = 0
    for w in range(out.shape[0]):
        for i in range(last - first):
            if state.away[w, first + i] == 0:
                write_view(state.codes[w], state.places[w], first + i, view, out[w, i])


@kernel
def start_world(state: Any, w: int, key: Any, ground: Any) -> None:
    """Forget everything of a world, and begin with this ground."""
    state.ground[w] = ground
    state.marks[w] = 0
    state.who[w] = 0
    state.inventory[w] = 0
    state.away[w] = 0
    state.frozen[w] = 0
    state.cooldown[w] = 0
    state.gain[w] = 0
    state.tally[w] = 0
    state.keys[w] = key
    state.turn[w] = 0
    state.over[w] = False


@kernel
def place_agents(state: Any, w: int, spawns: Any, first: int, order: Any, key: Any, facings: int) -> None:
    """Put agents from number `first` on spawn cells, in `order` (cells,); each faces one of so many directions."""
    for i in range(first, state.places.shape[1]):
        cell = spawns[order[i - first]]
        state.places[w, i, 0] = cell[0]
        state.places[w, i, 1] = cell[1]
        state.places[w, i, 2] = below(key, i, facings)
    state.starts[w] = state.places[w]


@kernel
def lift_agents(state: Any, w: int) -> None:
    """Take the agents off the layer that says who stands where."""
    for i in range(state.places.shape[1]):
        state.who[w, state.places[w, i, 0], state.places[w, i, 1]] = 0


@kernel
def put_agents(state: Any, w: int) -> None:
    """Write where the agents stand, all but those that are away."""
    for i in range(state.places.shape[1]):
        if state.away[w, i] == 0:
            state.who[w, state.places[w, i, 0], state.places[w, i, 1]] = 1 + i


@kernel
def compose(state: Any, w: int, first_agent: int, margin: int) -> None:
    """Write the code of every cell: the agent, else the ground, else the mark."""
    ground, marks = state.ground[w], state.marks[w]
    height, width = ground.shape
    for r in range(height):
        row = state.codes[w, r + margin]
        for c in range(width):
            code = ground[r, c]
            row[c + margin] = code if code else marks[r, c]
    for i in range(state.places.shape[1]):
        if state.away[w, i] == 0:
            r, c = state.places[w, i, 0], state.places[w, i, 1]
            state.codes[w, r + margin, c + margin] = first_agent + i


@kernel
def open_turn(state: Any, w: int, scratch: Any) -> None:
    """Begin a turn: nobody has gained anything or was hit yet, and agents that cannot act stay where they are."""
    for i in range(len(scratch.absent)):
        state.gain[w, i] = 0.0
        scratch.hit[i] = False
        scratch.absent[i] = state.away[w, i] > 0
        if state.away[w, i] > 0 or state.frozen[w, i] > 0:
            state.actions[w, i] = STAY


@kernel
def go_to_starts(state: Any, w: int) -> None:
    """Move agents that were hit in the last turn to their new places."""
    lift_agents(state, w)
    state.places[w] = state.starts[w]
    put_agents(state, w)


@kernel
def move_agents(state: Any, w: int, in_order: bool, scratch: Any) -> None:
    """Move the agents to the cells that they want, all at once or in a random order."""
    lift_agents(state, w)
    if in_order:
        move_in_order(state.places[w], scratch.wanted, scratch.absent, scratch.priority)
    else:
        move_at_once(state.places[w], scratch.wanted, scratch.absent, scratch.priority, scratch.moving)
    put_agents(state, w)


@kernel
def load_draws(draws: Any, w: int, scratch: Any) -> None:
    """Use recorded draws in this turn."""
    scratch.priority[:] = draws.priority[w]
    scratch.order[:] = draws.order[w]
    scratch.facing[:] = draws.facing[w]
    scratch.grow[:] = draws.grow[w]
    scratch.picked[:] = draws.picked[w]
    scratch.luck[0] = draws.luck[w]


@kernel
def draw_moves(key: Any, scratch: Any) -> None:
    """Draw who wins contests for a cell. The spawn cells are drawn when they are needed."""
    shuffle(fold(key, 1), scratch.priority)
    scratch.order[0] = -1


@kernel
def draw_spawns(key: Any, facings: int, scratch: Any) -> None:
    """Draw in which order spawn cells are taken, and where agents face that come back, if that is not known yet."""
    if scratch.order[0] >= 0:
        return
    shuffle(fold(key, 2), scratch.order)
    facing_key = fold(key, 3)
    for i in range(len(scratch.facing)):
        scratch.facing[i] = below(facing_key, i, facings)


@kernel
def respawn(state: Any, w: int, spawns: Any, scratch: Any) -> None:
    """Give each agent that was hit a spawn cell on which nobody stands who was not hit; it starts there next turn."""
    state.starts[w] = state.places[w]
    rank = 0
    for i in range(len(scratch.hit)):
        if not scratch.hit[i]:
            continue
        while _is_taken(state, w, spawns[scratch.order[rank]], scratch.hit):
            rank += 1
        cell = spawns[scratch.order[rank]]
        state.starts[w, i, 0] = cell[0]
        state.starts[w, i, 1] = cell[1]
        state.starts[w, i, 2] = scratch.facing[i]
        rank += 1


@kernel
def _is_taken(state: Any, w: int, cell: Any, hit: Any) -> bool:
    standing = state.who[w, cell[0], cell[1]]
    return standing > 0 and not hit[standing - 1]


@kernel
def send_away(state: Any, w: int, i: int, turns: int) -> None:
    """Take an agent off the map for so many turns."""
    state.who[w, state.places[w, i, 0], state.places[w, i, 1]] = 0
    state.away[w, i] = turns
    state.alive[w, i] = False


@kernel
def bring_back(state: Any, w: int, spawns: Any, scratch: Any) -> None:
    """Count the turns of agents that are away; the last one over, they stand on a free spawn cell and act again."""
    rank = 0
    for i in range(len(scratch.hit)):
        if state.away[w, i] == 0:
            continue
        state.away[w, i] -= 1
        if state.away[w, i] > 0:
            continue
        while state.who[w, spawns[scratch.order[rank], 0], spawns[scratch.order[rank], 1]] > 0:
            rank += 1
        cell = spawns[scratch.order[rank]]
        state.places[w, i, 0] = cell[0]
        state.places[w, i, 1] = cell[1]
        state.places[w, i, 2] = scratch.facing[i]
        state.who[w, cell[0], cell[1]] = 1 + i
        state.alive[w, i] = state.frozen[w, i] == 0


@kernel
def count_down(state: Any, w: int) -> None:
    """One turn less to wait for beams, and for frozen agents."""
    for i in range(state.places.shape[1]):
        for beam in range(state.cooldown.shape[2]):
            state.cooldown[w, i, beam] = max(0, state.cooldown[w, i, beam] - 1)
        if state.frozen[w, i] > 0:
            state.frozen[w, i] -= 1
            state.alive[w, i] = state.frozen[w, i] == 0 and state.away[w, i] == 0


@kernel
def finish_turn(state: Any, w: int, timing: Any) -> None:
    """Pay the rewards of the turn, count it, and truncate every agent after the last one."""
    last = state.turn[w] + 1 == timing.turns
    for i in range(state.places.shape[1]):
        gain = state.gain[w, i]
        if timing.pays_last or not last:
            state.rewards[w, i] += gain * timing.scale
        tally = state.tally[w, i]
        tally[RETURN] += gain
        if gain > 0:
            tally[REWARD_TIMES] += state.turn[w]
            tally[REWARD_TURNS] += 1
        if state.away[w, i] > 0 or state.frozen[w, i] > 0:
            tally[TURNS_AWAY] += 1
    state.turn[w] += 1
    if last:
        state.over[w] = True
        state.truncated[w, :] = True
        _report(state.tally[w], state.turn[w], state.metrics[w])


@kernel
def _report(tally: Any, turns: int, metrics: Any) -> None:
    """Write SOCIAL_METRICS into the last columns."""
    agents, columns = metrics.shape
    total, differences, times, rewarded, away = 0.0, 0.0, 0.0, 0, 0.0
    for i in range(agents):
        total += tally[i, RETURN]
        away += tally[i, TURNS_AWAY]
        if tally[i, REWARD_TURNS] > 0:
            times += tally[i, REWARD_TIMES] / tally[i, REWARD_TURNS]
            rewarded += 1
        for j in range(agents):
            differences += abs(tally[i, RETURN] - tally[j, RETURN])
    equality = 1.0 if differences == 0 else 0.0
    if total > 0:
        equality = 1.0 - differences / (2 * agents * total)
    metrics[:, columns - 4] = total
    metrics[:, columns - 3] = equality
    metrics[:, columns - 2] = times / max(rewarded, 1)
    metrics[:, columns - 1] = agents - away / turns
