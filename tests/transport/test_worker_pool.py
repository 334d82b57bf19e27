"""Invariants 5 and 7 for worker processes: every end of a worker is noticed, and every wait has a limit."""

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
from types import SimpleNamespace
from typing import Any

import pool_jobs
import pytest
import torch
from pool_jobs import CommandJob, ExitJob, NeverReadyJob

import proc
from remuda.core.capabilities import has_parent_death_signal
from remuda.core.errors import ConfigError, GameError, Stopped, WorkerError
from remuda.transport import heartbeat, worker_pool
from remuda.transport.heartbeat import Heartbeats, Limits, Phase
from remuda.transport.worker_pool import MAX_FAILED_RESTARTS, Worker, WorkerPool

PATIENCE_S = 60.0
SHORT_S = 0.5


@pytest.fixture(autouse=True)
def workers_need_not_import_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports the script that started it; for pytest that takes half a second every time."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@dataclass
class PoolUnderTest:
    """A worker pool, and everything it reported."""

    worker_pool: WorkerPool
    messages: list[tuple[str, Any]] = field(default_factory=list)  # name of the worker, message
    exits: list[tuple[str, str]] = field(default_factory=list)  # name of the worker, how it ended
    console: list[str] = field(default_factory=list)

    def add_worker(self, job: Any, name: str) -> Worker:
        return self.worker_pool.add_worker(
            name,
            job,
            lambda worker, message: self.messages.append((worker.name, message)),
            lambda worker, worker_exit: self.exits.append((worker.name, str(worker_exit))),
        )

    @property
    def workers(self) -> list[Worker]:
        return self.worker_pool.workers

    def command(self, worker: Worker, *command: Any) -> None:
        """Send a command; from now on the worker is busy."""
        worker.busy = True
        self.worker_pool.send(worker, command)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Step the pool until it is so."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"nothing happened; messages {self.messages}, exits {self.exits}"
            self.worker_pool.step(SHORT_S)

    def ask(self, worker: Worker, *command: Any) -> Any:
        """Send a command and wait for the reply, however long that takes."""
        before = len(self.messages)
        self.worker_pool.send(worker, command)
        self.wait_for(lambda: len(self.messages) > before)
        assert self.messages[before][0] == worker.name
        return self.messages[before][1]

    def process(self, worker: Worker) -> proc.Process:
        """The process of a worker, as the worker itself reports it."""
        return proc.process(self.ask(worker, "call", os.getpid))

    def processes(self) -> list[proc.Process]:
        """The processes of all workers."""
        return [self.process(worker) for worker in self.workers]


@pytest.fixture
def make_pool() -> Iterator[Callable[..., PoolUnderTest]]:
    """Make a pool with workers for these jobs; its processes are gone after the test, whatever happens."""
    pools: list[PoolUnderTest] = []

    def make(
        *jobs: Any, heartbeat_limit_s: float = PATIENCE_S, stop: Callable[[], None] = lambda: None
    ) -> PoolUnderTest:
        limits = Limits(turn=heartbeat_limit_s, update=heartbeat_limit_s)
        pool = PoolUnderTest(WorkerPool(stop, limits=limits))
        pool.worker_pool.say = pool.console.append
        for number, job in enumerate(jobs or (CommandJob(), CommandJob())):
            pool.add_worker(job, f"worker-{number}")
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.worker_pool.close()


@pytest.fixture
def pool(make_pool: Callable[..., PoolUnderTest]) -> PoolUnderTest:
    """A started pool of two workers that run commands."""
    pool = make_pool()
    pool.worker_pool.start()
    return pool


def test_all_workers_are_ready_in_processes_of_their_own(pool: PoolUnderTest) -> None:
    assert [worker.ready for worker in pool.workers] == [True, True]
    pids = [one.pid for one in pool.processes()]
    assert len({os.getpid(), *pids}) == 3
    assert pids == [worker.process.pid for worker in pool.workers if worker.process]
    assert pool.messages == [("worker-0", pids[0]), ("worker-1", pids[1])], "Ready is not a message"
    assert not pool.exits


def test_starting_again_does_nothing(pool: PoolUnderTest) -> None:
    before = pool.processes()
    pool.worker_pool.start()
    assert pool.processes() == before


