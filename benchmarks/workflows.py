"""Does a defender follow the order it observes? One policy for all orders of CAGE 2, one for five, and one for each.

The five orders are far apart among the 65 different games. Policies are evaluated on fresh episodes, with actions drawn
as in training. Then a policy observes one order and is scored by another.
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
from remuda.games.cage2.workflow import distinct_orders, kendall_distance, read_order, write_order
from remuda.runs.evaluation import EvaluationSetup, evaluate_policies

SEEDS = 3
FIVE = 5
EPISODES = 40_000  # of a policy for many orders; the five policies for one order each share as many
STRICT = "alignment=100"
TESTED = 500
SETTINGS = (
    "learner=ppo", "passes=4", "minibatches=8", "n_workers=1", "pictures=false",
    "checkpoint_every=1000000",
)  # fmt: skip
BASELINES = ("react_remove", "react_restore", "react_mixed", "greedy_repair")


def far_apart(count: int) -> list[str]:
    """Orders that are each as far as possible from those before."""
    orders = distinct_orders(True)
    chosen = orders[:1]
    while len(chosen) < count:
        chosen.append(max(orders, key=lambda order: min(kendall_distance(order, other, True) for other in chosen)))
    return chosen


class ToldOrder(Policy):
    """A policy that observes another order than the one it is scored by."""

    def __init__(self, player: Policy, order: str) -> None:
        super().__init__(player.group, player.agents)
        self.player = player
        self.bits = np.zeros(25, np.uint8)
        write_order(np.array(read_order(order)), self.bits)

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Replace the order in the observation, then choose."""
        seen = inputs.obs.copy()
        seen[..., BITS:] = self.bits
        return PolicyOutput(self.player.act(replace(inputs, obs=seen), first, last).actions)


def scores(run: str, scored_by: str, told: str | None = None) -> dict[str, float]:
    """Means over fresh episodes."""
    setup = EvaluationSetup.of(run, {"workflow": scored_by, "seed": 1000})
    bindings = setup.bindings
    if told is not None:
        bindings = [
            PolicyBinding(binding.group, binding.first, binding.last, ToldOrder(binding.policy, told))
            for binding in bindings
        ]
    metrics = evaluate_policies(setup.plan, setup.spec, bindings, TESTED, None).metrics
    return {name: float(values.mean()) for name, values in metrics.items()}


def line(name: str, means: dict[str, float]) -> str:
    """One row of the output."""
    by_type = " ".join(
        f"{means[f'fixes_{host_type}']:.1f}" for host_type in ("defender", "enterprise", "op_server", "op_host", "user")
    )
    good = means["compliance"] >= 0.9 and means["fixes"] >= 5
    return (
        f"    {name}: compliance {means['compliance']:.3f}, fixes {means['fixes']:.1f} ({by_type}), return "
        f"{means['env_return']:.1f}{'' if good else '  <- not enough'}"
    )


def train(words: tuple[str, ...], seed: int, out: Path) -> str:
    """Train in its own process; returns the run directory."""
    remuda("train", "cage2", *words, *SETTINGS, "--seed", str(seed), "--out", str(out))
    return str(out)


def main() -> None:
    """Train all policies, as many at a time as there are cores, and print the scores."""
    orders = far_apart(FIVE)
    print(f"\nFollowing an order, CAGE 2, B_line, {TESTED} fresh episodes of 100 steps\n  {machine()}", flush=True)
    for name in BASELINES:
        result = remuda(
            "evaluate", "cage2", f"learner={name}", f"workflow={orders[0]}", "seed=1000", "--episodes", str(TESTED)
        )
        mean, width = result["metrics"]["env_return"][0], result["metrics_ci95"]["env_return"][0]
        print(f"  {name}: return {mean:.1f} ± {width:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as text, ThreadPoolExecutor(cores()) as pool:
        jobs = [
            (words, seed, Path(text) / f"{i}-{seed}") for seed in range(SEEDS) for i, words in enumerate(plans(orders))
        ]
        runs = list(pool.map(lambda job: train(*job), jobs))
        for seed in range(SEEDS):
            report(seed, runs[seed * (FIVE + 2) : (seed + 1) * (FIVE + 2)], orders)


def plans(orders: list[str]) -> list[tuple[str, ...]]:
    """One policy for all orders, one for five of them that is paid more for following, and one for each."""
    each = [(f"workflow={order}", "worlds=100", f"total_episodes={EPISODES // FIVE}") for order in orders]
    return [
        ("workflow=distinct", "worlds=130", f"total_episodes={EPISODES}"),
        (f"workflow={orders}", "worlds=100", STRICT, f"total_episodes={EPISODES}"),
        *each,
    ]


def report(seed: int, runs: list[str], orders: list[str]) -> None:
    """Print the scores of a seed's runs."""
    for_all, for_five, *for_each = runs
    titles = {
        f"one policy for all 65, {EPISODES:,} episodes": [for_all] * FIVE,
        f"one policy for these five, {EPISODES:,} episodes, {STRICT}": [for_five] * FIVE,
        f"one policy for each, {EPISODES // FIVE:,} episodes each": for_each,
    }
    for title, policies in titles.items():
        print(f"  seed {seed}, {title}", flush=True)
        for run, order in zip(policies, orders, strict=True):
            print(line(order, scores(run, order)), flush=True)
    for title, run in zip(titles, (for_all, for_five), strict=False):
        print(f"  seed {seed}, {title}: compliance when observing (rows) and scored by (columns) these orders")
        for told in orders:
            row = [scores(run, scored_by, told)["compliance"] for scored_by in orders]
            print("    " + " ".join(f"{value:.2f}" for value in row) + f"  observing {told}", flush=True)
