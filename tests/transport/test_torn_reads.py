"""Ownership instead of locks, on real processes: nothing is torn, nothing is lost, nothing arrives twice.

The data tell where they come from (`stamps.py`). The same checks run against protocols that are broken
on purpose; there everybody is led step by step, so that what has to be found is found every time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from stamps import (
    SHAPES,
    TURNS,
    WORLDS,
    Check,
    Checked,
    CheckJob,
    ClingingFillJob,
    Enough,
    Fill,
    Filled,
    FillJob,
    Go,
    Halfway,
    HaltingBoard,
    Held,
    Look,
    OneSlotForAll,
    Pattern,
    Publish,
    Published,
    PublishJob,
    ReadJob,
    UnmarkedBoard,
    layout,
    stamp_of,
)

from remuda.core.errors import OrderError
from remuda.transport.heartbeat import Phase
from remuda.transport.slots import SlotArray, SlotOwners
from remuda.transport.weights import WeightStore
from remuda.transport.worker_pool import Worker, WorkerPool
from remuda.transport.worker_process import Job

LIMIT_S = 120.0
"""Longest wait for anybody's word."""
QUIET_LIMIT = 100_000
"""The same, as steps of a thousandth of a second."""
COLLECTORS, READERS, SLOTS, AHEAD = 2, 2, 6, 3
TEN_MILLION = 10_000_000
LOOP = "loop"
ARRAYS = [
    f"{g}/{name}"
    for g, group in enumerate(layout().groups)
    for name, place in group.fields.items()
    if np.prod(place.shape)
]
"""Everything a slot consists of, except what has no elements."""


@dataclass
class Books:
    """Which stamps were sent for, which arrived, and what was wrong with them."""

    sent: list[int] = field(default_factory=list)
    arrived: Counter[int] = field(default_factory=Counter)
    wrong: int = 0  # elements

    @property
    def turns(self) -> int:
        """Turns that arrived, over all worlds."""
        return self.arrived.total() * TURNS * WORLDS

    def faults(self) -> set[str]:
        """In a word each."""
        found = {
            "torn": self.wrong > 0,
            "lost": any(not self.arrived[stamp] for stamp in self.sent),
            "twice": any(count > 1 for count in self.arrived.values()),
            "foreign": bool(set(self.arrived) - set(self.sent)),
        }
        return {word for word, is_so in found.items() if is_so}


def rows_faults(reports: list[Held]) -> set[str]:
    """What readers found wrong, in a word each."""
    found = {"mixed": any(own.mixed for own in reports), "back": any(own.back for own in reports)}
    return {word for word, is_so in found.items() if is_so}


class Hall:
    """A crew, what its workers last said, and their end."""

    def __init__(self) -> None:
        self.worker_pool = WorkerPool(stop=lambda: None)
        self.said: dict[str, list[Any]] = {}
        self.lost: list[str] = []

    def __enter__(self) -> Self:
        self.worker_pool.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.worker_pool.close()

    def add_worker(self, name: str, job: Job) -> Worker:
        """A worker whose words are kept."""
        return self.worker_pool.add_worker(name, job, self._hear, self._lose)

    def ask(self, worker: Worker, message: Any) -> Any:
        """Tell a worker something and wait for its next word."""
        self.said[worker.name] = []
        self.worker_pool.send(worker, message)
        return self.next_word(worker)

    def next_word(self, worker: Worker) -> Any:
        """Wait until a worker says something."""
        self.wait_for(lambda: bool(self.said.get(worker.name)))
        return self.said[worker.name].pop(0)

    def kill(self, worker: Worker) -> None:
        """End a worker without warning, and wait until it is replaced."""
        os.kill(pid_of(worker), signal.SIGKILL)
        count = len(self.lost)
        self.wait_for(lambda: len(self.lost) > count and worker.ready)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Listen until it is so."""
        while not done():
            assert self.worker_pool.step(LIMIT_S), "nobody says anything any more"

    def _hear(self, worker: Worker, message: Any) -> None:
        self.said.setdefault(worker.name, []).append(message)

    def _lose(self, worker: Worker, why: str) -> None:
        self.lost.append(worker.name)


class Exchange(Hall):
    """Collectors, a trainer, the slots between them and the table of owners; slots change hands one by one."""

    def __init__(self, collector: type[FillJob] = FillJob, owners: type[SlotOwners] = SlotOwners) -> None:
        super().__init__()
        self.slot_array, self.owners, self.books = SlotArray(layout(), SLOTS), owners(SLOTS), Books()
        self.collectors = [self.add_worker(f"collect-{i}", collector(self.slot_array)) for i in range(COLLECTORS)]
        self.trainer = self.add_worker("train", CheckJob(self.slot_array))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.slot_array.memory.close()

    def order(self, worker: Worker, halt: bool = False) -> Fill:
        """A slot for a new stamp of a collector's."""
        stamp = stamp_of(worker.index, len(self.books.sent))
        self.books.sent.append(stamp)
        return Fill(self.owners.lend(worker.name), stamp, halt)

    def filled(self, worker: Worker, message: Filled, halt: bool = False) -> Check:
        """A collector hands its slot over: it is the trainer's now."""
        self.owners.move(message.token, worker.name, LOOP)
        self.owners.move(message.token, LOOP, self.trainer.name)
        return Check(message.token, halt)

    def checked(self, message: Checked) -> None:
        """The trainer gives a slot back."""
        self.books.arrived[message.stamp] += 1
        self.books.wrong += message.wrong
        self.owners.give_back(message.token, self.trainer.name)


