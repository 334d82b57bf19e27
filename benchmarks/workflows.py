"""Does a defender follow the order it is told? One policy for all orders of CAGE 2, for five, and for each of the five.

The five lie far apart among the 65 different games. Evaluated on fresh episodes, actions drawn as in training; then
one policy is told one order and judged by another.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness import machine, remuda
from remuda.core.machine import cores
from remuda.core.policy import Policy, PolicyBinding, PolicyInput, PolicyOutput
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.workflow import distance, distinct_orders, read_order, write_order
from remuda.runs.evaluation import EvaluationSetup, evaluate_policies

SEEDS = 3
FIVE = 5
EPISODES = 40_000  # of one policy for many, and of five for one each together
STRICT = "alignment=100"
TESTED = 500
SETTINGS = (
    "learner=ppo", "passes=4", "minibatches=8", "n_workers=1", "pictures=false",
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

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose by what was told."""
        seen = inputs.obs.copy()
        seen[..., BITS:] = self.bits
        return PolicyOutput(self.player.act(replace(inputs, obs=seen), first, last).actions)


def scores(run: str, judged_by: str, told: str | None = None) -> dict[str, float]:
    """Means over fresh episodes."""
    setup = EvaluationSetup.of(run, {"workflow": judged_by, "seed": 1000})
    bindings = setup.bindings
    if told is not None:
        bindings = [
            PolicyBinding(binding.group, binding.first, binding.last, Told(binding.policy, told))
            for binding in bindings
        ]
    metrics = evaluate_policies(setup.plan, setup.spec, bindings, TESTED, None).metrics
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
        jobs = [
            (words, seed, Path(text) / f"{i}-{seed}") for seed in range(SEEDS) for i, words in enumerate(plans(orders))
        ]
        runs = list(pool.map(lambda job: trained(*job), jobs))
        for seed in range(SEEDS):
            report(seed, runs[seed * (FIVE + 2) : (seed + 1) * (FIVE + 2)], orders)


def plans(orders: list[str]) -> list[tuple[str, ...]]:
    """One policy for all orders, one for five of them that is paid more for obeying, and one for each."""
    each = [(f"workflow={order}", "worlds=100", f"total_episodes={EPISODES // FIVE}") for order in orders]
    return [
        ("workflow=distinct", "worlds=130", f"total_episodes={EPISODES}"),
        (f"workflow={orders}", "worlds=100", STRICT, f"total_episodes={EPISODES}"),
        *each,
    ]


def report(seed: int, runs: list[str], orders: list[str]) -> None:
    """What came of a seed's runs."""
    for_all, for_five, *for_each = runs
    titles = {
        f"one policy for all 65, {EPISODES:,} episodes": [for_all] * FIVE,
        f"one policy for these five, {EPISODES:,} episodes, {STRICT}": [for_five] * FIVE,
        f"one policy for each, {EPISODES // FIVE:,} episodes each": for_each,
    }
    for title, own in titles.items():
        print(f"  seed {seed}, {title}", flush=True)
        for run, order in zip(own, orders, strict=True):
            print(line(order, scores(run, order)), flush=True)
    for title, run in zip(titles, (for_all, for_five), strict=False):
        print(f"  seed {seed}, {title}: compliance when told (rows) and judged by (columns) these orders")
        for told in orders:
            row = [scores(run, judged, told)["compliance"] for judged in orders]
            print("    " + " ".join(f"{own:.2f}" for own in row) + f"  told {told}", flush=True)
