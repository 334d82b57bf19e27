"""Data that show where they come from, and the workers that write and check them, for `test_torn_reads.py`.

A stamp stands for one filling of one slot: a worker and a serial number. Every element of every array of the slot is a
function of the stamp and of its place (array, turn, world, agent, …), so that a reader of the slot can tell of each
element whether it belongs there. A row of weights has its version in every column.
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
"""Part, first and last agent of the rows that are published at once."""

SPEC = GameSpec(
    "stamped",
    (
        Group("walkers", 2, (2,), np.int32, 3, metrics=("steps", "falls")),
        Group("bound", 1, (3,), np.uint8, 2, masked=True),
    ),
    TURNS,
)
TASK, CONFIG = Task(tuple(range(WORLDS))), RolloutConfig(0, WORLDS)
BITS = {"b": 1, "u1": 8, "i4": 31, "f4": 24, "i8": 63, "u8": 64}
"""Bits of a number that each type represents exactly."""


class FramesPolicy(RandomPolicy):
    """Never acts: it only makes fragments have frames before their first turn, and an extra."""

    frames = 3
    extras = ("value",)


def layout() -> SlotLayout:
    """How a slot of stamped data is divided."""
    bindings = [PolicyBinding(g, 0, group.size, FramesPolicy(group, group.size)) for g, group in enumerate(SPEC.groups)]
    return SlotLayout.of(SPEC, bindings, WORLDS)


def named_arrays(fragment: Fragment) -> dict[str, NDArray[Any]]:
    """Every array of a fragment, by name."""
    names = (
        "obs", "actions", "rewards", "terminated", "truncated", "alive", "ages", "versions", "metrics", "mask", "away",
    )  # fmt: skip
    arrays = {name: getattr(fragment, name) for name in names if getattr(fragment, name) is not None}
    return arrays | {f"extras.{name}": extra for name, extra in fragment.extras.items()}


def slot_arrays(
    slot_array: SlotArray, slot: int, task: Task = TASK, config: RolloutConfig = CONFIG, turns: int | None = None
) -> dict[str, NDArray[Any]]:
    """Every array of a slot, by group and name."""
    arrays = {}
    for g, fragment in enumerate(slot_array.fragments(slot, task, config, turns)):
        of_group = named_arrays(fragment) | {"keys": slot_array.keys(slot, g, len(task.episodes))}
        arrays.update({f"{g}/{name}": array for name, array in of_group.items()})
    return arrays


def stamp_of(worker: int, serial: int) -> int:
    """The stamp of a worker's filling."""
    return worker << 32 | serial