class Traffic(Exchange):
    """The same as fast as everybody can, with a publisher and readers of its rows beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.store = WeightStore(SHAPES)
        self.load = {worker.name: 0 for worker in self.collectors}
        self.publisher = self.add_worker("publish", PublishJob(self.store))
        self.readers = [self.add_worker(f"read-{i}", ReadJob(self.store)) for i in range(READERS)]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.store.memory.close()

    def deal(self) -> None:
        """Keep the collectors busy as long as there are slots."""
        while self.owners.free:
            worker = min(self.collectors, key=lambda worker: self.load[worker.name])
            if self.load[worker.name] == AHEAD:
                return
            self.load[worker.name] += 1
            self.worker_pool.send(worker, self.order(worker))

    def _hear(self, worker: Worker, message: Any) -> None:
        if isinstance(message, Filled):
            self.load[worker.name] -= 1
            self.worker_pool.send(self.trainer, self.filled(worker, message))
        elif isinstance(message, Checked):
            self.checked(message)
        else:
            super()._hear(worker, message)


def pid_of(worker: Worker) -> int:
    assert worker.process is not None
    assert worker.process.pid is not None
    return worker.process.pid


def stop(worker: Worker) -> None:
    """Stop a process wherever it is, and wait until it stands still."""
    os.kill(pid_of(worker), signal.SIGSTOP)
    while (state := Path(f"/proc/{pid_of(worker)}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert state not in "ZX", f"{worker.name} is dead"
        os.sched_yield()


def go_on(worker: Worker) -> None:
    """Let a stopped process continue."""
    os.kill(pid_of(worker), signal.SIGCONT)


def being_written(store: WeightStore) -> bool:
    """Whether some row is."""
    return any((store._view(part, "sequence") % 2).any() for part in SHAPES)


class Stops:
    """Stops one process after the other at moments a seeded die decides; counts those in the middle of a copy."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.in_writing = self.in_reading = 0
        self._die = np.random.default_rng(11)
        self._stopped: Worker | None = None
        self._wait = 1

    @property
    def too_few(self) -> bool:
        """Whether there should be more of them."""
        return min(self.in_writing, self.in_reading) < 10

    def tick(self) -> None:
        """Something happened somewhere; perhaps it is time."""
        self._wait -= 1
        if self._wait == 0:
            self._wait = int(self._die.integers(1, 12))
            self.release() if self._stopped else self._stop_one()

    def _stop_one(self) -> None:
        """Half of the times the publisher or a reader, else anybody."""
        traffic = self.traffic
        some = [traffic.publisher, *traffic.readers] if self._die.integers(2) else traffic.worker_pool.workers
        victim = self._stopped = some[int(self._die.integers(len(some)))]
        stop(victim)
        if victim is traffic.publisher:
            self.in_writing += being_written(traffic.store)
        elif victim in traffic.readers:
            self.in_reading += traffic.worker_pool.heartbeats.last(victim.index)[0] is Phase.TAKING

    def release(self) -> None:
        """Let whoever is stopped go on."""
        if self._stopped:
            go_on(self._stopped)
        self._stopped = None


def test_nothing_is_torn_lost_or_twice_in_ten_million_turns() -> None:
    """Everybody works as fast as they can, and somebody is stopped every few messages."""
    with Traffic() as traffic:
        for worker in (traffic.publisher, *traffic.readers):
            traffic.worker_pool.send(worker, Go())
        stops = Stops(traffic)
        drive(traffic, stops, lambda: traffic.books.turns < TEN_MILLION * (1 + 2 * stops.too_few))
        last = traffic.ask(traffic.publisher, Enough())
        reports = [traffic.ask(reader, Enough()) for reader in traffic.readers]
    assert traffic.books.turns >= TEN_MILLION
    assert not stops.too_few
    assert traffic.books.faults() == set()
    assert traffic.owners.free == traffic.owners.peak == SLOTS
    assert rows_faults(reports) == set()
    assert all(set(own.versions) == {last.version} for own in reports)
    assert min(own.moves for own in reports) > 100


def drive(traffic: Traffic, stops: Stops, wanted: Callable[[], bool]) -> None:
    """Have slots filled and checked, with stops in between, as long as it is wanted; then let all end well."""
    quiet = 0
    while wanted():
        traffic.deal()
        quiet = 0 if traffic.worker_pool.step(0.001) else quiet + 1
        assert quiet < QUIET_LIMIT, "nobody says anything any more"
        assert not traffic.lost
        stops.tick()
    stops.release()
    traffic.wait_for(lambda: traffic.owners.free == SLOTS)


