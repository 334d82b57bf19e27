"""Data that tell where they come from, and the workers that write and check them, for `test_torn.py`.

A stamp is one filling of one slot: a worker and its serial number. Every element of every array of the
slot is a function of the stamp and of its place (array, turn, world, agent, …), so that whoever reads
the slot can say of each element whether it belongs there. A row of weights has its version in every column.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.game import GameSpec, Group
from remuda.core.policy import PolicyBinding, RandomPolicy
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.transport.heartbeat import Phase, WorkerStatus
from remuda.transport.slots import SlotArray, SlotLayout, SlotOwners, SlotToken
from remuda.transport.weights import WeightReader, WeightStore
from remuda.transport.worker_process import Ready

TURNS, WORLDS = 64, 64
SHAPES = {0: (3, 80_000), 1: (2, 20_000)}
"""Agents and columns of the rows of two parts of a herd."""
SLICES = ((0, 0, 2), (1, 0, 2), (0, 2, 3))
"""Part, first and last agent of what is published at once."""

SPEC = GameSpec(
    "stamped",
    (
        Group("walkers", 2, (2,), np.int32, 3, metrics=("steps", "falls")),
        Group("bound", 1, (3,), np.uint8, 2, masked=True),
    ),
    TURNS,
)
TASK, MANNER = Task(tuple(range(WORLDS))), RolloutConfig(0, WORLDS)
BITS = {"b": 1, "u1": 8, "i4": 31, "f4": 24, "i8": 63, "u8": 64}
"""How many bits every value of a type takes over exactly."""


class Nobody(RandomPolicy):
    """Has a seat, so that a fragment has frames before its first turn and an extra."""

    frames = 3
    extras = ("value",)


def layout() -> SlotLayout:
    """How a slot of stamped data is divided."""
    return SlotLayout.of(
        SPEC, [PolicyBinding(g, 0, own.size, Nobody(own, own.size)) for g, own in enumerate(SPEC.groups)], WORLDS
    )


def named_arrays(fragment: Fragment) -> dict[str, NDArray[Any]]:
    """Every array of a fragment, by name."""
    names = ("obs", "actions", "rewards", "terminated", "truncated", "alive", "ages", "versions", "metrics", "mask")
    arrays = {name: getattr(fragment, name) for name in names if getattr(fragment, name) is not None}
    return arrays | {f"extras.{name}": extra for name, extra in fragment.extras.items()}


def slot_arrays(
    slot_array: SlotArray, slot: int, task: Task = TASK, config: RolloutConfig = MANNER, turns: int | None = None
) -> dict[str, NDArray[Any]]:
    """Every array of a slot, by group and name."""
    arrays = {}
    for g, fragment in enumerate(slot_array.fragments(slot, task, config, turns)):
        own = named_arrays(fragment) | {"keys": slot_array.keys(slot, g, len(task.episodes))}
        arrays.update({f"{g}/{name}": array for name, array in own.items()})
    return arrays


def stamp_of(worker: int, serial: int) -> int:
    """The stamp of a worker's filling."""
    return worker << 32 | serial


