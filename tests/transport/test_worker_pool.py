"""Invariants 5 and 7 where worker processes are kept: nobody's end goes unnoticed, and no wait is without a limit."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pool_jobs
import pytest
import torch
from pool_jobs import DieAtOnce, Obey, SayNothing

import proc
from remuda.core.errors import ConfigError, GameError, Stopped, WorkerError
from remuda.transport import worker_pool as supervise
from remuda.transport.heartbeat import Heartbeats, Limits, Phase
from remuda.transport.worker_pool import RESTARTS, Worker, WorkerPool

PATIENCE_S = 60.0
SHORT_S = 0.5


@pytest.fixture(autouse=True)
def workers_need_not_import_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports the script that started it: ours would take half a second every time."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@dataclass
class Office:
    """A crew, and all that was heard of it."""

    worker_pool: WorkerPool
    heard: list[tuple[str, Any]] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def add_worker(self, job: Any, name: str) -> Worker:
        return self.worker_pool.add_worker(
            name,
            job,
            lambda worker, message: self.heard.append((worker.name, message)),
            lambda worker, last: self.lost.append((worker.name, str(last))),
        )

    def tell(self, worker: Worker, *command: Any) -> None:
        """Give a command; from now on it is waited for."""
        worker.busy = True
        self.worker_pool.send(worker, command)

    def wait(self, what: Callable[[], bool]) -> None:
        """Deal with whatever happens until it is so."""
        end = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < end, f"nothing happened; heard {self.heard}, lost {self.lost}"
            self.worker_pool.step(SHORT_S)

    def answer(self, worker: Worker, *command: Any) -> Any:
        """Give a command and wait for what comes back, however long that takes."""
        before = len(self.heard)
        self.worker_pool.send(worker, command)
        self.wait(lambda: len(self.heard) > before)
        assert self.heard[before][0] == worker.name
        return self.heard[before][1]

    def process(self, worker: Worker) -> proc.Process:
        """As the worker itself says."""
        return proc.process(self.answer(worker, "call", os.getpid))

    def processes(self) -> list[proc.Process]:
        """Everybody's."""
        return [self.process(worker) for worker in self.worker_pool.workers]


@pytest.fixture
def open_office() -> Iterator[Callable[..., Office]]:
    """Hire workers for jobs; whatever happens, they are gone after the test."""
    offices: list[Office] = []

    def start(*jobs: Any, silence_limit_s: float = PATIENCE_S, stop: Callable[[], None] = lambda: None) -> Office:
        limits = Limits(turn=silence_limit_s, update=silence_limit_s)
        office = Office(WorkerPool(stop, limits=limits))
        office.worker_pool.say = office.said.append
        for number, job in enumerate(jobs or (Obey(), Obey())):
            office.add_worker(job, f"worker-{number}")
        offices.append(office)
        return office

    yield start
    for office in offices:
        office.worker_pool.close()


@pytest.fixture
def office(open_office: Callable[..., Office]) -> Office:
    """Two workers that do as they are told."""
    office = open_office()
    office.worker_pool.start()
    return office


def test_all_are_ready_in_processes_of_their_own(office: Office) -> None:
    assert [worker.ready for worker in office.worker_pool.workers] == [True, True]
    pids = [one.pid for one in office.processes()]
    assert len({os.getpid(), *pids}) == 3
    assert pids == [worker.process.pid for worker in office.worker_pool.workers if worker.process]
    assert office.heard == [("worker-0", pids[0]), ("worker-1", pids[1])], "Ready is not a message"
    assert not office.lost


def test_starting_again_does_nothing(office: Office) -> None:
    before = office.processes()
    office.worker_pool.start()
    assert office.processes() == before


