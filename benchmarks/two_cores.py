"""Two cores against one: Treasurehunt with 10 agents and the same plan; each run is its own process.

A rate is the difference in steps between a longer and a shorter run, divided by the difference in time. The start of
workers, filling the pipeline, the last evaluation and the checkpoint are in both and cancel out. (The times in
metrics.csv are not exact enough: rounds learned in other processes are recorded when the loop next polls, the last ones
all at once.) The total times of the longer runs are printed below.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Claim, compare, remuda

PLAN = ("treasurehunt", "agents=10", "worlds=16", "evaluate_episodes=16", "pictures=false", "device=cpu")
SHORT, LONG = 64, 320  # episodes
REPEATS = 3
ONE_CORE = "vectorized, one core"
ENGINES = {
    "actor-learner, two cores": (2, ("engine=actor-learner",)),
    "actor-learner, 2 learners, two cores": (2, ("engine=actor-learner", "n_workers=1", "n_learners=2")),
    "vectorized lag=1, two cores": (2, ("engine=vectorized", "lag=1")),
    "vectorized, two cores": (2, ("engine=vectorized",)),
    ONE_CORE: (1, ("engine=vectorized",)),
}


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Processes started in this block use only the first `count` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def train(episodes: int, cores: int, words: tuple[str, ...]) -> dict[str, Any]:
    """Train a number of episodes on a number of cores."""
    with tempfile.TemporaryDirectory() as folder, on_cores(cores):
        return remuda("train", *PLAN, f"total_episodes={episodes}", *words, "--out", f"{folder}/run")


def training(done: list[dict[str, Any]], cores: int, words: tuple[str, ...]) -> Callable[[], float]:
    """Agent-steps played and learned per second; `done` collects the results of the longer runs."""

    def measure() -> float:
        short, long = (train(episodes, cores, words) for episodes in (SHORT, LONG))
        done.append(long)
        return float((long["agent_steps"] - short["agent_steps"]) / (long["wall_s"] - short["wall_s"]))

    return measure


def main() -> None:
    """Print the table, and the limit with one core for collecting and one for learning."""
    done: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
    compare(
        "Treasurehunt, 10 agents, default networks, agent-steps played and learned per second of wall time",
        {name: training(done[name], cores, words) for name, (cores, words) in ENGINES.items()},
        [Claim(f"{name} over one core", name, ONE_CORE, 1.6) for name in ENGINES if name != ONE_CORE],
        "agent-steps/s",
        REPEATS,
    )
    for name, results in done.items():
        wall = statistics.median(result["wall_s"] for result in results)
        collect, learn = (
            statistics.median(result["seconds"][side]["cpu"] for result in results) for side in ("collect", "learn")
        )
        seconds = f"processor seconds {collect:.1f} collecting, {learn:.1f} learning"
        print(f"  {name}: {LONG} episodes in {wall:.1f} s, {seconds}")
    highest = (collect + learn) / max(collect, learn)  # of the last entry, which ran on one core
    print(f"  with one core for collecting and one for learning at most {highest:.2f} times one core for both")
