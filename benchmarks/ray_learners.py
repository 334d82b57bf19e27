"""Learners on Ray: how their number scales where updates only sleep, and how many of them one loop can feed."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from typing import Any

import remuda
from benchmarks.harness import machine
from benchmarks.sleepers import UPDATE_S, SleepingLearner

AGENTS, WORLDS, ROUNDS = 64, 8, 12
COUNTS = (1, 2, 4, 8, 16)
FIRST = 3
"""The round after which the clock starts: by then everything is loaded."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(learners: int, rounds: int) -> tuple[float, float]:
    """Seconds of wall-clock time per round, and of the first process's processor time per episode."""
    marks: list[tuple[float, float]] = []

    def note(rows: list[dict[str, Any]]) -> None:
        marks.append((time.perf_counter(), _cpu_s()))

    with tempfile.TemporaryDirectory() as folder:
        remuda.train(
            "benchmarks.sleepers:SLEEPERS", out=f"{folder}/run", quiet=True, callbacks=[note], learner=SleepingLearner,
            agents=AGENTS, worlds=WORLDS, total_episodes=WORLDS * rounds, engine="ray", n_workers=2,
            n_learners=learners, deterministic=True, lag=1, evaluate_episodes=1, pictures=False, device="cpu",
            checkpoint_every=10**6, start_limit_s=1200,
        )  # fmt: skip
    counted = len(marks) - FIRST
    (began, cpu), (ended, cpu_after) = marks[FIRST - 1], marks[-1]
    return (ended - began) / counted, (cpu_after - cpu) / (counted * WORLDS)


def main(counts: tuple[int, ...] = COUNTS) -> None:
    """Train with each number of learners, one after the other."""
    counts = tuple(map(int, sys.argv[1:])) if sys.argv[0].endswith("ray_learners.py") and sys.argv[1:] else counts
    print(f"\nLearner actors whose updates sleep: {AGENTS} agents, {UPDATE_S * 1000:.0f} ms each\n  {machine()}")
    first = 0.0
    for learners in counts:
        round_s, cpu_s = measure(learners, max(ROUNDS, FIRST + 2))
        first = first or round_s * learners
        share = cpu_s * WORLDS / round_s
        print(
            f"  {learners:3d} learners: {round_s:7.3f} s per round, {first / round_s / learners:5.2f} of linear; first "
            f"process {cpu_s * 1000:6.2f} ms per episode, {share:6.1%} of a core, enough for {learners / share:,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
