"""Whether a compiled form learns as well as the readable one: the same seeds of either, TOST.

    python -m benchmarks.speed_learning [--seeds 20 | --seed N] [--rounds 1000] [--tally FILE] [--record]
    python -m benchmarks.speed_learning --learner iqn --seeds 10 --rounds 60

PPO learns `workflow_rl`, IQN Treasurehunt with two agents and 16 worlds. A score is the mean return of the last tenth
of the training episodes, actions as in training. Times are processor seconds of one core. Twenty seeds of PPO take more
than an hour: with a tally they can be run one by one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import recorded
from benchmarks.seed_tally import SeedTally, half_interval
from benchmarks.speed import Form
from remuda.core.machine import machine
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.studies.statistics import equivalence

PLANS: dict[str, tuple[dict[str, Any], int, float]] = {
    "ppo": ({"preset": "workflow_rl", "red": "b_line"}, 100, 1.0),
    "iqn": ({"game": "treasurehunt"}, 16, 5.0),
}
"""Settings, episodes of a round, and by how much means may differ to count as equal."""
FORMS = {"readable": False, "compiled": True}


def trained(learner: str, compiled: bool, seed: int, rounds: int) -> dict[str, float]:
    """The mean return at the end of a training, and its processor seconds."""
    with one_thread_each():
        settings, episodes, _ = PLANS[learner]
        form = Form.of({**settings, "seed": seed, "total_episodes": episodes * rounds}, compiled)
        began = time.thread_time()
        for number in range(rounds):
            form.round(number)
        seconds = time.thread_time() - began
    return {"return": float(np.mean(form.returns[-max(1, rounds // 10) :])), "cpu_s": seconds}


def main(words: Sequence[str] = ()) -> None:
    """Train both forms by seeds; print the scores, their means, the test and the times."""
    reader = argparse.ArgumentParser(prog="python -m benchmarks.speed_learning")
    reader.add_argument("--learner", choices=PLANS, default="ppo")
    reader.add_argument("--seeds", type=int, default=20)
    reader.add_argument("--seed", type=int, help="this seed alone")
    reader.add_argument("--rounds", type=int, default=1000)
    reader.add_argument("--tally", type=Path, metavar="FILE", help="keep results here; what it has is not run again")
    reader.add_argument("--record", action="store_true", help="write docs/benchmarks.md, too")
    asked = reader.parse_args(words)
    keep_freed_memory()
    tally = SeedTally(asked.tally)
    for seed in range(asked.seeds) if asked.seed is None else [asked.seed]:
        for name, compiled in FORMS.items():
            tally.measure(name, seed, partial(trained, asked.learner, compiled, seed, asked.rounds))
    with recorded("speed_learning", "python -m benchmarks.speed_learning") if asked.record else nullcontext():
        settings, episodes, margin = PLANS[asked.learner]
        print(f"{machine()}\n{settings}, {asked.rounds:,} rounds of {episodes} episodes", flush=True)
        report(tally, margin)


def report(tally: SeedTally, margin: float) -> None:
    """Print what the tally has."""
    scores, seconds = (np.array([[own[k] for own in tally.of(name)] for name in FORMS]) for k in ("return", "cpu_s"))
    for name, own, took in zip(FORMS, scores, seconds, strict=True):
        each = " ".join(f"{score:.1f}" for score in own)
        mean = f"{own.mean():.2f} ± {half_interval(own):.2f}"
        print(f"{name} {mean}, processor {np.median(took):.1f} s a seed: {each}", flush=True)
    ratios = np.sort(seconds[0] / seconds[1])
    print(
        f"difference {scores[1].mean() - scores[0].mean():+.2f}, TOST within ±{margin:g}: "
        f"p = {equivalence(*scores, margin):.4f}\n"
        f"processor time, readable over compiled: {np.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
