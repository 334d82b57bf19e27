"""Ownership instead of locks, on real processes: nothing is torn, nothing is lost, nothing arrives twice.

The data show where they come from (`stamps.py`). The same checks run against protocols that are broken on purpose.
There all processes are led step by step, so that the fault is found every time.
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
    Enough,
    Fill,
    Filled,
    FillJob,
    Go,
    Halfway,
    HaltingStore,
    Held,
    KeepsWritingJob,
    OneSlotForAll,
    Pattern,
    Publish,
    Published,
    PublishJob,
    ReadJob,
    Refresh,
    UnmarkedStore,
    layout,
    stamp_of,
)

from remuda.core.errors import OrderError
from remuda.transport.heartbeat import Phase, WorkerExit
from remuda.transport.slots import SlotArray, SlotOwners
from remuda.transport.weights import WeightStore
from remuda.transport.worker_pool import Worker, WorkerPool
from remuda.transport.worker_process import Job

LIMIT_S = 120.0
"""Longest wait for a message."""
QUIET_STEPS_LIMIT = 100_000
"""The same, in steps of a millisecond."""
COLLECTORS, READERS, SLOTS, TASKS_PER_WORKER = 2, 2, 6, 3
TEN_MILLION = 10_000_000
LOOP = "loop"
ARRAYS = [
    f"{g}/{name}"
    for g, group in enumerate(layout().groups)
    for name, place in group.fields.items()
    if np.prod(place.shape)
]
"""All arrays of a slot that have elements."""


@dataclass
class StampLog:
    """Which stamps were ordered, which arrived, and what was wrong with them."""

    sent: list[int] = field(default_factory=list)
    arrived: Counter[int] = field(default_factory=Counter)
    wrong: int = 0  # elements

    @property
    def turns(self) -> int:
        """Turns that arrived, over all worlds."""
        return self.arrived.total() * TURNS * WORLDS

    def faults(self) -> set[str]:
        """The kinds of faults that happened, in a word each."""
        found = {
            "torn": self.wrong > 0,
            "lost": any(not self.arrived[stamp] for stamp in self.sent),
            "twice": any(count > 1 for count in self.arrived.values()),
            "foreign": bool(set(self.arrived) - set(self.sent)),
        }
        return {word for word, is_so in found.items() if is_so}


def rows_faults(reports: list[Held]) -> set[str]:
    """The kinds of faults that readers found, in a word each."""
    found = {"mixed": any(report.mixed for report in reports), "back": any(report.back for report in reports)}
    return {word for word, is_so in found.items() if is_so}


class Processes:
    """A worker pool, the messages of its workers, and who of them ended."""

    def __init__(self) -> None:
        self.worker_pool = WorkerPool(stop=lambda: None)
        self.messages: dict[str, list[Any]] = {}
        self.lost: list[str] = []

    def __enter__(self) -> Self:
        self.worker_pool.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.worker_pool.close()

    def add_worker(self, name: str, job: Job) -> Worker:
        """Add a worker whose messages are kept."""
        return self.worker_pool.add_worker(name, job, self._on_message, self._on_worker_lost)

    def ask(self, worker: Worker, message: Any) -> Any:
        """Send a worker a message and wait for its next one."""
        self.messages[worker.name] = []
        self.worker_pool.send(worker, message)
        return self.next_message(worker)

    def next_message(self, worker: Worker) -> Any:
        """Wait for a message of a worker."""
        self.wait_for(lambda: bool(self.messages.get(worker.name)))
        return self.messages[worker.name].pop(0)

    def kill(self, worker: Worker) -> None:
        """Kill a worker, and wait until it is replaced."""
        os.kill(pid_of(worker), signal.SIGKILL)
        count = len(self.lost)
        self.wait_for(lambda: len(self.lost) > count and worker.ready)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Receive messages until it is so."""
        while not done():
            assert self.worker_pool.step(LIMIT_S), "no worker sends messages any more"

    def _on_message(self, worker: Worker, message: Any) -> None:
        self.messages.setdefault(worker.name, []).append(message)

    def _on_worker_lost(self, worker: Worker, worker_exit: WorkerExit) -> None:
        self.lost.append(worker.name)