class Pattern:
    """What a slot must contain. Its versions are the stamp itself, so that a reader can find it."""

    def __init__(self, slot_array: SlotArray) -> None:
        self.slots = [slot_arrays(slot_array, slot) for slot in range(slot_array.count)]
        self._places = {name: self._number_places(name, array.shape) for name, array in self.slots[0].items()}
        self._wide = {name: np.empty_like(describe_worlds) for name, describe_worlds in self._places.items()}
        self._narrow = {name: np.empty_like(array) for name, array in self.slots[0].items()}

    @staticmethod
    def _number_places(name: str, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """A number for every place of an array, in every process the same."""
        return np.random.default_rng(zlib.crc32(name.encode())).integers(0, 1 << 64, shape, np.uint64)

    def values(self, name: str, stamp: int) -> NDArray[Any]:
        """What an array must contain; valid until the next call."""
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
        """The stamp of a slot, and how many elements do not belong to it; with a halt in the middle."""
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
    """To a collector: write this stamp into this slot."""

    token: SlotToken
    stamp: int
    halt: bool = False


@dataclass(frozen=True)
class Filled:
    """From a collector: it is written."""

    token: SlotToken
    stamp: int


@dataclass(frozen=True)
class Check:
    """To a trainer: check this slot."""

    token: SlotToken
    halt: bool = False


@dataclass(frozen=True)
class Checked:
    """From a trainer: the stamp that was found, and how many elements do not belong to it."""

    token: SlotToken
    stamp: int
    wrong: int


@dataclass(frozen=True)
class Halfway:
    """From a worker: it halts in the middle of an array or a row."""


@dataclass(frozen=True)
class Go:
    """To a worker: go on after a halt; or begin, and repeat until `Enough`."""


@dataclass(frozen=True)
class Enough:
    """To a worker: end the repetition, and reply."""


@dataclass(frozen=True)
class Publish:
    """To a publisher: publish rows of this version; with `halt`, halt in the middle of the first slice."""

    version: int
    halt: bool = False


@dataclass(frozen=True)
class Published:
    """From a publisher: the version it published last."""

    version: int


@dataclass(frozen=True)
class Refresh:
    """To a reader: refresh once, and reply."""


@dataclass(frozen=True)
class Held:
    """From a reader: what it holds, and what it has found wrong so far."""

    versions: tuple[int, ...]  # row by row, over all parts
    mixed: int  # rows of several versions, or of another version than the reader notes
    back: int  # rows older than before
    changes: int  # rows that were newer than before


def halt_halfway(connection: Connection) -> None:
    """Report that this worker is halfway, and wait until it may go on."""
    connection.send(Halfway())
    connection.recv()


def has_enough(connection: Connection) -> bool:
    """Whether this worker was told to end its repetition."""
    return connection.poll(0) and isinstance(connection.recv(), Enough)


@dataclass(frozen=True)
class FillJob:
    """A collector: fills the slots it is told to."""

    slot_array: SlotArray

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        pattern, before = Pattern(self.slot_array), None
        connection.send(Ready())
        while True:
            message: Fill = connection.recv()
            for slot in self.targets(message.token, before):
                pattern.fill(
                    slot, message.stamp, (lambda: halt_halfway(connection)) if message.halt else (lambda: None)
                )
            connection.send(Filled(message.token, message.stamp))
            before = message.token

    def targets(self, token: SlotToken, before: SlotToken | None) -> list[int]:
        """The slots it writes into: the one whose token it has."""
        return [token.slot]


@dataclass(frozen=True)
class KeepsWritingJob(FillJob):
    """A broken collector: still writes into the slot that it has handed over."""

    def targets(self, token: SlotToken, before: SlotToken | None) -> list[int]:
        """Also the slot that it filled before."""
        return [token.slot] if before is None else [before.slot, token.slot]


class OneSlotForAll(SlotOwners):
    """A broken table: everybody gets the same slot, and nothing is checked."""

    def acquire(self, owner: str) -> SlotToken:
        """Always the first slot."""
        return SlotToken(0, 1)

    def transfer(self, token: SlotToken, owner: str, to: str) -> None:
        """Checks nothing."""

    def release(self, token: SlotToken, owner: str) -> None:
        """Checks nothing."""


@dataclass(frozen=True)
class CheckJob:
    """A trainer: checks the slots it is told to."""

    slot_array: SlotArray

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        pattern = Pattern(self.slot_array)
        connection.send(Ready())
        while True:
            message: Check = connection.recv()
            stamp, wrong = pattern.check(
                message.token.slot, (lambda: halt_halfway(connection)) if message.halt else (lambda: None)
            )
            connection.send(Checked(message.token, stamp, wrong))


class InHalves:
    """Rows that are written and copied in two halves of their columns, with a halt between them."""

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
        """Copy a single row."""
        half = self.rows.shape[1] // 2
        first = self.rows[0, :half].copy()
        self.halt()
        return np.concatenate([first, self.rows[0, half:]])


class HaltingStore(WeightStore):
    """The real store, but whoever writes or copies a row can be halted in the middle of it."""

    halt: Callable[[], None] | None = None

    def view(self, part: int, name: str) -> Any:
        view = super().view(part, name)
        return InHalves(view, self.halt) if name == "rows" and self.halt else view


class UnmarkedStore(HaltingStore):
    """A broken store: the sequence number is not odd while a row is written."""

    def publish(self, part: int, rows: NDArray[np.float32], version: int, first: int = 0) -> None:
        """Write first, count afterwards."""
        agents = slice(first, first + len(rows))
        self.view(part, "rows")[agents] = rows
        self.view(part, "version")[agents] = version
        self.view(part, "sequence")[agents] += 2


@dataclass(frozen=True)
class PublishJob:
    """A writer: publishes version after version, slice by slice."""

    store: WeightStore

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        version = 0
        connection.send(Ready())
        while True:
            message = connection.recv()
            if isinstance(message, Publish):
                version = message.version
                self._publish(version, (lambda: halt_halfway(connection)) if message.halt else None)
            while isinstance(message, Go) and not has_enough(connection):
                version += 1
                self._publish(version, None)
            connection.send(Published(version))

    def _publish(self, version: int, halt: Callable[[], None] | None) -> None:
        for part, first, last in SLICES:
            if isinstance(self.store, HaltingStore):
                self.store.halt = halt
            rows = np.broadcast_to(np.float32(version), (last - first, SHAPES[part][1]))  # costs nothing to make
            self.store.publish(part, rows, version, first)
            halt = None


@dataclass
class CheckedReader:
    """A reader, and a check of everything it holds after every refresh."""

    reader: WeightReader
    mixed: int = 0
    back: int = 0
    changes: int = 0

    def refresh(self, beat: Callable[[Phase], None] = lambda phase: None) -> None:
        """Refresh; every row must be of the one version that the reader notes, and never older than before."""
        before = {part: versions.copy() for part, versions in self.reader.versions.items()}
        beat(Phase.TAKING)
        changed = self.reader.refresh()
        beat(Phase.WAITING)
        for part in changed:
            versions = self.reader.versions[part]
            self.mixed += int((self.reader.rows[part] != versions[:, None]).any(axis=1).sum())
            self.back += int((versions < before[part]).sum())
            self.changes += int((versions != before[part]).sum())

    def held(self) -> Held:
        """What it holds, and what it has found wrong."""
        versions = tuple(int(version) for versions in self.reader.versions.values() for version in versions)
        return Held(versions, self.mixed, self.back, self.changes)


@dataclass(frozen=True)
class ReadJob:
    """A reader: refreshes once, or again and again."""

    store: WeightStore

    def run(self, connection: Connection, status: WorkerStatus) -> None:
        """Until the connection closes."""
        checked_reader = CheckedReader(WeightReader(self.store))
        connection.send(Ready())
        while True:
            message = connection.recv()
            while isinstance(message, Go) and not has_enough(connection):
                checked_reader.refresh(status.beat)
            checked_reader.refresh()
            connection.send(checked_reader.held())
