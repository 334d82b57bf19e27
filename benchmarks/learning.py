"""Learning Treasurehunt: the return after 1,000 updates per agent and a minute of processor time.

The program this replaces reached a total return of 234 and 245 at ε 0.37 (two seeds, 2 agents, 1,000
updates per agent) in 6 to 7 minutes of processor time; random play gets 21, a simple hand-written
forager 247 at ε 0.37 and 385 greedy.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import machine, remuda
from remuda.runs.callbacks.tables import by_agent
from remuda.runs.run import Run

SEEDS = 5
EPISODES = 500
MINUTE = ("--worlds", "10", "--total-episodes", "1000", "--n-workers", "1", "tau=0.01")
PLANS = {"a minute": MINUTE, "default settings": ()}
PICTURE = Path(__file__).parent.parent / "docs" / "learning.png"


def learn(title: str, settings: tuple[str, ...], folder: Path) -> list[Run]:
    """Train and evaluate every seed; print the results."""
    print(f"\nLearning Treasurehunt, 2 agents, {title}\n  {machine()}")
    print(f"  remuda train treasurehunt --seed 0…{SEEDS - 1} {' '.join(settings)}")
    rows, runs = [], []
    for seed in range(SEEDS):
        out = str(folder / f"{title.replace(' ', '-')}-{seed}")
        result = remuda("train", "treasurehunt", "--seed", str(seed), "--out", out, "pictures=false", *settings)
        scores = [
            remuda("evaluate", out, "--episodes", str(EPISODES), "--epsilon", epsilon)["total_return"]
            for epsilon in ("0.37", "0")
        ]
        rows.append([*scores, result["cpu_s"], result["wall_s"], max(result["updates_per_agent"])])
        runs.append(Run(out))
        print(
            "  seed {}: {:.1f} at ε 0.37, {:.1f} greedy, {:.1f} s cpu, {:.1f} s wall, {} updates".format(
                seed, *rows[-1]
            )
        )
    for name, column in zip(("at ε 0.37", "greedy", "cpu s", "wall s"), zip(*rows, strict=True), strict=False):
        values = [float(value) for value in column]
        print(f"  mean {name}: {statistics.mean(values):.1f} (sd {statistics.stdev(values):.1f})")
    return runs


def draw(groups: dict[str, list[Run]]) -> None:
    """Total return while training, mean and range over the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=110, layout="constrained")
    for place, (title, runs) in enumerate(groups.items()):
        axes = figure.add_subplot(1, len(groups), place + 1)
        curves = [by_agent(run.metrics, "return").sum(axis=1) for run in runs]
        tables = runs[0].metrics
        width = max(1, len(curves[0]) // 25)
        smooth = np.array([np.convolve(curve, np.ones(width) / width, "valid") for curve in curves])
        episodes = by_agent(tables, "episodes")[width - 1 :, 0]
        axes.fill_between(episodes, smooth.min(axis=0), smooth.max(axis=0), alpha=0.25)
        axes.plot(episodes, smooth.mean(axis=0), linewidth=2)
        axes.axhline(21, color="grey", linestyle=":", label="random play")
        axes.axhline(385, color="green", linestyle=":", label="hand-written forager, greedy")
        axes.set(xlabel="episodes", ylabel="total return while training", title=title, ylim=(-40, 440))
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small", loc="lower right")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE)
    print(f"  curves: {PICTURE.name} in docs")


def main() -> None:
    """Both plans, all seeds, and the picture for the README."""
    with tempfile.TemporaryDirectory() as folder:
        remuda("train", "treasurehunt", "--total-episodes", "32", "--out", f"{folder}/warm-up")  # compiles
        draw({title: learn(title, settings, Path(folder)) for title, settings in PLANS.items()})