class Exchange(Processes):
    """Collectors, a trainer, the slots between them and the table of owners; slots are passed on one by one."""

    def __init__(self, collector: type[FillJob] = FillJob, owners: type[SlotOwners] = SlotOwners) -> None:
        super().__init__()
        self.slot_array, self.owners, self.stamps = SlotArray(layout(), SLOTS), owners(SLOTS), StampLog()
        self.collectors = [self.add_worker(f"collect-{i}", collector(self.slot_array)) for i in range(COLLECTORS)]
        self.trainer = self.add_worker("train", CheckJob(self.slot_array))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.slot_array.memory.close()

    def order(self, worker: Worker, halt: bool = False) -> Fill:
        """Acquire a slot for a new stamp of a collector."""
        stamp = stamp_of(worker.index, len(self.stamps.sent))
        self.stamps.sent.append(stamp)
        return Fill(self.owners.acquire(worker.name), stamp, halt)

    def filled(self, worker: Worker, message: Filled, halt: bool = False) -> Check:
        """A collector has filled its slot: pass it to the trainer."""
        self.owners.transfer(message.token, worker.name, LOOP)
        self.owners.transfer(message.token, LOOP, self.trainer.name)
        return Check(message.token, halt)

    def checked(self, message: Checked) -> None:
        """The trainer has checked a slot: release it."""
        self.stamps.arrived[message.stamp] += 1
        self.stamps.wrong += message.wrong
        self.owners.release(message.token, self.trainer.name)


class Traffic(Exchange):
    """The same as fast as all workers can, together with a publisher of weights and its readers."""

    def __init__(self) -> None:
        super().__init__()
        self.store = WeightStore(SHAPES)
        self.pending = {worker.name: 0 for worker in self.collectors}
        self.publisher = self.add_worker("publish", PublishJob(self.store))
        self.readers = [self.add_worker(f"read-{i}", ReadJob(self.store)) for i in range(READERS)]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.store.memory.close()

    def dispatch(self) -> None:
        """Keep the collectors busy as long as slots are free."""
        while self.owners.free:
            worker = min(self.collectors, key=lambda worker: self.pending[worker.name])
            if self.pending[worker.name] == TASKS_PER_WORKER:
                return
            self.pending[worker.name] += 1
            self.worker_pool.send(worker, self.order(worker))

    def _on_message(self, worker: Worker, message: Any) -> None:
        if isinstance(message, Filled):
            self.pending[worker.name] -= 1
            self.worker_pool.send(self.trainer, self.filled(worker, message))
        elif isinstance(message, Checked):
            self.checked(message)
        else:
            super()._on_message(worker, message)


def pid_of(worker: Worker) -> int:
    assert worker.process is not None
    assert worker.process.pid is not None
    return worker.process.pid