def test_workers_import_from_where_we_do(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A game of one's own lies beside the script; also a worker that is started later finds it."""
    monkeypatch.syspath_prepend("/no/such/place")
    worker = office.worker_pool.workers[0]
    office.tell(worker, "kill", signal.SIGKILL)
    office.wait(lambda: worker.ready and bool(office.lost))
    for place in ("/no/such/place", str(Path(__file__).parent)):
        assert office.answer(worker, "call", pool_jobs.imports_from, place)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ZeroDivisionError("no"), WorkerError, "worker-1: ZeroDivisionError: no"),
        (GameError("turn 3 is odd"), GameError, "worker-1: turn 3 is odd"),
        (ConfigError("a wrong size"), WorkerError, "worker-1: a wrong size"),
        # What our pipe raises when it closes may also come from a game whose own file or socket has ended.
        (EOFError("in a file of the game"), WorkerError, "worker-1: EOFError: in a file of the game"),
        (ConnectionResetError("by its server"), WorkerError, "worker-1: ConnectionResetError: by its server"),
    ],
)
def test_an_error_arrives_with_name_and_traceback(
    office: Office, error: Exception, kind: type[Exception], text: str
) -> None:
    office.tell(office.worker_pool.workers[1], "fail", error)
    with pytest.raises(kind, match=re.escape(text)) as caught:
        office.wait(lambda: bool(office.lost))
    assert type(caught.value) is kind
    trace = str(caught.value.__cause__)
    assert trace.startswith("in worker-1:\nTraceback")
    assert "in fail_deep_inside" in trace
    assert "pool_jobs.py" in trace


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("kill", signal.SIGKILL, 7), "was killed by SIGKILL (last: playing, turn 7)"),
        (("kill", signal.SIGRTMIN + 2, 9), f"was killed by signal {signal.SIGRTMIN + 2} (last: playing, turn 9)"),
        (("segfault",), "was killed by SIGSEGV (last: learning, turn 3)"),
        (("exit", 3), "ended with exit code 3 (last: taking, turn 1)"),
        (("exit", 0), "ended with exit code 0 (last: taking, turn 1)"),
    ],
)
def test_the_dead_are_replaced_and_their_end_is_told_once(
    office: Office, command: tuple[Any, ...], reason: str
) -> None:
    worker, other = office.worker_pool.workers
    before, neighbour = office.processes()
    office.tell(worker, *command)
    office.wait(lambda: bool(office.lost) and worker.ready)
    assert not before.alive
    assert office.process(worker) != before
    assert office.process(other) == neighbour
    office.worker_pool.step(SHORT_S)
    assert office.lost == [("worker-0", reason)]
    assert len(office.said) == 1
    assert office.said[0].startswith(f"worker-0 {reason}")
    assert (worker.restarts, other.restarts) == (1, 0)


def test_whoever_loses_a_worker_finds_it_replaced(open_office: Callable[..., Office]) -> None:
    """What is sent from `lose` reaches the one who comes after, although it is not ready yet."""
    office = open_office(Obey())
    worker = office.worker_pool.workers[0]
    worker.lose = lambda worker, last: office.tell(worker, "echo", str(last))
    office.worker_pool.start()
    office.tell(worker, "exit", 3)
    office.wait(lambda: bool(office.heard))
    assert office.heard == [("worker-0", "ended with exit code 3 (last: taking, turn 1)")]


@pytest.mark.parametrize("words", [1, 100])
def test_last_words_are_heard_first(office: Office, words: int) -> None:
    worker = office.worker_pool.workers[0]
    heard_when_lost: list[int] = []
    worker.lose = lambda worker, why: heard_when_lost.append(len(office.heard))
    before = office.process(worker)
    office.heard.clear()
    office.tell(worker, "kill", signal.SIGKILL, 0, words)
    proc.wait(lambda: not before.alive, PATIENCE_S)
    office.wait(lambda: bool(heard_when_lost))
    assert office.heard == [("worker-0", word) for word in range(words)]
    assert heard_when_lost == [words]


def test_a_hung_worker_is_killed_and_replaced(open_office: Callable[..., Office]) -> None:
    office = open_office(silence_limit_s=1.0)
    office.worker_pool.start()
    worker, other = office.worker_pool.workers
    before, neighbour = office.processes()
    office.tell(worker, "kill", signal.SIGSTOP, 4)
    office.wait(lambda: bool(office.lost) and worker.ready)
    ((name, why),) = office.lost
    assert name == "worker-0"
    assert re.fullmatch(r"was silent for \d+ s and was ended \(last: playing, turn 4\)", why)
    assert not before.alive
    assert office.process(worker) != before
    assert office.process(other) == neighbour, "who is not waited for may be silent"


def test_a_hung_worker_is_noticed_while_others_speak(open_office: Callable[..., Office]) -> None:
    office = open_office(silence_limit_s=1.0)
    office.worker_pool.start()
    worker, other = office.worker_pool.workers
    office.tell(other, "chatter", 0.05)
    office.tell(worker, "kill", signal.SIGSTOP, 4)
    end = time.monotonic() + 15.0
    while not office.lost:
        assert time.monotonic() < end, f"hung for {office.worker_pool.heartbeats.silence_s(0):.1f} s, and nobody looked"
        office.worker_pool.step(SHORT_S)
    assert office.lost[0][1].endswith("(last: playing, turn 4)")