def test_workers_import_from_where_we_do(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's game may lie beside the script; also a worker that is started later finds it."""
    monkeypatch.syspath_prepend("/no/such/place")
    worker = pool.workers[0]
    pool.command(worker, "kill", signal.SIGKILL)
    pool.wait_for(lambda: worker.ready and bool(pool.exits))
    for folder in ("/no/such/place", str(Path(__file__).parent)):
        assert pool.ask(worker, "call", pool_jobs.imports_from, folder)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ZeroDivisionError("no"), WorkerError, "worker-1: ZeroDivisionError: no"),
        (GameError("turn 3 is odd"), GameError, "worker-1: turn 3 is odd"),
        (ConfigError("a wrong size"), WorkerError, "worker-1: a wrong size"),
        # Errors that our pipe raises when it closes may also come from a game, over its own file or socket.
        (EOFError("in a file of the game"), WorkerError, "worker-1: EOFError: in a file of the game"),
        (ConnectionResetError("by its server"), WorkerError, "worker-1: ConnectionResetError: by its server"),
    ],
)
def test_an_error_arrives_with_name_and_traceback(
    pool: PoolUnderTest, error: Exception, kind: type[Exception], text: str
) -> None:
    pool.command(pool.workers[1], "fail", error)
    with pytest.raises(kind, match=re.escape(text)) as caught:
        pool.wait_for(lambda: bool(pool.exits))
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
def test_a_worker_that_ends_is_replaced_and_its_end_is_reported_once(
    pool: PoolUnderTest, command: tuple[Any, ...], reason: str
) -> None:
    worker, other = pool.workers
    before, neighbour = pool.processes()
    pool.command(worker, *command)
    pool.wait_for(lambda: bool(pool.exits) and worker.ready)
    assert not before.alive
    assert pool.process(worker) != before
    assert pool.process(other) == neighbour
    pool.worker_pool.step(SHORT_S)
    assert pool.exits == [("worker-0", reason)]
    assert len(pool.console) == 1
    assert pool.console[0].startswith(f"worker-0 {reason}")
    assert (worker.restarts, other.restarts) == (1, 0)


def test_a_lost_worker_is_replaced_before_its_loss_is_reported(make_pool: Callable[..., PoolUnderTest]) -> None:
    """What is sent from `on_worker_lost` reaches the replacement, although it is not ready yet."""
    pool = make_pool(CommandJob())
    worker = pool.workers[0]
    worker.on_worker_lost = lambda worker, worker_exit: pool.command(worker, "echo", str(worker_exit))
    pool.worker_pool.start()
    pool.command(worker, "exit", 3)
    pool.wait_for(lambda: bool(pool.messages))
    assert pool.messages == [("worker-0", "ended with exit code 3 (last: taking, turn 1)")]


@pytest.mark.parametrize("messages", [1, 100])
def test_messages_of_a_dead_worker_are_received_before_its_loss_is_reported(pool: PoolUnderTest, messages: int) -> None:
    worker = pool.workers[0]
    received_when_lost: list[int] = []
    worker.on_worker_lost = lambda worker, worker_exit: received_when_lost.append(len(pool.messages))
    before = pool.process(worker)
    pool.messages.clear()
    pool.command(worker, "kill", signal.SIGKILL, 0, messages)
    proc.wait(lambda: not before.alive, PATIENCE_S)
    pool.wait_for(lambda: bool(received_when_lost))
    assert pool.messages == [("worker-0", number) for number in range(messages)]
    assert received_when_lost == [messages]


def test_a_hung_worker_is_killed_and_replaced(make_pool: Callable[..., PoolUnderTest]) -> None:
    pool = make_pool(heartbeat_limit_s=1.0)
    pool.worker_pool.start()
    worker, other = pool.workers
    before, neighbour = pool.processes()
    pool.command(worker, "kill", signal.SIGSTOP, 4)
    pool.wait_for(lambda: bool(pool.exits) and worker.ready)
    ((name, reason),) = pool.exits
    assert name == "worker-0"
    assert re.fullmatch(r"sent no heartbeat for \d+ s and was killed \(last: playing, turn 4\)", reason)
    assert not before.alive
    assert pool.process(worker) != before
    assert pool.process(other) == neighbour, "a worker that is not busy needs no heartbeats"


def test_a_hung_worker_is_replaced_while_others_send_messages(make_pool: Callable[..., PoolUnderTest]) -> None:
    pool = make_pool(heartbeat_limit_s=1.0)
    pool.worker_pool.start()
    worker, other = pool.workers
    pool.command(other, "send_for_ever", 0.05)
    pool.command(worker, "kill", signal.SIGSTOP, 4)
    pool.wait_for(lambda: bool(pool.exits))
    assert pool.exits[0][1].endswith("(last: playing, turn 4)")


