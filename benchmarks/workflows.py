"""Does a defender follow the order it is told? One policy for all orders of CAGE 2, and one for each of five.

The five lie far apart among the 65 different games. Evaluated on fresh episodes, actions drawn as in training; then
one policy is told one order and judged by another.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine, remuda
from remuda.collect import Seat
from remuda.evaluate import Cast, evaluate
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.workflow import distance, distinct_orders, read_order, write_order
from remuda.policy import Choice, Policy, Sight
from remuda.threads import cores

SEEDS = 3
FIVE = 5
EPISODES = 40_000  # of one policy for all, and of five for one each together
TESTED = 500
SETTINGS = (
    "learner=ppo", "passes=4", "minibatches=8", "alignment=100", "n_workers=1", "pictures=false",
    "checkpoint_every=1000000",
)  # fmt: skip
BASELINES = ("react_remove", "react_restore", "react_mixed", "greedy_repair")


def far_apart(count: int) -> list[str]:
    """Orders each as far from those before as can be."""
    orders = distinct_orders(True)
    chosen = orders[:1]
    while len(chosen) < count:
        chosen.append(max(orders, key=lambda order: min(distance(order, other, True) for other in chosen)))
    return chosen


class Told(Policy):
    """A player who is told another order than the one it is judged by."""

    def __init__(self, player: Policy, order: str) -> None:
        super().__init__(player.group, player.agents)
        self.player = player
        self.bits = np.zeros(25, np.uint8)
        write_order(np.array(read_order(order)), self.bits)

    def act(self, sight: Sight, first: int, last: int) -> Choice:
        """Choose by what was told."""
        seen = sight.obs.copy()
        seen[..., BITS:] = self.bits
        return Choice(self.player.act(replace(sight, obs=seen), first, last).actions)


def scores(run: str, judged_by: str, told: str | None = None) -> dict[str, float]:
    """Means over fresh episodes."""
    cast = Cast.of(run, {"workflow": judged_by, "seed": 1000})
    seats = cast.seats
    if told is not None:
        seats = [Seat(seat.group, seat.first, seat.last, Told(seat.policy, told)) for seat in seats]
    metrics = evaluate(cast.plan, cast.spec, seats, TESTED, None).metrics
    return {name: float(values.mean()) for name, values in metrics.items()}


def line(name: str, own: dict[str, float]) -> str:
    """One row."""
    by_unit = " ".join(
        f"{own[f'fixes_{unit}']:.1f}" for unit in ("defender", "enterprise", "op_server", "op_host", "user")
    )
    good = own["compliance"] >= 0.9 and own["fixes"] >= 5
    return (
        f"    {name}: compliance {own['compliance']:.3f}, fixes {own['fixes']:.1f} ({by_unit}), return "
        f"{own['env_return']:.1f}{'' if good else '  <- not enough'}"
    )


def trained(words: tuple[str, ...], seed: int, out: Path) -> str:
    """A training in a process of its own."""
    remuda("train", "cage2", *words, *SETTINGS, "--seed", str(seed), "--out", str(out))
    return str(out)


def main() -> None:
    """Train everything, as many at a time as there are cores, and print."""
    orders = far_apart(FIVE)
    print(f"\nFollowing an order, CAGE 2, B_line, {TESTED} fresh episodes of 100 steps\n  {machine()}", flush=True)
    for name in BASELINES:
        told = remuda(
            "evaluate", "cage2", f"learner={name}", f"workflow={orders[0]}", "seed=1000", "--episodes", str(TESTED)
        )
        own, width = told["metrics"]["env_return"][0], told["metrics_ci95"]["env_return"][0]
        print(f"  {name}: return {own:.1f} ± {width:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as text, ThreadPoolExecutor(cores()) as pool:
        folder = Path(text)
        jobs: list[tuple[tuple[str, ...], int, Path]] = []
        for seed in range(SEEDS):
            all_of_them = ("workflow=distinct", "worlds=130", f"total_episodes={EPISODES}")
            jobs.append((all_of_them, seed, folder / f"all-{seed}"))
            for i, order in enumerate(orders):
                words = (f"workflow={order}", "worlds=100", f"total_episodes={EPISODES // FIVE}")
                jobs.append((words, seed, folder / f"{i}-{seed}"))
        runs: list[str] = list(pool.map(lambda job: trained(*job), jobs))
        report(runs, orders)


def report(runs: list[str], orders: list[str]) -> None:
    """What came of the runs: for each seed one policy for all, then those for one each."""
    returns: dict[str, list[Any]] = {"one for all": [], "one for each": []}
    for seed in range(SEEDS):
        own = runs[seed * (FIVE + 1) : (seed + 1) * (FIVE + 1)]
        print(f"  seed {seed}, one policy for all 65, {EPISODES:,} episodes", flush=True)
        for order in orders:
            got = scores(own[0], order)
            returns["one for all"].append((got["env_return"], got["compliance"]))
            print(line(order, got), flush=True)
        print(f"  seed {seed}, one policy for each, {EPISODES // FIVE:,} episodes each", flush=True)
        for i, order in enumerate(orders):
            got = scores(own[1 + i], order)
            returns["one for each"].append((got["env_return"], got["compliance"]))
            print(line(order, got), flush=True)
    for name, pairs in returns.items():
        env, compliance = np.array(pairs).T
        worst = compliance.min()
        print(f"  {name}: mean return {env.mean():.1f}, mean compliance {compliance.mean():.3f}, worst {worst:.3f}")
    print("  told (rows) and judged by (columns) the same five orders, compliance of the policy for all, seed 0")
    for told in orders:
        print(
            "    "
            + " ".join(f"{scores(runs[0], judged, told)['compliance']:.2f}" for judged in orders)
            + f"  told {told}"
        )
