"""Learning CAGE 2: PPO against each red agent with both rule sets, and one policy against all red agents.

Published with the challenge (100 steps, rules before two late fixes): a baseline PPO -30.2 (B-line) and
-22.2 (Meander); the best three -11.4 to -13.8 and -16.6 to -19.4. A later study logged -18.0 and -18.2
after 100,000 episodes. `python -m benchmarks cage2_learning` repeats the runs; each takes far less than half
an hour of processor time.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import machine, remuda
from remuda.core.machine import cores

SEEDS = 3
TESTED = 1000
SETTINGS = (
    "learner=ppo", "worlds=100", "layers=[128,128]", "frames=8", "gamma=0.99",
    "lr=0.001:0.00005", "entropy=0.01:0.001", "passes=4", "minibatches=8", "n_workers=1",
    "pictures=false", "checkpoint_every=1000000", "evaluate_episodes=100",
)  # fmt: skip
GAMES = {
    "leaderboard, b_line": ("red=b_line", "rules=leaderboard", "total_episodes=25000"),
    "leaderboard, meander": ("red=meander", "rules=leaderboard", "total_episodes=60000"),
    "head, b_line": ("red=b_line", "rules=head", "total_episodes=25000"),
    "head, meander": ("red=meander", "rules=head", "total_episodes=60000"),
    "head, mixed": ("red=mixed", "rules=head", "total_episodes=25000"),
}


def learn(title: str, seed: int, folder: Path) -> tuple[str, float, float, float]:
    """Train one seed and evaluate it greedily: title, mean, half of the 95 % interval, processor seconds."""
    out = str(folder / f"{title}-{seed}".replace(" ", "").replace(",", "-"))
    trained = remuda("train", "cage2", *GAMES[title], *SETTINGS, "--seed", str(seed), "--out", out)
    scores = remuda("evaluate", out, "--episodes", str(TESTED), "seed=1000", "n_workers=1")
    row = (title, scores["total_return"], scores["total_return_ci95"], trained["cpu_s"])
    print("  {}, seed {}: {:.2f} ± {:.2f}, {:.0f} s cpu".format(title, seed, *row[1:]), flush=True)
    return row


def main() -> None:
    """Train every game and seed, as many at a time as there are cores, and print medians."""
    print(f"\nLearning CAGE 2, {TESTED} test episodes of 100 steps, greedy\n  {machine()}")
    print(f"  remuda train cage2 red=… rules=… {' '.join(SETTINGS)}", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores()) as pool:
        jobs = [(title, seed) for seed in range(SEEDS) for title in GAMES]
        rows = list(pool.map(lambda job: learn(*job, Path(folder)), jobs))
    for title in GAMES:
        means = [mean for name, mean, _, _ in rows if name == title]
        print(f"  {title}: median {statistics.median(means):.2f} of {sorted(round(mean, 2) for mean in means)}")