def test_the_age_of_a_heartbeat_counts_from_when_the_worker_became_busy(
    make_pool: Callable[..., PoolUnderTest],
) -> None:
    pool = make_pool(heartbeat_limit_s=2.0)
    pool.worker_pool.start()
    worker = pool.workers[0]
    pool.wait_for(lambda: pool.worker_pool.heartbeats.seconds_since_beat(worker.index) > 2.2)
    pool.command(worker, "sleep", 0.7)
    pool.wait_for(lambda: bool(pool.messages or pool.exits))
    assert not pool.exits


def test_the_age_of_a_heartbeat_does_not_count_while_the_pool_was_not_stepped(
    make_pool: Callable[..., PoolUnderTest],
) -> None:
    """The loop may learn for long between two steps, or be stopped and continued together with its workers."""
    pool = make_pool(heartbeat_limit_s=1.0)
    pool.worker_pool.start()
    pool.command(pool.workers[0], "send", 2)
    time.sleep(2.0)
    pool.wait_for(lambda: len(pool.messages) == 2 or bool(pool.exits))
    assert not pool.exits


def test_a_worker_that_is_not_busy_needs_no_heartbeats(make_pool: Callable[..., PoolUnderTest]) -> None:
    pool = make_pool(heartbeat_limit_s=0.1)
    pool.worker_pool.start()
    for _ in range(4):
        pool.worker_pool.step(0.15)
    assert min(pool.worker_pool.heartbeats.seconds_since_beat(worker.index) for worker in pool.workers) > 0.1
    assert not pool.exits


def test_workers_that_only_end_are_given_up_and_no_process_is_left(make_pool: Callable[..., PoolUnderTest]) -> None:
    pool = make_pool(CommandJob(), ExitJob())
    with pytest.raises(
        WorkerError, match=rf"worker-1 ended with exit code 7 .*; {MAX_FAILED_RESTARTS} workers in a row"
    ):
        pool.worker_pool.start()
    assert [name for name, _ in pool.exits] == ["worker-1"] * MAX_FAILED_RESTARTS
    survivor = pool.workers[0].process
    assert survivor is not None
    assert survivor.pid is not None
    process = proc.process(survivor.pid)
    assert process.alive
    pool.worker_pool.close()
    assert not process.alive


def test_ends_with_messages_in_between_do_not_add_up(pool: PoolUnderTest) -> None:
    worker, other = pool.workers
    for _ in range(MAX_FAILED_RESTARTS + 2):
        exits = len(pool.exits)
        pool.command(worker, "exit", 3)
        pool.wait_for(lambda exits=exits: len(pool.exits) > exits)
        pool.ask(other, "echo", "done")
    assert worker.restarts == MAX_FAILED_RESTARTS + 2


def test_a_worker_that_is_never_ready_is_not_waited_for_for_ever(make_pool: Callable[..., PoolUnderTest]) -> None:
    pool = make_pool(NeverReadyJob())
    pool.worker_pool.limits = Limits(start=1.0)
    with pytest.raises(WorkerError, match="worker-0 did not start within 1 s: raise start_limit_s"):
        pool.worker_pool.start()