def stop(worker: Worker) -> None:
    """Send SIGSTOP to a process, and wait until it is stopped."""
    os.kill(pid_of(worker), signal.SIGSTOP)
    while (state := Path(f"/proc/{pid_of(worker)}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert state not in "ZX", f"{worker.name} is dead"
        os.sched_yield()


def go_on(worker: Worker) -> None:
    """Let a stopped process go on."""
    os.kill(pid_of(worker), signal.SIGCONT)


def being_written(store: WeightStore) -> bool:
    """Whether a row is being written."""
    return any((store.view(part, "sequence") % 2).any() for part in SHAPES)


class Stops:
    """Stops one process after the other at random moments, seeded; counts stops in the middle of a copy."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.in_writing = self.in_reading = 0
        self._random = np.random.default_rng(11)
        self._stopped: Worker | None = None
        self._wait = 1

    @property
    def too_few(self) -> bool:
        """Whether too few stops were in the middle of a copy."""
        return min(self.in_writing, self.in_reading) < 10

    def tick(self) -> None:
        """Stop a process, or let the stopped one go on, every few calls."""
        self._wait -= 1
        if self._wait == 0:
            self._wait = int(self._random.integers(1, 12))
            self.release() if self._stopped else self._stop_one()

    def _stop_one(self) -> None:
        """Stop the publisher or a reader, or in half of the cases any worker."""
        traffic = self.traffic
        some = [traffic.publisher, *traffic.readers] if self._random.integers(2) else traffic.worker_pool.workers
        victim = self._stopped = some[int(self._random.integers(len(some)))]
        stop(victim)
        if victim is traffic.publisher:
            self.in_writing += being_written(traffic.store)
        elif victim in traffic.readers:
            self.in_reading += traffic.worker_pool.heartbeats.last_beat(victim.index)[0] is Phase.TAKING

    def release(self) -> None:
        """Let the stopped process go on."""
        if self._stopped:
            go_on(self._stopped)
        self._stopped = None


def test_nothing_is_torn_lost_or_twice_in_ten_million_turns() -> None:
    """All work as fast as they can, and every few messages a process is stopped."""
    with Traffic() as traffic:
        for worker in (traffic.publisher, *traffic.readers):
            traffic.worker_pool.send(worker, Go())
        stops = Stops(traffic)
        drive(traffic, stops, lambda: traffic.stamps.turns < TEN_MILLION * (1 + 2 * stops.too_few))
        last = traffic.ask(traffic.publisher, Enough())
        reports = [traffic.ask(reader, Enough()) for reader in traffic.readers]
    assert traffic.stamps.turns >= TEN_MILLION
    assert not stops.too_few
    assert traffic.stamps.faults() == set()
    assert traffic.owners.free == traffic.owners.peak == SLOTS
    assert rows_faults(reports) == set()
    assert all(set(report.versions) == {last.version} for report in reports)
    assert min(report.changes for report in reports) > 100


def drive(traffic: Traffic, stops: Stops, wanted: Callable[[], bool]) -> None:
    """Have slots filled and checked, with stops in between, as long as `wanted`; then wait until all slots are free."""
    quiet = 0
    while wanted():
        traffic.dispatch()
        quiet = 0 if traffic.worker_pool.step(0.001) else quiet + 1
        assert quiet < QUIET_STEPS_LIMIT, "no worker sends messages any more"
        assert not traffic.lost
        stops.tick()
    stops.release()
    traffic.wait_for(lambda: traffic.owners.free == SLOTS)


@pytest.mark.parametrize(
    ("collector", "owners", "faults"),
    [
        pytest.param(FillJob, SlotOwners, set(), id="as it is"),
        pytest.param(KeepsWritingJob, SlotOwners, {"torn"}, id="a collector keeps writing"),
        pytest.param(FillJob, OneSlotForAll, {"torn", "lost", "twice"}, id="a slot has two owners"),
    ],
)
def test_a_slot_has_one_owner(collector: type[FillJob], owners: type[SlotOwners], faults: set[str]) -> None:
    """While the trainer is in the middle of the first slot, the collector that filled it fills its next one."""
    with Exchange(collector, owners) as processes:
        one, other = processes.collectors
        first = processes.filled(one, processes.ask(one, processes.order(one)), halt=True)
        second = processes.filled(other, processes.ask(other, processes.order(other)))
        assert processes.ask(processes.trainer, first) == Halfway()
        third = processes.filled(one, processes.ask(one, processes.order(one)))
        processes.checked(processes.ask(processes.trainer, Go()))
        for check in (second, third):
            processes.checked(processes.ask(processes.trainer, check))
    assert processes.stamps.faults() == faults


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
    with Exchange() as processes:
        one, other = processes.collectors
        order = processes.order(one, halt=True)
        assert processes.ask(one, order) == Halfway()
        processes.kill(one)
        assert processes.owners.reclaim(one.name) == 1
        with pytest.raises(OrderError):
            processes.filled(one, Filled(order.token, order.stamp))
        tokens = [processes.owners.acquire(other.name) for _ in range(SLOTS)]
        assert {token.slot for token in tokens} == set(range(SLOTS))
        again = next(token for token in tokens if token.slot == order.token.slot)
        check = processes.filled(other, processes.ask(other, Fill(again, order.stamp)))
        processes.checked(processes.ask(processes.trainer, check))
    assert processes.stamps.faults() == set()


class PublisherAndReader(Processes):
    """A publisher, a reader and the weight store between them."""

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

    def refresh(self) -> Held:
        """What the reader holds after a refresh."""
        held: Held = self.ask(self.reader, Refresh())
        return held


@pytest.mark.parametrize(
    ("store", "faults"),
    [
        pytest.param(HaltingStore, set(), id="as it is"),
        pytest.param(UnmarkedStore, {"mixed"}, id="a row is not marked while it is written"),
    ],
)
def test_a_row_is_copied_completely_or_not_at_all(store: type[WeightStore], faults: set[str]) -> None:
    """The reader has not seen version 2 when the writer is stopped in the middle of version 3."""
    with PublisherAndReader(store(SHAPES)) as processes:
        processes.publish(1)
        reports = [processes.refresh()]
        processes.publish(2)
        processes.stop_in_the_middle_of(3)
        reports.append(processes.refresh())
        go_on(processes.publisher)
        assert processes.ask(processes.publisher, Go()) == Published(3)
        reports.append(processes.refresh())
    assert rows_faults(reports) == faults
    assert set(reports[0].versions) == {1}
    assert set(reports[2].versions) == {3}


def test_a_reader_keeps_its_copy_of_a_row_whose_writer_died_in_the_middle_until_another_repairs_it() -> None:
    with PublisherAndReader(HaltingStore(SHAPES)) as processes:
        processes.publish(1)
        processes.refresh()
        processes.publish(2)
        processes.stop_in_the_middle_of(3)
        processes.kill(processes.publisher)
        assert being_written(processes.store)
        assert processes.refresh().versions == (1, 1, 2, 2, 2)
        processes.publish(4)
        assert not being_written(processes.store)
        held = processes.refresh()
    assert set(held.versions) == {4}
    assert rows_faults([held]) == set()
