"""Learning while collecting: does policy lag change the final return?

Five seeds of each engine with the default settings and half the episodes, evaluated greedily. Differences are computed
seed by seed (the same first weights and the same test episodes) and printed with their 95 % interval (Student's t), as
a share of the return of `vectorized` with lag 0.
"""

from __future__ import annotations

import math
import statistics
import tempfile

from benchmarks.harness import machine, remuda

SEEDS = 5
TESTED = 200
SETTINGS: tuple[str, ...] = ("total_episodes=2000", "pictures=false")
WITHIN = 0.10
BASELINE = "vectorized lag=0"
ENGINES = {
    BASELINE: ("engine=vectorized",),
    "vectorized lag=1": ("engine=vectorized", "lag=1"),
    "actor-learner": ("engine=actor-learner",),
}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # by number of seeds


def score(name: str, seed: int, folder: str) -> float:
    """Train one seed and evaluate it."""
    out = f"{folder}/{name.replace(' ', '-')}-{seed}"
    trained = remuda("train", "treasurehunt", *SETTINGS, *ENGINES[name], "--seed", str(seed), "--out", out)
    tested = remuda("evaluate", out, "--episodes", str(TESTED))
    total = float(tested["total_return"])
    print(
        f"  {name}, seed {seed}: {total:.1f} ± {tested['total_return_ci95']:.1f}, {trained['wall_s']:.0f} s", flush=True
    )
    return total


def main() -> None:
    """Train all engines and seeds in turn, and print the differences."""
    print(f"\nLearning Treasurehunt, {SEEDS} seeds, {TESTED} test episodes, greedy\n  {machine()}")
    print(f"  remuda train treasurehunt {' '.join(SETTINGS)} engine=… lag=…", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rounds = [{name: score(name, seed, folder) for name in ENGINES} for seed in range(SEEDS)]
    base = abs(statistics.mean(scores[BASELINE] for scores in rounds))
    for name in ENGINES:
        values = [scores[name] for scores in rounds]
        print(f"  {name}: mean {statistics.mean(values):.1f} (sd {statistics.stdev(values):.1f})")
    for name in ENGINES:
        if name == BASELINE:
            continue
        differences = [(scores[name] - scores[BASELINE]) / base for scores in rounds]
        mean, half = statistics.mean(differences), T_95[SEEDS] * statistics.stdev(differences) / math.sqrt(SEEDS)
        print(
            f"  {name} less {BASELINE}: {mean:+.1%}, 95 % interval {mean - half:+.1%} to {mean + half:+.1%} "
            f"(wanted within ±{WITHIN:.0%})"
        )
