"""Transport: bytes through the pipes, fragments and weights compared with a plain copy, the cost of workers.

Microseconds are of processor time. A hand-over is measured with both of its sides in one process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Claim, compare, machine, rate
from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import LearnerContext
from remuda.core.machine import family
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.messages import PlayTask, TaskPlayed
from remuda.engines.collectors.pool import LOOP
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Collectors, Trainers
from remuda.engines.table import find_engine
from remuda.games.registry import find_game
from remuda.learners.herd import assign
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.options import IQNOptions
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.runs.settings import make_plan, spec_of
from remuda.runs.training import train
from remuda.transport.slots import SlotArray, SlotLayout, SlotOwners
from remuda.transport.weights import WeightReader, WeightStore
from remuda.transport.worker_pool import WorkerPool

SECONDS = 0.5
REPEATS = 7
AGENTS = 10
WORLDS = 8  # in a task
SLOTS = 4
POOL_SIZES = (2, 100)
POOL_REPEATS = 3
COUNTED_EPISODES = 40
COUNTED_ENGINES = ("executor", "actor-learner", "sync")


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Counts the bytes of every message that this process sends or receives, by type."""
    sizes: Counter[str] = Counter()
    send, recv = Connection.send, Connection.recv

    def count(message: Any) -> None:
        sizes[type(message).__name__] += len(ForkingPickler.dumps(message))

    def counted_send(self: Connection, message: Any) -> None:
        count(message)
        send(self, message)

    def counted_recv(self: Connection) -> Any:
        message = recv(self)
        count(message)
        return message

    with patch.object(Connection, "send", counted_send), patch.object(Connection, "recv", counted_recv):
        yield sizes


def count_bytes() -> None:
    """Train with one episode per task, the worst case, and print the bytes that went through the pipes."""
    group = make_game(find_game("treasurehunt"), {}, [0]).spec.groups[0]
    obs = 100 * group.size * int(np.prod(group.obs_shape)) * np.dtype(group.obs_dtype).itemsize
    print(f"\nBytes pickled per episode, Treasurehunt, one episode per task, both directions\n  {machine()}")
    print(f"  (the observations of an episode alone: {obs:,} bytes)")
    tested = 2
    for engine in COUNTED_ENGINES:
        with tempfile.TemporaryDirectory() as folder, counting() as sizes:
            train(
                "treasurehunt", engine=engine, n_workers=2, worlds=2, layer=16, total_episodes=COUNTED_EPISODES,
                evaluate_episodes=tested, pictures=False, device="cpu", out=f"{folder}/run", quiet=True,
            )  # fmt: skip
        episodes = COUNTED_EPISODES + tested
        each = ", ".join(f"{name} {size / episodes:,.0f}" for name, size in sizes.most_common() if size >= episodes)
        print(f"  {engine}: {sum(sizes.values()) / episodes:,.0f} bytes ({each})")


def micros(work: Callable[[], object], times: int = 1) -> Callable[[], float]:
    """Microseconds of processor time for one call."""

    def several() -> int:
        for _ in range(times):
            work()
        return times

    return lambda: 1e6 / rate(several, SECONDS)


def arrays(fragment: Fragment) -> list[NDArray[Any]]:
    """All arrays of a fragment."""
    values = [getattr(fragment, field.name) for field in fields(fragment)]
    return [array for array in [*values, *fragment.extras.values()] if isinstance(array, np.ndarray)]


def compare_fragments() -> None:
    """A filled slot from a worker to a learner, compared with copying as many bytes."""
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS}, range(WORLDS))
    group, config, task = game.spec.groups[0], RolloutConfig(0, WORLDS), Task(tuple(range(WORLDS)))
    policy = IQN.make_policy(group, AGENTS, IQNOptions(), "fp32", "cpu")
    slot_array = SlotArray(SlotLayout.of(game.spec, [PolicyBinding(0, 0, AGENTS, policy)], WORLDS), SLOTS)
    owners, rollout = SlotOwners(SLOTS), Rollout(game, random_bindings(game), config)
    for slot in range(SLOTS):
        rollout.start(task)
        rollout.play(slot_array.fragments(slot, task, config))
    filled = slot_array.fragments(0, task, config)[0]
    copies = [np.zeros_like(array) for array in arrays(filled)]
    size = sum(array.nbytes for array in copies)
    block, learner = (
        np.zeros(size, np.uint8),
        IQN(LearnerContext(group, 0, 0, AGENTS, 0, 0, 100, WORLDS, 1000), IQNOptions()),
    )
    ours, theirs = multiprocessing.Pipe()
    slots = [
        np.frombuffer(slot_array.memory.buffer, np.uint8, size, slot * slot_array.layout.slot_bytes)
        for slot in range(SLOTS)
    ]
    turn = 0

    def pass_on(take: Callable[[Fragment], object]) -> Callable[[], None]:
        def work() -> None:
            token = owners.acquire("worker")
            ours.send(PlayTask(token, task))
            request = theirs.recv()
            slot_array.fragments(request.token.slot, request.task, config)  # what the worker fills
            theirs.send(TaskPlayed(token, filled.turns, 0.0, 0.0, 0, []))
            played = ours.recv()
            owners.transfer(token, "worker", LOOP)
            take(slot_array.fragments(token.slot, task, config, played.turns)[0])
            owners.release(token, LOOP)

        return work

    def copy_arrays(fragment: Fragment) -> None:
        for target, source in zip(copies, arrays(fragment), strict=True):
            np.copyto(target, source)

    def copy_block() -> None:
        nonlocal turn
        turn = (turn + 1) % SLOTS
        np.copyto(block, slots[turn])

    compare(
        f"A fragment of {WORLDS} episodes of {AGENTS} agents ({size:,} bytes) from a worker to a learner",
        {
            "hand-over and copy": micros(pass_on(copy_arrays)),
            "a plain copy of the same bytes": micros(copy_block),
            "hand-over alone": micros(pass_on(lambda fragment: None)),
            "hand-over and IQN's replay buffer": micros(pass_on(learner.take)),
        },
        [
            Claim("hand-over and copy over a plain copy", "hand-over and copy", "a plain copy of the same bytes"),
            Claim("hand-over alone over a plain copy", "hand-over alone", "a plain copy of the same bytes"),
        ],
        "µs",
        REPEATS,
    )


