"""Engines on games whose turns cost real time, asleep or on the processor: what share of the ideal rate they reach.

Every run is its own process. Its rate is computed from its metrics, between two learned rounds; it includes playing,
learning and recording. The beginning is left out, in which workers start, load compiled code and play their first
episodes at the same rate. For engines that run free the end is left out too: after the last task is sent, workers run
out of work one by one. Free engines are measured from 4 episodes per worker on average to 2 before the end, which is
when the last tasks are sent. That is a whole number of episodes per worker, since episodes end in waves. Engines that
wait by round are measured over whole rounds, including their waiting.

A sleeping turn counts by the length drawn for it, in units of the mean. So a lucky draw, or short episodes that finish
first, do not count as speed. If no worker ever waited, the rate would be worlds / mean. (In a simulation of 100 workers
that never wait this measure gives 1.000 of that rate, sd 0.02, whether they start together or within 10 s. With 10
workers the sd is 0.05, so small trials prove nothing.)
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Claim, compare, remuda
from remuda.core.game import make_game
from remuda.core.task import Task
from remuda.engines.collectors.task_size import TASKS_PER_WORKER
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.runs.callbacks.tables import Table
from remuda.runs.run import Run
from remuda.testing import BUSY

NETWORK = ("learner=iqn", "layer=16", "frames=1", "device=cpu")
QUIET = ("pictures=false", "evaluate_episodes=1", "checkpoint_every=1000000")

WORLDS = 100
MEAN_MS = 100.0
TURNS = 20
ROUND = 20  # episodes, for engines that run free; the others have all worlds in a round, so that every worker has work
FREE_EPISODES = 10 * WORLDS
SETTLED = 4  # episodes per worker after which engines that run free are measured
ROUNDS = 3  # of engines that wait by round; the first is not measured
REPEATS = 3

CORES = 2
WORK = 100_000  # steps of plain Python per turn: 5 to 10 ms, about four times the original CAGE 2 simulator
BUSY_TURNS = 25
BUSY_EPISODES = 60
BARE_SECONDS = 5.0
BUSY_REPEATS = 5


def train(*words: str) -> Table:
    """Train in its own process; returns the metrics."""
    with tempfile.TemporaryDirectory() as folder:
        remuda("train", *words, *NETWORK, *QUIET, "--out", f"{folder}/run")
        return Run(f"{folder}/run").metrics


def between(table: Table, first: int, last: int) -> tuple[slice, float]:
    """The rounds learned after `first` episodes and up to `last`, and the seconds between."""
    begin, end = np.searchsorted(table["episodes"], [first, last])
    return slice(begin + 1, end + 1), table["wall_s"][end] - table["wall_s"][begin]


def slow_turns(firsts: list[float], episodes: int, first: int, last: int, *words: str) -> Callable[[], float]:
    """Turns of mean length per second, each time with another seed; `firsts` collects the times of first rounds."""

    def measure() -> float:
        plan = (f"worlds={WORLDS}", f"n_workers={WORLDS}", f"turns={TURNS}", f"mean_ms={MEAN_MS}")
        table = train("remuda.testing:SLOW", *plan, f"total_episodes={episodes}", f"seed={len(firsts)}", *words)
        firsts.append(float(table["wall_s"][0]))
        rounds, seconds = between(table, first, last)
        sizes = np.diff(table["episodes"], prepend=0)
        drawn_s = float((table["asleep_s"] * sizes)[rounds].sum())
        return drawn_s * 1000 / MEAN_MS / seconds

    return measure


def compare_slow() -> None:
    """Compare four engines with the ideal rate."""
    ideal = WORLDS * 1000 / MEAN_MS
    firsts: dict[str, list[float]] = {name: [] for name in ("executor", "actor-learner", "sync, wait_for 0.5", "sync")}
    free = (FREE_EPISODES, SETTLED * WORLDS, FREE_EPISODES - TASKS_PER_WORKER * WORLDS)
    waiting = (ROUNDS * WORLDS, WORLDS, ROUNDS * WORLDS)
    update = f"episodes_per_update={ROUND}"
    compare(
        f"Turns of {MEAN_MS:.0f} ms on average, asleep, now and then 500 ms; {WORLDS} worlds, {WORLDS} workers",
        {
            "executor": slow_turns(firsts["executor"], *free, "engine=executor", update),
            "actor-learner": slow_turns(firsts["actor-learner"], *free, "engine=actor-learner", update),
            "sync, wait_for 0.5": slow_turns(firsts["sync, wait_for 0.5"], *waiting, "engine=sync", "wait_for=0.5"),
            "sync": slow_turns(firsts["sync"], *waiting, "engine=sync"),
            "ideal: no worker ever waits (a constant)": lambda: ideal,
        },
        [
            Claim("executor over ideal", "executor", "ideal: no worker ever waits (a constant)", 0.9),
            Claim("actor-learner over ideal", "actor-learner", "ideal: no worker ever waits (a constant)", 0.9),
            Claim("sync over ideal", "sync", "ideal: no worker ever waits (a constant)"),
            Claim("sync, wait_for 0.5, over sync", "sync, wait_for 0.5", "sync"),
        ],
        "turns/s",
        REPEATS,
    )
    for name, seconds in firsts.items():
        size = ROUND if name in ("executor", "actor-learner") else WORLDS
        print(
            f"  {name}: first round ({size} episodes) learned after {statistics.median(seconds):.1f} s, start included"
        )


def play_bare(seconds: float) -> float:
    """Turns per second of random play alone."""
    game = make_game(BUSY, {"work": WORK, "turns": BUSY_TURNS}, [0])
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 1))
    began, episodes = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        rollout.start(Task((episodes,)))
        rollout.play(rollout.empty_fragments())
        episodes += 1
    return episodes * BUSY_TURNS / (time.perf_counter() - began)


def busy_turns() -> float:
    """Turns per second of the executor engine, which also learns."""
    plan = (f"worlds={CORES}", f"n_workers={CORES}", f"turns={BUSY_TURNS}", f"work={WORK}")
    table = train("remuda.testing:BUSY", *plan, f"total_episodes={BUSY_EPISODES}", "engine=executor")
    rounds, seconds = between(table, SETTLED * CORES, BUSY_EPISODES - TASKS_PER_WORKER * CORES)
    return float((rounds.stop - rounds.start) * CORES * BUSY_TURNS / seconds)


def compare_busy() -> None:
    """Compare two workers of a learning run with two processes that only play."""
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:

        def bare() -> float:
            return sum(pool.map(play_bare, [BARE_SECONDS] * CORES, chunksize=1))

        compare(
            f"Turns of {WORK:,} steps of plain Python, {CORES} workers on {CORES} cores",
            {"executor, learning": busy_turns, "two bare processes, only playing": bare},
            [Claim("executor over bare processes", "executor, learning", "two bare processes, only playing", 0.9)],
            "turns/s",
            BUSY_REPEATS,
        )


def main() -> None:
    """Print the tables."""
    compare_slow()
    compare_busy()