def test_silence_counts_from_when_somebody_waits(open_office: Callable[..., Office]) -> None:
    office = open_office(silence_limit_s=2.0)
    office.worker_pool.start()
    worker = office.worker_pool.workers[0]
    office.wait(lambda: office.worker_pool.heartbeats.silence_s(worker.index) > 2.2)
    office.tell(worker, "rest", 0.7)
    office.wait(lambda: bool(office.heard or office.lost))
    assert not office.lost


def test_silence_while_we_did_not_listen_does_not_count(open_office: Callable[..., Office]) -> None:
    """We may learn for long between two looks, or have been stopped and continued together with everybody."""
    office = open_office(silence_limit_s=1.0)
    office.worker_pool.start()
    office.tell(office.worker_pool.workers[0], "say", 2)
    time.sleep(2.0)
    office.wait(lambda: len(office.heard) == 2 or bool(office.lost))
    assert not office.lost


def test_who_is_not_waited_for_may_be_silent(open_office: Callable[..., Office]) -> None:
    office = open_office(silence_limit_s=0.1)
    office.worker_pool.start()
    for _ in range(4):
        office.worker_pool.step(0.15)
    assert min(office.worker_pool.heartbeats.silence_s(worker.index) for worker in office.worker_pool.workers) > 0.1
    assert not office.lost


def test_a_crew_that_only_dies_is_given_up_and_leaves_nobody(open_office: Callable[..., Office]) -> None:
    office = open_office(Obey(), DieAtOnce())
    with pytest.raises(WorkerError, match=rf"worker-1 ended with exit code 7 .*; {RESTARTS} workers in a row"):
        office.worker_pool.start()
    assert [name for name, _ in office.lost] == ["worker-1"] * RESTARTS
    survivor = office.worker_pool.workers[0].process
    assert survivor is not None
    assert survivor.pid is not None
    process = proc.process(survivor.pid)
    assert process.alive
    office.worker_pool.close()
    assert not process.alive


def test_deaths_between_which_something_was_done_do_not_add_up(office: Office) -> None:
    worker, other = office.worker_pool.workers
    for _ in range(RESTARTS + 2):
        deaths = len(office.lost)
        office.tell(worker, "exit", 3)
        office.wait(lambda deaths=deaths: len(office.lost) > deaths)
        office.answer(other, "echo", "done")
    assert worker.restarts == RESTARTS + 2


def test_who_is_never_ready_is_not_waited_for_for_ever(open_office: Callable[..., Office]) -> None:
    office = open_office(SayNothing())
    office.worker_pool.limits = Limits(start=1.0)
    with pytest.raises(WorkerError, match="worker-0 did not start within 1 s: raise start_limit_s"):
        office.worker_pool.start()


