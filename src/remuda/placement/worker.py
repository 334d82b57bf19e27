"""What workers do: play tasks into slots, with weights of their own or asking for every action."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.collect import Flaw, Manner, Player, Players, Seat, Task
from remuda.config import Plan
from remuda.errors import GameError, WorkerError
from remuda.faults import trace_of
from remuda.fragment import Fragment, Purpose
from remuda.game import Game, GameSpec, Pace, make_game
from remuda.games import find_game
from remuda.herd import Part, assign, make_seat
from remuda.placement.slots import Layout, Room, Token
from remuda.placement.supervise import Life, Limits, Phase, Ready
from remuda.placement.weights import Board, Reader
from remuda.policy import UNVERSIONED
from remuda.rng import Keys
from remuda.telemetry.timeline import span

LONGEST_SCRIPT = 100_000
"""Characters of a rehearsal's script: Linux allows 128 KiB for a variable."""


@dataclass(frozen=True)
class Play:
    """Play this task into this slot."""

    token: Token
    task: Task


@dataclass(frozen=True)
class Played:
    """The slot is filled."""

    token: Token
    turns: int
    cpu_s: float
    waited_s: float  # for the task
    peak_bytes: int
    flaws: list[Flaw]


@dataclass(frozen=True)
class Broke:
    """The game failed over this slot; the actions so far are in it."""

    token: Token
    turn: int
    what: str
    trace: str


@dataclass(frozen=True)
class Ask:
    """Agents first … last-1 of a seat want to know what to do in this turn of this slot."""

    token: Token
    turn: int
    seat: int
    first: int
    last: int


@dataclass(frozen=True)
class Answer:
    """It is written in the slot."""


@dataclass(frozen=True)
class CollectJob:
    """Everything a collecting worker needs; descriptors instead of arrays."""

    plan: Plan
    parts: Sequence[Part]
    spec: GameSpec
    device: str
    room: Room
    boards: dict[Purpose, Board]
    sync_interval: int = 0  # turns between looks at the board; 0: only before an episode
    asking: bool = False  # ask for every action instead of having weights

    @property
    def manner(self) -> Manner:
        """How turns are played."""
        return Manner.of(self.plan)

    def run(self, connection: Connection, life: Life) -> None:
        """Play what comes."""
        Collector(self, connection, life).run()


class Collector:
    """Lives in a worker process."""

    def __init__(self, job: CollectJob, connection: Connection, life: Life) -> None:
        self.job, self.life, self.connection = job, life, connection
        self.seats = [make_seat(part, job.plan, job.spec, job.device) for part in job.parts]
        self.players = Players(find_game(job.plan.game), job.plan.options, job.manner, self._make_player)
        self.readers = {purpose: Reader(board) for purpose, board in job.boards.items()}
        self._loaded: Purpose | None = None
        self._turn = 0

    def _make_player(self, game: Game) -> Player:
        if self.job.asking:
            return AskingPlayer(game, self.seats, self.job.manner, self)
        return Player(game, self.seats, self.job.manner)

    def run(self) -> None:
        """Until the connection closes."""
        self.connection.send(Ready())
        while True:
            self.life.beat(Phase.WAITING)
            began = time.perf_counter()
            with span("wait"):
                message: Play = self.connection.recv()
            try:
                done: Played | Broke = self._play(message, time.perf_counter() - began)
            except GameError as error:
                self.players.forget(message.task)
                done = Broke(message.token, error.turn, str(error), trace_of(error))
            self.connection.send(done)

    def _play(self, order: Play, waited_s: float) -> Played:
        cpu = time.process_time()
        self.token, self.purpose = order.token, order.task.purpose
        self._turn = 0
        self.life.beat(Phase.PLAYING)
        player = self.players.begin(order.task)
        out = self.job.room.fragments(order.token.slot, order.task, self.job.manner)
        with span("collect"):
            fragments = player.play(out, self._before_turn)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Played(
            order.token,
            fragments[0].turns,
            time.process_time() - cpu,
            waited_s,
            usage.ru_maxrss * 1024,
            player.flaws,
        )

    def _before_turn(self) -> None:
        """Say that we live; look for newer weights if it is time."""
        self.life.beat(Phase.PLAYING, self._turn)
        if not self.job.asking and (
            self._turn == 0 or (self.job.sync_interval and self._turn % self.job.sync_interval == 0)
        ):
            self._look()
        self._turn += 1

    def _look(self) -> None:
        purpose = Purpose.TRAIN if self.purpose is Purpose.TRAIN else Purpose.EVALUATE
        reader = self.readers[purpose]
        moved = reader.refresh()
        for part in reader.rows if purpose is not self._loaded else moved:
            self.seats[part].policy.load(reader.rows[part], reader.versions[part])
        self._loaded = purpose
        versions = [int(own.min()) for own in reader.versions.values()]
        self.life.pulse.note_version(self.life.index, min(versions, default=UNVERSIONED))