@pytest.mark.parametrize(
    ("collector", "owners", "faults"),
    [
        pytest.param(FillJob, SlotOwners, set(), id="as it is"),
        pytest.param(ClingingFillJob, SlotOwners, {"torn"}, id="a collector goes on writing"),
        pytest.param(FillJob, OneSlotForAll, {"torn", "lost", "twice"}, id="a slot is lent twice"),
    ],
)
def test_a_slot_has_one_owner(collector: type[FillJob], owners: type[SlotOwners], faults: set[str]) -> None:
    """While the trainer is in the middle of the first slot, the collector who filled it fills its next one."""
    with Exchange(collector, owners) as hall:
        one, other = hall.collectors
        first = hall.filled(one, hall.ask(one, hall.order(one)), halt=True)
        second = hall.filled(other, hall.ask(other, hall.order(other)))
        assert hall.ask(hall.trainer, first) == Halfway()
        third = hall.filled(one, hall.ask(one, hall.order(one)))
        hall.checked(hall.ask(hall.trainer, Go()))
        for check in (second, third):
            hall.checked(hall.ask(hall.trainer, check))
    assert hall.books.faults() == faults


@pytest.mark.parametrize("name", ARRAYS)
def test_the_check_finds_a_single_wrong_element(name: str) -> None:
    slot_array = SlotArray(layout(), 3)
    pattern = Pattern(slot_array)
    for slot in range(slot_array.count):
        pattern.fill(slot, stamp_of(1, slot))
    array = pattern.slots[1][name]
    array.reshape(-1)[-1] = ~array.reshape(-1)[-1] if array.dtype == np.bool_ else array.reshape(-1)[-1] + 1
    assert pattern.check(0) == (stamp_of(1, 0), 0)
    assert pattern.check(1) == (stamp_of(1, 1), 1)
    assert pattern.check(2) == (stamp_of(1, 2), 0)


def test_a_slot_of_a_collector_that_dies_in_the_middle_is_filled_again() -> None:
    with Exchange() as hall:
        one, other = hall.collectors
        order = hall.order(one, halt=True)
        assert hall.ask(one, order) == Halfway()
        hall.kill(one)
        assert hall.owners.reclaim(one.name) == 1
        with pytest.raises(OrderError):
            hall.filled(one, Filled(order.token, order.stamp))
        tokens = [hall.owners.lend(other.name) for _ in range(SLOTS)]
        assert {token.slot for token in tokens} == set(range(SLOTS))
        again = next(token for token in tokens if token.slot == order.token.slot)
        check = hall.filled(other, hall.ask(other, Fill(again, order.stamp)))
        hall.checked(hall.ask(hall.trainer, check))
    assert hall.books.faults() == set()


class Library(Hall):
    """A publisher, a reader and the board between them."""

    def __init__(self, store: WeightStore) -> None:
        super().__init__()
        self.store = store
        self.publisher = self.add_worker("publish", PublishJob(store))
        self.reader = self.add_worker("read", ReadJob(store))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.store.memory.close()

    def publish(self, version: int) -> None:
        """Publish every row."""
        assert self.ask(self.publisher, Publish(version)) == Published(version)

    def stop_in_the_middle_of(self, version: int) -> None:
        """Publish half of a row, and stop there."""
        assert self.ask(self.publisher, Publish(version, halt=True)) == Halfway()
        stop(self.publisher)

    def look(self) -> Held:
        """What the reader holds now."""
        held: Held = self.ask(self.reader, Look())
        return held


@pytest.mark.parametrize(
    ("store", "faults"),
    [
        pytest.param(HaltingBoard, set(), id="as it is"),
        pytest.param(UnmarkedBoard, {"mixed"}, id="a row is not marked while it is written"),
    ],
)
def test_a_row_is_read_whole_or_not_at_all(store: type[WeightStore], faults: set[str]) -> None:
    """The reader has not seen version 2 when the writer is stopped in the middle of version 3."""
    with Library(store(SHAPES)) as hall:
        hall.publish(1)
        reports = [hall.look()]
        hall.publish(2)
        hall.stop_in_the_middle_of(3)
        reports.append(hall.look())
        go_on(hall.publisher)
        assert hall.ask(hall.publisher, Go()) == Published(3)
        reports.append(hall.look())
    assert rows_faults(reports) == faults
    assert set(reports[0].versions) == {1}
    assert set(reports[2].versions) == {3}


def test_a_reader_keeps_the_rows_of_a_writer_that_dies_in_the_middle_until_another_heals_them() -> None:
    with Library(HaltingBoard(SHAPES)) as hall:
        hall.publish(1)
        hall.look()
        hall.publish(2)
        hall.stop_in_the_middle_of(3)
        hall.kill(hall.publisher)
        assert being_written(hall.store)
        assert hall.look().versions == (1, 1, 2, 2, 2)
        hall.publish(4)
        assert not being_written(hall.store)
        held = hall.look()
    assert set(held.versions) == {4}
    assert rows_faults([held]) == set()