def test_a_fork_server_that_died_a_moment_ago_is_tried_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dying process lets go of its socket first: until the kernel calls it dead, it is there and refuses."""
    refusals = [ConnectionRefusedError(111, "Connection refused")] * 2
    connect = multiprocessing.forkserver.connect_to_new_process

    def refuse_at_first(fds: list[int]) -> tuple[int, int]:
        if refusals:
            raise refusals.pop()
        return connect(fds)

    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", refuse_at_first)
    worker = office.worker_pool.workers[0]
    office.tell(worker, "kill", signal.SIGKILL)
    office.wait(lambda: worker.ready and bool(office.lost))
    assert office.answer(worker, "echo", "here again") == "here again"
    assert not refusals


def test_killing_the_fork_server(office: Office) -> None:
    """Everybody dies with it, and everybody is replaced from another one, with one thread each as before."""
    before = office.processes()
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    office.wait(lambda: len(office.lost) == 2 and all(worker.ready for worker in office.worker_pool.workers))
    assert not any(one.alive for one in before)
    for worker in office.worker_pool.workers:
        assert office.answer(worker, "call", pool_jobs.threads_after_products)["numpy"] == 1


def test_nobody_speaking_is_not_waited_for_longer_than_told(office: Office) -> None:
    began = time.monotonic()
    assert office.worker_pool.step(0.2) is False
    assert 0.2 <= time.monotonic() - began < PATIENCE_S


def test_waiting_ends_when_somebody_asks_us_to_stop(open_office: Callable[..., Office]) -> None:
    asked = threading.Event()

    def stop() -> None:
        if asked.is_set():
            raise Stopped("stopped")

    office = open_office(Obey(), stop=stop)
    office.worker_pool.start()
    timer = threading.Timer(0.1, asked.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        office.worker_pool.step(10 * PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S
    timer.join()


def test_closing_ends_everybody_and_may_be_done_twice(office: Office) -> None:
    before = office.processes()
    office.worker_pool.close()
    assert not any(one.alive for one in before)
    office.worker_pool.close()
    assert not office.lost, "who was told to go is not lost"


def test_closing_before_starting(open_office: Callable[..., Office]) -> None:
    open_office().worker_pool.close()


def test_closing_while_somebody_is_dead_already(office: Office) -> None:
    before = office.processes()
    os.kill(before[0].pid, signal.SIGKILL)
    office.worker_pool.close()
    assert not any(one.alive for one in before)


def test_who_does_not_listen_is_killed_when_closing(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "END_LIMIT_S", 1.0)
    before = office.processes()
    os.kill(before[0].pid, signal.SIGSTOP)
    office.worker_pool.close()
    proc.wait(lambda: not any(one.alive for one in before), PATIENCE_S)


def test_telling_the_dead_something_is_no_error(office: Office) -> None:
    worker = office.worker_pool.workers[0]
    before = office.process(worker)
    os.kill(before.pid, signal.SIGKILL)
    proc.wait(lambda: not before.alive, PATIENCE_S)
    office.heard.clear()
    for _ in range(3):
        office.tell(worker, "echo", "anybody there?")
    office.wait(lambda: bool(office.lost))
    assert not office.heard


def test_an_interrupt_does_not_reach_workers(office: Office) -> None:
    worker = office.worker_pool.workers[0]
    before = office.process(worker)
    for _ in range(3):
        os.kill(before.pid, signal.SIGINT)
        assert office.process(worker) == before
    assert not office.lost


def test_torch_has_one_thread_in_a_worker(office: Office) -> None:
    assert office.answer(office.worker_pool.workers[0], "call", torch.get_num_threads) == 1


def test_a_worker_stays_one_thread_whoever_multiplies(office: Office) -> None:
    """Invariant 7 is about torch, BLAS and numba: what counts is what the kernel sees."""
    threads = office.answer(office.worker_pool.workers[0], "call", pool_jobs.threads_after_products)
    assert threads == {"at first": 1, "torch": 1, "numpy": 1}


def test_a_pulse_has_a_row_for_everybody() -> None:
    heartbeats = Heartbeats(3)
    began = time.monotonic()
    for worker in range(3):
        heartbeats.beat(worker, Phase.STARTING)
    heartbeats.beat(1, Phase.PLAYING, 12)
    heartbeats.note_version(1, 5)
    heartbeats.note_version(2, 6)
    starting = (Phase.STARTING, 0)
    assert [heartbeats.last(worker) for worker in range(3)] == [starting, (Phase.PLAYING, 12), starting]
    assert [heartbeats.version(worker) for worker in range(3)] == [0, 5, 6]
    assert all(0 <= heartbeats.silence_s(worker) <= time.monotonic() - began for worker in range(3))
    time.sleep(0.02)
    heartbeats.beat(2, Phase.ASKING, 1)
    assert heartbeats.silence_s(0) > 0.02
    assert heartbeats.silence_s(2) < heartbeats.silence_s(0)
    heartbeats.memory.close()
    assert heartbeats.last(2) == (Phase.ASKING, 1), "the descriptor is not needed any more"


def test_a_beat_in_a_worker_is_seen_here(open_office: Callable[..., Office]) -> None:
    office = open_office(Obey(), Obey(), Obey())
    office.worker_pool.start()
    heartbeats = office.worker_pool.heartbeats
    office.answer(office.worker_pool.workers[1], "chatter", 0.01)
    expected = [(Phase.WAITING, 0), (Phase.PLAYING, 0), (Phase.WAITING, 0)]
    office.wait(lambda: [heartbeats.last(worker) for worker in range(3)] == expected)
    before = time.monotonic()
    office.wait(lambda: time.monotonic() - heartbeats.silence_s(1) > before)
    assert heartbeats.silence_s(0) > heartbeats.silence_s(1)