class StandIn(Game):
    """Has the shape of another game, and nothing happens in it."""

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Everybody alive."""
        for signals in self.signals:
            signals.clear(worlds)
        self.over[worlds] = False

    def begin(self) -> None:
        """Nothing."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Nothing to see."""
        out[:] = 0

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Everything is allowed."""
        out[:] = True


def script(plan: Plan, spec: GameSpec) -> str:
    """What a rehearsal needs to know, as JSON; nothing where it is too long for an environment variable."""
    groups = [{**asdict(group), "obs_dtype": np.dtype(group.obs_dtype).str} for group in spec.groups]
    facts = {"plan": plan.model_dump(mode="json"), "groups": groups, "turns": spec.turns, "path": sys.path}
    text = json.dumps(facts)
    return text if len(text) < LONGEST_SCRIPT else ""


def rehearse(plan: Plan, spec: GameSpec) -> None:
    """Play a turn into a slot, so that whatever is compiled or loaded on first use is there.

    Of simulators that play one world at a time only the shape is used: who knows what they do when they
    are forked.
    """
    entry = find_game(plan.game)
    together = entry.pace_of(plan.options) is Pace.TOGETHER
    game = make_game(entry, plan.options, [0, 0]) if together else StandIn(spec, 2)
    seats = [make_seat(part, plan, spec, "cpu") for part in assign(plan, spec)]
    for seat in seats:
        seat.policy.load(seat.policy.rows, UNVERSIONED)
    manner, task = Manner.of(plan), Task((0, 1))
    player = Player(game, seats, manner)
    for worlds in (2, 3):  # a slot that is full and one that is not lie differently in memory
        player.start(task)
        player.play(Room(Layout.of(spec, seats, worlds), 1).fragments(0, task, manner, turns=1))


class AskingPlayer(Player):
    """Has its actions chosen at the other end of the pipe: they and all that belongs to them appear in the slot."""

    def __init__(self, game: Game, seats: Sequence[Seat], manner: Manner, collector: Collector) -> None:
        super().__init__(game, seats, manner)
        self.collector = collector

    def ask(self, seat: Seat, fragment: Fragment, turn: int, keys: Keys, first: int, last: int) -> None:
        """Put the keys where they are read, ask, and wait for the answer."""
        worker = self.collector
        if not worker.job.parts[self.seats.index(seat)].learns:
            super().ask(seat, fragment, turn, keys, first, last)
            return
        room, token = worker.job.room, worker.token
        room.keys(token.slot, seat.group, len(fragment.origin.worlds))[:] = keys
        worker.life.beat(Phase.ASKING, turn)
        worker.connection.send(Ask(token, turn, self.seats.index(seat), first, last))
        with span("wait"):
            if not worker.connection.poll(limit_s := Limits.of(worker.job.plan).answer):
                raise WorkerError(f"no answer to a question within {limit_s:.0f} s")
            worker.connection.recv()
        worker.life.beat(Phase.PLAYING, turn)
