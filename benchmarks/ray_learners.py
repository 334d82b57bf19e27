"""Learners on Ray: how their number scales where updates only sleep, and how many of them one loop can feed."""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

import remuda
from benchmarks.harness import machine
from benchmarks.shared_learners import learners_that_share
from benchmarks.sleepers import UPDATE_S, SleepingLearner

AGENTS, WORLDS = 64, 4
COUNTS = (1, 2, 4, 8, 16)
FED = (16, 100, 1000)
"""Learners that share few processes, to see what more of them cost the first process."""
FIRST = 3
"""The round after which the clock starts: by then everything is loaded."""
MEASURED_S = 12.0
"""Seconds of rounds to measure, if updates took all the time; at least three rounds."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(learners: int, rounds: int, agents: int = AGENTS, **settings: Any) -> tuple[list[float], float]:
    """Seconds that each round took, and of the first process's processor time per round."""
    marks: list[tuple[float, float]] = []

    def note(rows: list[dict[str, Any]]) -> None:
        marks.append((time.perf_counter(), _cpu_s()))

    with tempfile.TemporaryDirectory() as folder:
        remuda.train(
            "benchmarks.sleepers:SLEEPERS", out=f"{folder}/run", quiet=True, callbacks=[note], learner=SleepingLearner,
            agents=agents, worlds=WORLDS, total_episodes=WORLDS * rounds, engine="ray", n_workers=2,
            n_learners=learners, deterministic=True, lag=1, evaluate_episodes=1, evaluate_every=0, pictures=False,
            device="cpu", checkpoint_every=10**6, start_limit_s=1200, **settings,
        )  # fmt: skip
    when, cpu_s = zip(*marks[FIRST - 1 :], strict=True)
    each = [after - before for before, after in pairwise(when[:-2])]
    # With lag 1 the last two rounds are reported together: both took what passed since the one before them.
    ended_together = (when[-1] - when[-3]) / 2
    return [*each, ended_together, ended_together], (cpu_s[-1] - cpu_s[0]) / (len(cpu_s) - 1)


def _median_and_range(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"


def scaling(counts: tuple[int, ...]) -> None:
    """Learners in processes of their own."""
    print(
        f"\nLearner actors whose updates sleep: {AGENTS} agents, {UPDATE_S * 1000:.0f} ms each, "
        f"{WORLDS} updates per round\n  {machine()}"
    )
    first = 0.0
    for learners in counts:
        ideal_s = UPDATE_S * AGENTS * WORLDS / learners  # one update per episode
        rounds_s, cpu_s = measure(learners, FIRST + max(3, round(MEASURED_S / ideal_s)))
        round_s = statistics.mean(rounds_s)
        first = first or round_s * learners
        print(
            f"  {learners:3d} learners: a round took {_median_and_range(rounds_s)}, {first / round_s / learners:5.2f} "
            f"of linear ({ideal_s / round_s:4.2f} of sleeping only); first process {1000 * cpu_s / WORLDS:6.2f} ms per "
            f"episode, {cpu_s / round_s:6.1%} of a core, enough for {learners * round_s / cpu_s:,.0f}",
            flush=True,
        )


def feeding(counts: tuple[int, ...]) -> None:
    """Many learners with one agent each, in two processes: what the first process does for each is the same."""
    print(f"\nThe first process with learners that share two processes, one agent each\n  {machine()}")
    for learners in counts:
        with learners_that_share(2):
            rounds_s, cpu_s = measure(learners, FIRST + 5, agents=learners, learner_cpus=0)
        each = cpu_s / learners
        print(
            f"  {learners:4d} learners: {1000 * cpu_s:8.1f} ms per round, {1e6 * each:6.0f} µs per learner; "
            f"a round took {_median_and_range(rounds_s)}; rounds of 1 s: enough for {1 / each:,.0f}",
            flush=True,
        )


def main(words: list[str] | None = None) -> None:
    """Both, or with `feed` only the second; then numbers of learners."""
    words = words or []
    counts = tuple(int(word) for word in words if word.isdigit())
    if "feed" not in words:
        scaling(counts or COUNTS)
    if "feed" in words or not counts:
        feeding(counts or FED)


if __name__ == "__main__":
    main(sys.argv[1:])