def compare_weights() -> None:
    """Publishing and reading rows of the default network, compared with copying them."""
    group = make_game(find_game("treasurehunt"), {"agents": AGENTS}, [0]).spec.groups[0]
    rows = IQN.make_policy(group, AGENTS, IQNOptions(), "fp32", "cpu").rows.copy()
    store, still, copies = WeightStore({0: rows.shape}), WeightStore({0: rows.shape}), np.zeros_like(rows)
    reader, idle = WeightReader(store), WeightReader(still)
    still.publish(0, rows, 0)
    idle.refresh()

    def read_anew() -> float:
        """Microseconds of a refresh; the publishing is not timed."""
        spent, calls = 0.0, 0
        while spent < SECONDS:
            store.publish(0, rows, 0)
            began = time.process_time()
            reader.refresh()
            spent += time.process_time() - began
            calls += 1
        return 1e6 * spent / calls

    copy = "a plain copy of the same bytes"
    compare(
        f"Weights of {AGENTS} agents ({rows.nbytes:,} bytes), default networks",
        {
            "publish": micros(lambda: store.publish(0, rows, 1)),
            copy: micros(lambda: np.copyto(copies, rows)),
            "refresh, every row moved": read_anew,
            "refresh, nothing moved": micros(idle.refresh, 100),
        },
        [
            Claim("publish over a plain copy (wanted at most 1.5)", "publish", copy),
            Claim("refresh over a plain copy, every row moved", "refresh, every row moved", copy),
            Claim("refresh over a plain copy, nothing moved (wanted about 0)", "refresh, nothing moved", copy),
        ],
        "µs",
        REPEATS,
    )


def build_pool(workers: int) -> tuple[Collectors, Trainers]:
    """Collectors and trainers of the executor engine on Treasurehunt with default settings, one world per worker."""
    plan = make_plan({"game": "treasurehunt", "engine": "executor", "worlds": workers, "n_workers": workers})
    spec, worker_pool = spec_of(plan), WorkerPool(lambda: None, warm_up_request=warm_up_request(plan, spec_of(plan)))
    context = EngineContext(plan, spec, assign(plan, spec), "cpu", lambda: None, worker_pool, Path())
    return find_engine("executor").build(context)


def descendants() -> list[int]:
    """All processes below this one."""
    return [pid for pid in family(os.getpid()) if pid != os.getpid()]


def pss_mib() -> float:
    """Proportional memory (PSS) of all processes below this one."""
    total = 0
    for pid in descendants():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # ended meanwhile
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def measure_pool(workers: int) -> None:
    """Start, use and close a worker pool in this process; print the times and memory as JSON."""
    took: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        took[name] = time.perf_counter() - began

    with one_thread_each():
        first, _ = build_pool(1)
        with timed("first"):
            first.start()
        first.close()
        server = pss_mib()
        pool, trainers = build_pool(workers)
        with timed("start"):
            pool.start()
        took["ready"] = (pss_mib() - server) / workers
        pool.publish(trainers.rows(), 0)
        for episode in range(workers):
            pool.send(Task((episode,)))
        for _ in range(workers):
            pool.recv(timeout_s=600).release()
        took["played"] = (pss_mib() - server) / workers
        with timed("stop"):
            pool.close()
    print(json.dumps({**took, "server": server, "left": len(descendants())}))


def report_pools() -> None:
    """Print seconds and memory of workers; each pool is measured in its own process."""
    print(f"\nWorkers of a pool on Treasurehunt, default settings, medians of {POOL_REPEATS}\n  {machine()}")
    for workers in POOL_SIZES:
        results = []
        for _ in range(POOL_REPEATS):
            code = f"from benchmarks.transport import measure_pool; measure_pool({workers})"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
        median = {name: statistics.median(result[name] for result in results) for name in results[0]}
        starts, stops = [[result[name] for result in results] for name in ("start", "stop")]
        print(
            f"  {workers} workers: start {median['start']:.2f} s ({min(starts):.2f} to {max(starts):.2f}), "
            f"stop {median['stop']:.2f} s ({min(stops):.2f} to {max(stops):.2f}), memory per worker "
            f"{median['ready']:.1f} MiB when ready and {median['played']:.1f} MiB after an episode"
        )
        print(
            f"    before that, once: the fork server with all imports and a first worker {median['first']:.2f} s, "
            f"{median['server']:.0f} MiB"
        )


def main() -> None:
    """Print the tables."""
    with one_thread_each():
        count_bytes()
        compare_fragments()
        compare_weights()
    report_pools()
