"""Weights in shared memory: a reader's copy of a row is complete, of one version, and never older than before.

The property test runs the real `publish` and `refresh` in threads that go on only when told, one step at a time, with
halts in the middle of every row: so writers and readers interleave in every way there is.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as SearchPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray
from stamps import HaltingStore, UnmarkedStore

from remuda.core.errors import WorkerError
from remuda.transport import weights
from remuda.transport.weights import TRIES, WeightReader, WeightStore

SHAPES = {0: (3, 5), 2: (2, 4)}


@pytest.fixture
def store() -> Iterator[WeightStore]:
    made = WeightStore(SHAPES)
    yield made
    made.memory.close()


def rows_of(part: int, agents: int, version: int) -> NDArray[np.float32]:
    """Rows that differ by part, agent, column and version."""
    base = 1000 * version + 100 * part + 10 * np.arange(agents)[:, None]
    return (base + np.arange(SHAPES[part][1])).astype(np.float32)


def write_half_a_row(store: WeightStore, part: int, agent: int) -> None:
    """Leave a row as a writer does that dies in the middle of it."""
    store.view(part, "sequence")[agent] |= 1
    store.view(part, "rows")[agent, :2] = -1


def test_what_is_published_is_read_with_its_version(store: WeightStore) -> None:
    reader = WeightReader(store)
    for part, (agents, _) in SHAPES.items():
        store.publish(part, rows_of(part, agents, 7 + part), 7 + part)
    assert reader.refresh() == [0, 2]
    for part, (agents, _) in SHAPES.items():
        assert np.array_equal(reader.rows[part], rows_of(part, agents, 7 + part))
        assert reader.versions[part].tolist() == [7 + part] * agents
    assert reader.retries == 0


def test_every_reader_has_its_own_copy(store: WeightStore) -> None:
    store.publish(0, rows_of(0, 3, 1), 1)
    one, other = WeightReader(store), WeightReader(store)
    one.refresh()
    store.publish(0, rows_of(0, 3, 2), 2)
    other.refresh()
    assert np.array_equal(one.rows[0], rows_of(0, 3, 1))
    assert np.array_equal(other.rows[0], rows_of(0, 3, 2))


def test_parts_that_did_not_change_are_not_returned(store: WeightStore) -> None:
    reader = WeightReader(store)
    reader.refresh()
    assert reader.refresh() == []
    store.publish(2, rows_of(2, 2, 1), 1)
    assert reader.refresh() == [2]
    assert reader.refresh() == []


def test_only_rows_that_changed_are_copied(store: WeightStore) -> None:
    reader = WeightReader(store)
    store.publish(0, rows_of(0, 3, 1), 1)
    reader.refresh()
    reader.rows[0][:] = -5
    store.publish(0, rows_of(0, 1, 2), 2, first=1)
    assert reader.refresh() == [0]
    assert (reader.rows[0][[0, 2]] == -5).all()
    assert np.array_equal(reader.rows[0][1], rows_of(0, 1, 2)[0])
    assert reader.versions[0].tolist() == [1, 2, 1]


def test_slices_of_a_part_come_from_different_writers(store: WeightStore) -> None:
    reader = WeightReader(store)
    store.publish(0, rows_of(0, 2, 4), 4, first=1)
    store.publish(0, rows_of(0, 1, 9), 9)
    reader.refresh()
    assert np.array_equal(reader.rows[0], np.concatenate([rows_of(0, 1, 9), rows_of(0, 2, 4)]))
    assert reader.versions[0].tolist() == [9, 4, 4]
    assert not reader.rows[2].any()


def test_a_store_without_rows() -> None:
    empty = WeightStore({})
    assert WeightReader(empty).refresh() == []
    empty.memory.close()


def test_rows_without_columns_have_versions() -> None:
    store = WeightStore({0: (2, 0)})
    reader = WeightReader(store)
    store.publish(0, np.zeros((2, 0), np.float32), 3)
    assert reader.refresh() == [0]
    assert reader.versions[0].tolist() == [3, 3]
    store.memory.close()


def test_readers_keep_their_copy_of_a_row_whose_writer_died_in_the_middle(store: WeightStore) -> None:
    reader = WeightReader(store)
    store.publish(0, rows_of(0, 3, 1), 1)
    reader.refresh()
    write_half_a_row(store, 0, 1)
    store.publish(0, rows_of(0, 1, 2), 2, first=2)
    assert reader.refresh() == [0]
    assert reader.retries == TRIES
    assert np.array_equal(reader.rows[0][:2], rows_of(0, 2, 1))
    assert reader.versions[0].tolist() == [1, 1, 2]
    assert reader.refresh() == []


def test_a_later_writer_repairs_the_row(store: WeightStore) -> None:
    reader = WeightReader(store)
    store.publish(0, rows_of(0, 3, 1), 1)
    reader.refresh()
    write_half_a_row(store, 0, 1)
    store.publish(0, rows_of(0, 3, 2), 2)
    assert (store.view(0, "sequence") % 2 == 0).all()
    assert reader.refresh() == [0]
    assert np.array_equal(reader.rows[0], rows_of(0, 3, 2))
    assert reader.versions[0].tolist() == [2, 2, 2]


def test_a_reader_keeps_its_copy_of_a_row_that_always_changes_until_the_next_refresh() -> None:
    store = HaltingStore(SHAPES)
    reader = WeightReader(store)
    reader.refresh()
    store.publish(2, rows_of(2, 2, 1), 1)
    writing = copy.copy(store)  # without a halt, in the same memory
    store.halt = lambda: writing.publish(2, rows_of(2, 1, 2), 2)
    assert reader.refresh() == [2]
    assert reader.retries == TRIES
    assert reader.versions[2].tolist() == [0, 1]
    assert not reader.rows[2][0].any()
    store.halt = None
    assert reader.refresh() == [2]
    assert reader.versions[2].tolist() == [2, 1]
    store.memory.close()


def test_a_new_reader_waits_for_its_first_complete_row(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.publish(0, rows_of(0, 3, 1), 1)
    write_half_a_row(store, 0, 1)
    reader = WeightReader(store)
    repair = threading.Thread(target=lambda: store.publish(0, rows_of(0, 3, 2), 2))
    monkeypatch.setattr(weights.os, "sched_yield", lambda: repair.start() if repair.ident is None else None)
    assert 0 in reader.refresh()
    repair.join()
    reader.refresh()
    assert np.array_equal(reader.rows[0], rows_of(0, 3, 2))


def test_a_new_reader_does_not_wait_for_ever(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.publish(0, rows_of(0, 3, 1), 1)
    write_half_a_row(store, 0, 1)
    monkeypatch.setattr(weights, "FIRST_COPY_LIMIT_S", 0.01)
    with pytest.raises(WorkerError, match="agent 1 were not completely written"):
        WeightReader(store).refresh()


class Killed(BaseException):
    """Ends a thread where it halts."""


class SteppedThread:
    """Runs a function in a thread, from halt to halt, and only while somebody waits in `step`."""

    current = threading.local()

    def __init__(self, function: Callable[[], Any]) -> None:
        self.done, self.killed, self.result, self.error = False, False, None, None
        self._go, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        self.current.thread = self
        try:
            self._wait()
            self.result = function()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._halted.release()

    def _wait(self) -> None:
        self._go.acquire()
        if self.killed:
            raise Killed

    def step(self) -> None:
        """Go on to the next halt, or to the end."""
        self._go.release()
        self._halted.acquire()
        if self.error is not None:
            raise self.error

    def finish(self) -> Any:
        """Go on to the end."""
        while not self.done:
            self.step()
        return self.result

    def kill(self) -> None:
        """End it where it is."""
        self.killed = True
        self.finish()
        self._thread.join()

    @classmethod
    def halt(cls) -> None:
        """Called by the function: wait for the next step. In any other thread it does nothing."""
        thread: SteppedThread | None = getattr(cls.current, "thread", None)
        if thread is not None:
            thread._halted.release()
            thread._wait()


class SteppedStore(HaltingStore):
    """The real store, with halts."""

    halt = staticmethod(SteppedThread.halt)


class SteppedUnmarkedStore(UnmarkedStore):
    """Broken: a row is not marked while it is written."""

    halt = staticmethod(SteppedThread.halt)


class EarlyStore(SteppedStore):
    """Broken: the row is marked as complete before it is."""

    def publish(self, part: int, rows: NDArray[np.float32], version: int, first: int = 0) -> None:
        agents = slice(first, first + len(rows))
        self.view(part, "version")[agents] = version
        self.view(part, "sequence")[agents] += 2
        self.view(part, "rows")[agents] = rows


class NeverRepairingStore(SteppedStore):
    """Broken: assumes that the writer before did not die in the middle."""

    def publish(self, part: int, rows: NDArray[np.float32], version: int, first: int = 0) -> None:
        agents = slice(first, first + len(rows))
        self.view(part, "sequence")[agents] += 1
        self.view(part, "rows")[agents] = rows
        self.view(part, "version")[agents] = version
        self.view(part, "sequence")[agents] += 1


class TrustingReader(WeightReader):
    """Broken: does not check whether the row changed while it was copied."""

    def _copy(self, part: int, agent: int, sequence: NDArray[Any]) -> bool:
        if sequence[agent] % 2:
            return False
        self._copied[part][agent] = sequence[agent]
        self.versions[part][agent] = self.store.view(part, "version")[agent]
        self.rows[part][agent] = self.store.view(part, "rows")[agent].copy()
        return True


class HastyReader(WeightReader):
    """Broken: copies a row although it is marked as being written."""

    def _copy(self, part: int, agent: int, sequence: NDArray[Any]) -> bool:
        before = int(sequence[agent])
        row, version = self.store.view(part, "rows")[agent].copy(), self.store.view(part, "version")[agent]
        if int(sequence[agent]) != before:
            return False
        self.rows[part][agent], self.versions[part][agent], self._copied[part][agent] = row, version, before
        return True


SLICES = ((0, 0, 2), (0, 2, 3), (2, 0, 2))
"""Part, first and last agent of the rows of each writer."""
writers = st.integers(0, len(SLICES) - 1)
readers = st.integers(0, 1)


class WeightMachine(RuleBasedStateMachine):
    """Writers and readers, each in the middle of a row or not; every column of a row holds its version."""

    def __init__(self, store: type[WeightStore] = SteppedStore, reader: type[WeightReader] = WeightReader) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(weights, "_fence", SteppedThread.halt)
        self.store = store(SHAPES)
        self.readers = [reader(self.store) for _ in range(2)]
        for one in self.readers:
            one.refresh()  # a first copy would be waited for, see above
        self.before = [{part: versions.copy() for part, versions in one.versions.items()} for one in self.readers]
        self.writing: dict[int, SteppedThread] = {}
        self.reading: dict[int, SteppedThread] = {}
        self.begun = [0] * len(SLICES)
        self.complete: list[list[int]] = [[0] for _ in SLICES]  # versions that were completely written

    def teardown(self) -> None:
        for thread in (*self.writing.values(), *self.reading.values()):
            thread.kill()
        self._patch.undo()
        self.store.memory.close()

    @rule(writer=writers)
    def write_on(self, writer: int) -> None:
        """Begin a new version, or take the next step with the one under way."""
        if writer not in self.writing:
            self.begun[writer] += 1
            self.writing[writer] = SteppedThread(lambda: self._publish(writer))
        self.writing[writer].step()
        self._note_if_complete(writer)

    @rule(writer=writers)
    def write_to_the_end(self, writer: int) -> None:
        self.write_on(writer)
        if writer in self.writing:
            self.writing[writer].finish()
            self._note_if_complete(writer)

    @rule(writer=writers)
    def die(self, writer: int) -> None:
        """The writer dies; another one will write the next version."""
        if writer in self.writing:
            self.writing.pop(writer).kill()

    def _publish(self, writer: int) -> None:
        part, first, last = SLICES[writer]
        version = self.begun[writer]
        self.store.publish(part, np.full((last - first, SHAPES[part][1]), version, np.float32), version, first)

    def _note_if_complete(self, writer: int) -> None:
        if self.writing[writer].done:
            del self.writing[writer]
            self.complete[writer].append(self.begun[writer])

    @rule(reader=readers)
    def read_on(self, reader: int) -> None:
        """Begin to refresh, or take the next step with it."""
        if reader not in self.reading:
            self.reading[reader] = SteppedThread(self.readers[reader].refresh)
        self.reading[reader].step()
        if self.reading[reader].done:
            del self.reading[reader]

    @rule(reader=readers)
    def read_to_the_end(self, reader: int) -> None:
        """A refresh that nobody interrupts copies the newest version of every complete row."""
        if reader in self.reading:
            self.reading.pop(reader).finish()
        before = {part: versions.tolist() for part, versions in self.readers[reader].versions.items()}
        changed = SteppedThread(self.readers[reader].refresh).finish()
        for writer, (part, first, last) in enumerate(SLICES):
            held = self.readers[reader].versions[part][first:last].tolist()
            if self.begun[writer] == self.complete[writer][-1]:
                assert held == [self.complete[writer][-1]] * (last - first)
            assert part in changed or held == before[part][first:last]

    @invariant()
    def rows_are_of_one_version_and_never_go_back(self) -> None:
        for one, before in zip(self.readers, self.before, strict=True):
            for writer, (part, first, last) in enumerate(SLICES):
                versions = one.versions[part][first:last]
                assert (one.rows[part][first:last] == versions[:, None]).all()
                assert set(versions.tolist()) <= set(self.complete[writer])
                assert (versions >= before[part][first:last]).all()
            before.update({part: versions.copy() for part, versions in one.versions.items()})


UNTIMED = settings(deadline=None, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])


def test_a_reader_holds_complete_rows_however_it_interleaves_with_writers() -> None:
    run_state_machine_as_test(WeightMachine, settings=settings(UNTIMED, max_examples=100))


@pytest.mark.parametrize(
    ("store", "reader"),
    [
        (SteppedUnmarkedStore, WeightReader),
        (EarlyStore, WeightReader),
        (NeverRepairingStore, WeightReader),
        (SteppedStore, TrustingReader),
        (SteppedStore, HastyReader),
    ],
)
def test_the_state_machine_finds_a_broken_protocol(store: type[WeightStore], reader: type[WeightReader]) -> None:
    search = settings(UNTIMED, max_examples=1000, derandomize=True, database=None, phases=[SearchPhase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(lambda: WeightMachine(store, reader), settings=search)