@proc.with_fork_server
def test_a_fork_server_that_has_just_died_is_tried_again(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dying process closes its socket first: until the kernel reports it dead, it refuses connections."""
    refusals = [ConnectionRefusedError(111, "Connection refused")] * 2
    connect = multiprocessing.forkserver.connect_to_new_process

    def refuse_at_first(fds: list[int]) -> tuple[int, int]:
        if refusals:
            raise refusals.pop()
        return connect(fds)

    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", refuse_at_first)
    worker = pool.workers[0]
    pool.command(worker, "kill", signal.SIGKILL)
    pool.wait_for(lambda: worker.ready and bool(pool.exits))
    assert pool.ask(worker, "echo", "here again") == "here again"
    assert not refusals


@proc.with_fork_server
@pytest.mark.promise
def test_killing_the_fork_server(pool: PoolUnderTest) -> None:
    """All workers die with it, and are replaced from another one, with one thread each as before."""
    before = pool.processes()
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    pool.wait_for(lambda: len(pool.exits) == 2 and all(worker.ready for worker in pool.workers))
    assert not any(one.alive for one in before)
    for worker in pool.workers:
        assert pool.ask(worker, "call", pool_jobs.threads_after_products)["numpy"] == 1


def test_a_step_waits_for_a_message_and_not_without_end(pool: PoolUnderTest) -> None:
    assert pool.worker_pool.step(0.2) is False
    pool.worker_pool.send(pool.workers[0], ("sleep", 0.2))
    assert pool.worker_pool.step(PATIENCE_S) is True
    assert pool.messages == [("worker-0", "slept")]


def test_a_step_ends_when_a_stop_is_requested(make_pool: Callable[..., PoolUnderTest]) -> None:
    requested = threading.Event()

    def stop() -> None:
        if requested.is_set():
            raise Stopped("stopped")

    pool = make_pool(CommandJob(), stop=stop)
    pool.worker_pool.start()
    timer = threading.Timer(0.1, requested.set)
    timer.start()
    with pytest.raises(Stopped):
        pool.worker_pool.step(PATIENCE_S)
    timer.join()


def test_closing_ends_all_workers_and_may_be_done_twice(pool: PoolUnderTest) -> None:
    before = pool.processes()
    pool.worker_pool.close()
    assert not any(one.alive for one in before)
    pool.worker_pool.close()
    assert not pool.exits, "a worker that was asked to end is not lost"


def test_closing_before_starting(make_pool: Callable[..., PoolUnderTest]) -> None:
    make_pool().worker_pool.close()


def test_closing_when_a_worker_is_dead_already(pool: PoolUnderTest) -> None:
    before = pool.processes()
    os.kill(before[0].pid, signal.SIGKILL)
    pool.worker_pool.close()
    assert not any(one.alive for one in before)


def test_a_worker_that_does_not_end_is_killed_when_closing(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "EXIT_LIMIT_S", 1.0)
    before = pool.processes()
    os.kill(before[0].pid, signal.SIGSTOP)
    pool.worker_pool.close()
    proc.wait(lambda: not any(one.alive for one in before), PATIENCE_S)


def test_sending_to_a_dead_worker_is_no_error(pool: PoolUnderTest) -> None:
    worker = pool.workers[0]
    before = pool.process(worker)
    os.kill(before.pid, signal.SIGKILL)
    proc.wait(lambda: not before.alive, PATIENCE_S)
    pool.messages.clear()
    for _ in range(3):
        pool.command(worker, "echo", "are you there?")
    pool.wait_for(lambda: bool(pool.exits))
    assert not pool.messages


def test_an_interrupt_does_not_reach_workers(pool: PoolUnderTest) -> None:
    worker = pool.workers[0]
    before = pool.process(worker)
    for _ in range(3):
        os.kill(before.pid, signal.SIGINT)
        assert pool.process(worker) == before
    assert not pool.exits


def test_torch_has_one_thread_in_a_worker(pool: PoolUnderTest) -> None:
    assert pool.ask(pool.workers[0], "call", torch.get_num_threads) == 1


def test_a_worker_has_one_thread_whatever_library_multiplies(pool: PoolUnderTest) -> None:
    """Invariant 7 is about torch, BLAS and numba: the kernel counts the threads."""
    threads = pool.ask(pool.workers[0], "call", pool_jobs.threads_after_products)
    own = 1 if has_parent_death_signal() else 2  # one watches the parent where the kernel does not
    assert threads == {"before": own, "torch": own, "numpy": own}


def test_every_worker_has_its_own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    heartbeats = Heartbeats(3)
    for worker in range(3):
        heartbeats.beat(worker, Phase.STARTING)
    now = 103.0
    heartbeats.beat(1, Phase.PLAYING, 12)
    starting = (Phase.STARTING, 0)
    assert [heartbeats.last_beat(worker) for worker in range(3)] == [starting, (Phase.PLAYING, 12), starting]
    now = 104.0
    assert [heartbeats.seconds_since_beat(worker) for worker in range(3)] == [4.0, 1.0, 4.0]
    heartbeats.beat(2, Phase.AWAITING_ACTIONS, 1)
    assert [heartbeats.seconds_since_beat(worker) for worker in range(3)] == [4.0, 1.0, 0.0]
    heartbeats.memory.close()
    assert heartbeats.last_beat(2) == (Phase.AWAITING_ACTIONS, 1), "the memory stays without the descriptor"


def test_the_parent_reads_a_workers_heartbeat(make_pool: Callable[..., PoolUnderTest]) -> None:
    pool = make_pool(CommandJob(), CommandJob(), CommandJob())
    pool.worker_pool.start()
    heartbeats = pool.worker_pool.heartbeats
    pool.ask(pool.workers[1], "send_for_ever", 0.01)
    expected = [(Phase.WAITING, 0), (Phase.PLAYING, 0), (Phase.WAITING, 0)]
    pool.wait_for(lambda: [heartbeats.last_beat(worker) for worker in range(3)] == expected)
    before = time.monotonic()
    pool.wait_for(lambda: time.monotonic() - heartbeats.seconds_since_beat(1) > before)
    assert heartbeats.seconds_since_beat(0) > heartbeats.seconds_since_beat(1)