class Pattern:
    """What a slot must look like. The versions are the stamp itself, so that a reader can find it."""

    def __init__(self, slot_array: SlotArray) -> None:
        self.slots = [slot_arrays(slot_array, slot) for slot in range(slot_array.count)]
        self._places = {name: self._number_places(name, array.shape) for name, array in self.slots[0].items()}
        self._wide = {name: np.empty_like(places) for name, places in self._places.items()}
        self._narrow = {name: np.empty_like(array) for name, array in self.slots[0].items()}

    @staticmethod
    def _number_places(name: str, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """A number for every place of an array, in every process the same."""
        return np.random.default_rng(zlib.crc32(name.encode())).integers(0, 1 << 64, shape, np.uint64)

    def values(self, name: str, stamp: int) -> NDArray[Any]:
        """The whole array as it must be; good until the next call."""
        narrow, wide = self._narrow[name], self._wide[name]
        if name.endswith("/versions"):
            narrow[...] = stamp
            return narrow
        np.add(self._places[name], np.uint64(stamp * 0x9E3779B97F4A7C15 % (1 << 64)), out=wide)
        kind = narrow.dtype.str[1:] if narrow.dtype != np.bool_ else "b"
        np.right_shift(wide, np.uint64(64 - BITS[kind]), out=wide)
        narrow[...] = wide
        return narrow

    def fill(self, slot: int, stamp: int, halt: Callable[[], None] = lambda: None) -> None:
        """Write a slot, with a halt in the middle."""
        for name, array in self._halting(slot, halt):
            array[...] = self.values(name, stamp)

    def check(self, slot: int, halt: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """The stamp a slot bears, and how many elements are not of it; with a halt in the middle."""
        stamp = int(self.slots[slot]["0/versions"][0, 0])
        wrong = sum(
            int(np.count_nonzero(array != self.values(name, stamp))) for name, array in self._halting(slot, halt)
        )
        return stamp, wrong

    def _halting(self, slot: int, halt: Callable[[], None]) -> Iterator[tuple[str, NDArray[Any]]]:
        for index, item in enumerate(self.slots[slot].items()):
            if index == len(self.slots[slot]) // 2:
                halt()
            yield item


@dataclass(frozen=True)
class Fill:
    """Write this stamp into this slot."""

    token: SlotToken
    stamp: int
    halt: bool = False


@dataclass(frozen=True)
class Filled:
    """It is written."""

    token: SlotToken
    stamp: int


@dataclass(frozen=True)
class Check:
    """Read this slot."""

    token: SlotToken
    halt: bool = False


@dataclass(frozen=True)
class Checked:
    """The stamp that was found, and how many elements were not of it."""

    token: SlotToken
    stamp: int
    wrong: int


@dataclass(frozen=True)
class Halfway:
    """I am in the middle of it and wait."""


@dataclass(frozen=True)
class Go:
    """Go on; or: begin, and do not stop before you are told."""


@dataclass(frozen=True)
class Enough:
    """Stop, and say how far you came."""


@dataclass(frozen=True)
class Publish:
    """Publish rows of this version, and halt in the middle of the first slice if told to."""

    version: int
    halt: bool = False


@dataclass(frozen=True)
class Published:
    """The last version that is on the board."""

    version: int


@dataclass(frozen=True)
class Look:
    """Refresh once and say what you hold."""


@dataclass(frozen=True)
class Held:
    """What a reader holds, and what it ever found wrong."""

    versions: tuple[int, ...]  # row by row, over all parts
    mixed: int  # rows found to be of several versions, or of another than they claim
    back: int  # rows found to be older than before
    moves: int  # times a row moved


def meet(connection: Connection) -> None:
    """Say that we are halfway and wait until we may go on."""
    connection.send(Halfway())
    connection.recv()


def told_to_end(connection: Connection) -> bool:
    """Whether we have done enough."""
    return connection.poll(0) and isinstance(connection.recv(), Enough)


@dataclass(frozen=True)
class FillJob:
    """A collector: fills what it is given."""

    slot_array: SlotArray

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        pattern, before = Pattern(self.slot_array), None
        connection.send(Ready())
        while True:
            order: Fill = connection.recv()
            for slot in self.targets(order.token, before):
                pattern.fill(slot, order.stamp, (lambda: meet(connection)) if order.halt else (lambda: None))
            connection.send(Filled(order.token, order.stamp))
            before = order.token

    def targets(self, token: SlotToken, before: SlotToken | None) -> list[int]:
        """The slots it writes into: the one it has a token for."""
        return [token.slot]


@dataclass(frozen=True)
class ClingingFillJob(FillJob):
    """A broken collector: goes on writing into the slot whose token it has handed over."""

    def targets(self, token: SlotToken, before: SlotToken | None) -> list[int]:
        """Also the slot it had before."""
        return [token.slot] if before is None else [before.slot, token.slot]


class OneSlotForAll(SlotOwners):
    """A broken table: the same slot for everybody, and nobody is asked whose it is."""

    def lend(self, owner: str) -> SlotToken:
        """Always the first."""
        return SlotToken(0, 1)

    def move(self, token: SlotToken, owner: str, to: str) -> None:
        """Whatever you say."""

    def give_back(self, token: SlotToken, owner: str) -> None:
        """Whatever you say."""


@dataclass(frozen=True)
class CheckJob:
    """A trainer: reads what it is given."""

    slot_array: SlotArray

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        pattern = Pattern(self.slot_array)
        connection.send(Ready())
        while True:
            order: Check = connection.recv()
            stamp, wrong = pattern.check(order.token.slot, (lambda: meet(connection)) if order.halt else (lambda: None))
            connection.send(Checked(order.token, stamp, wrong))


class InHalves:
    """Rows that are written, and copied one by one, in two halves of their columns with a halt between them."""

    def __init__(self, rows: NDArray[np.float32], halt: Callable[[], None]) -> None:
        self.rows, self.halt = rows, halt

    def __setitem__(self, agents: slice, values: NDArray[np.float32]) -> None:
        half = self.rows.shape[1] // 2
        self.rows[agents, :half] = values[:, :half]
        self.halt()
        self.rows[agents, half:] = values[:, half:]

    def __getitem__(self, agent: int) -> InHalves:
        return InHalves(self.rows[agent : agent + 1], self.halt)

    def copy(self) -> NDArray[np.float32]:
        """Of a single row."""
        half = self.rows.shape[1] // 2
        first = self.rows[0, :half].copy()
        self.halt()
        return np.concatenate([first, self.rows[0, half:]])


class HaltingBoard(WeightStore):
    """The real board, but whoever writes or copies a row can be halted in the middle of it."""

    halt: Callable[[], None] | None = None

    def _view(self, part: int, name: str) -> Any:
        view = super()._view(part, name)
        return InHalves(view, self.halt) if name == "rows" and self.halt else view


class UnmarkedBoard(HaltingBoard):
    """A broken board: the sequence number is not odd while a row is written."""

    def publish(self, part: int, rows: NDArray[np.float32], version: int, first: int = 0) -> None:
        """Write first, count afterwards."""
        own = slice(first, first + len(rows))
        self._view(part, "rows")[own] = rows
        self._view(part, "version")[own] = version
        self._view(part, "sequence")[own] += 2


@dataclass(frozen=True)
class PublishJob:
    """A writer: publishes version after version, slice by slice."""

    store: WeightStore

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        version = 0
        connection.send(Ready())
        while True:
            order = connection.recv()
            if isinstance(order, Publish):
                version = order.version
                self._publish(version, (lambda: meet(connection)) if order.halt else None)
            while isinstance(order, Go) and not told_to_end(connection):
                version += 1
                self._publish(version, None)
            connection.send(Published(version))

    def _publish(self, version: int, halt: Callable[[], None] | None) -> None:
        for part, first, last in SLICES:
            if isinstance(self.store, HaltingBoard):
                self.store.halt = halt
            rows = np.broadcast_to(np.float32(version), (last - first, SHAPES[part][1]))  # costs nothing to make
            self.store.publish(part, rows, version, first)
            halt = None


@dataclass
class Watch:
    """A reader, and the check of all it holds after every refresh."""

    reader: WeightReader
    mixed: int = 0
    back: int = 0
    moves: int = 0

    def look(self, say: Callable[[Phase], None] = lambda phase: None) -> None:
        """Refresh; every row must be of the one version it claims, and that never goes back."""
        before = {part: own.copy() for part, own in self.reader.versions.items()}
        say(Phase.TAKING)
        moved = self.reader.refresh()
        say(Phase.WAITING)
        for part in moved:
            versions = self.reader.versions[part]
            self.mixed += int((self.reader.rows[part] != versions[:, None]).any(axis=1).sum())
            self.back += int((versions < before[part]).sum())
            self.moves += int((versions != before[part]).sum())

    def held(self) -> Held:
        """What there is to say."""
        versions = tuple(int(version) for own in self.reader.versions.values() for version in own)
        return Held(versions, self.mixed, self.back, self.moves)


@dataclass(frozen=True)
class ReadJob:
    """A reader: looks once, or again and again."""

    store: WeightStore

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        watch = Watch(WeightReader(self.store))
        connection.send(Ready())
        while True:
            order = connection.recv()
            while isinstance(order, Go) and not told_to_end(connection):
                watch.look(status.beat)
            watch.look()
            connection.send(watch.held())
