"""Whether PPO's compiled form learns as well as its readable one: `workflow_rl`, the same seeds of either, TOST.

    python -m benchmarks.speed_learning [--seeds 20 | --seed N] [--rounds 1000] [--tally FILE] [--record]

A score is the mean return of the last tenth of the training episodes, actions drawn from the policy. Times are
processor seconds of one core. Twenty seeds take more than an hour: with a tally they can be run one by one.
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

MARGIN = 1.0
PLAN: dict[str, Any] = {"preset": "workflow_rl", "red": "b_line"}
FORMS = {"readable": False, "compiled": True}


def trained(compiled: bool, seed: int, rounds: int) -> dict[str, float]:
    """The mean return at the end of a training, and its processor seconds."""
    with one_thread_each():
        form = Form.of({**PLAN, "seed": seed, "total_episodes": 100 * rounds}, compiled)
        began = time.thread_time()
        for number in range(rounds):
            form.round(number)
        seconds = time.thread_time() - began
    return {"return": float(np.mean(form.returns[-max(1, rounds // 10) :])), "cpu_s": seconds}


def main(words: Sequence[str] = ()) -> None:
    """Train both forms by seeds; print the scores, their means, the test and the times."""
    reader = argparse.ArgumentParser(prog="python -m benchmarks.speed_learning")
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
            tally.measure(name, seed, partial(trained, compiled, seed, asked.rounds))
    with recorded("speed_learning", "python -m benchmarks.speed_learning") if asked.record else nullcontext():
        print(f"{machine()}\nworkflow_rl, {asked.rounds:,} rounds of 100 episodes", flush=True)
        report(tally)


def report(tally: SeedTally) -> None:
    """Print what the tally has."""
    scores, seconds = (np.array([[own[k] for own in tally.of(name)] for name in FORMS]) for k in ("return", "cpu_s"))
    for name, own, took in zip(FORMS, scores, seconds, strict=True):
        each = " ".join(f"{score:.1f}" for score in own)
        mean = f"{own.mean():.2f} ± {half_interval(own):.2f}"
        print(f"{name} {mean}, processor {np.median(took):.1f} s a seed: {each}", flush=True)
    ratios = np.sort(seconds[0] / seconds[1])
    print(
        f"difference {scores[1].mean() - scores[0].mean():+.2f}, TOST within ±{MARGIN:g}: "
        f"p = {equivalence(*scores, MARGIN):.4f}\n"
        f"processor time, readable over compiled: {np.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
