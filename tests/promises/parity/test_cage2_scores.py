"""CAGE 2: scripted defenders have the same scores here as in the original simulator.

Means and standard errors of 300 episodes per pair of the original, at 30, 50 and 100 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from remuda.learners.herd import assign, bind_policy
from remuda.runs.evaluation import evaluate_policies
from remuda.runs.settings import make_plan, spec_of

ORIGINAL_EPISODES = 300
LENGTHS = (30, 50, 100)
ORIGINAL = {
    ("b_line", "sleep"): ((-217.14, 1.15), (-479.14, 1.15), (-1134.14, 1.15)),
    ("b_line", "random"): ((-159.02, 4.53), (-339.18, 9.12), (-716.79, 20.79)),
    ("b_line", "random_nodecoy"): ((-143.99, 4.17), (-257.65, 8.65), (-415.56, 15.19)),
    ("b_line", "decoy_heavy"): ((-163.66, 4.45), (-381.56, 8.65), (-922.50, 17.81)),
    ("b_line", "react_restore"): ((-14.99, 0.15), (-27.53, 0.46), (-62.48, 1.50)),
    ("b_line", "react_remove"): ((-176.39, 2.25), (-437.96, 2.36), (-1092.96, 2.36)),
    ("b_line", "react_mixed"): ((-8.81, 0.25), (-16.58, 0.44), (-38.55, 1.01)),
    ("meander", "sleep"): ((-41.70, 1.25), (-272.63, 4.07), (-973.54, 4.17)),
    ("meander", "random"): ((-34.35, 1.03), (-171.12, 5.32), (-595.93, 16.88)),
    ("meander", "random_nodecoy"): ((-40.21, 0.86), (-148.04, 4.60), (-342.11, 12.33)),
    ("meander", "decoy_heavy"): ((-31.74, 0.82), (-177.35, 5.50), (-699.78, 16.17)),
    ("meander", "react_restore"): ((-11.47, 0.06), (-22.98, 0.13), (-57.69, 0.63)),
    ("meander", "react_remove"): ((-21.95, 0.52), (-141.14, 4.89), (-775.47, 10.17)),
    ("meander", "react_mixed"): ((-7.11, 0.18), (-13.65, 0.42), (-33.57, 1.12)),
    ("sleep", "sleep"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("sleep", "random"): ((-2.69, 0.09), (-4.59, 0.13), (-9.10, 0.16)),
    ("sleep", "random_nodecoy"): ((-9.42, 0.15), (-15.73, 0.19), (-31.71, 0.28)),
    ("sleep", "decoy_heavy"): ((-0.77, 0.05), (-1.37, 0.07), (-2.63, 0.10)),
    ("sleep", "react_restore"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("sleep", "react_remove"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("sleep", "react_mixed"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
}


@dataclass(frozen=True)
class ScoreComparison:
    """One pair at one length, here and in the original."""

    red: str
    blue: str
    steps: int
    mean: float
    error: float
    original: float
    original_error: float

    @property
    def p(self) -> float:
        """Welch's test, two-sided; with hundreds of degrees of freedom the normal distribution is close enough."""
        spread = math.hypot(self.error, self.original_error)
        if spread == 0.0:
            return 1.0 if self.mean == self.original else 0.0
        return math.erfc(abs(self.mean - self.original) / spread / math.sqrt(2))

    def __str__(self) -> str:
        here, there = f"{self.mean:9.2f} ± {self.error:5.2f}", f"{self.original:9.2f} ± {self.original_error:5.2f}"
        return f"{self.red:8s} {self.blue:15s} {self.steps:4d} {here} {there}  p {self.p:.4f}"


def score(red: str, blue: str, steps: int, episodes: int, seed: int, rules: str = "head") -> tuple[float, float]:
    """Mean and standard error of the episode's reward."""
    settings = {"policy": blue, "red": red, "steps": steps, "rules": rules}
    plan = make_plan({"game": "cage2", "seed": seed, "n_workers": 1, **settings})
    spec = spec_of(plan)
    bindings = [bind_policy(part, plan, spec, "cpu") for part in assign(plan, spec)]
    returns = evaluate_policies(plan, spec, bindings, episodes).returns[:, 0]
    return float(returns.mean().round(6)), float(returns.std(ddof=1) / math.sqrt(episodes))


def compare(episodes: int, lengths: tuple[int, ...], seed: int = 0) -> list[ScoreComparison]:
    """Every pair at every length; each length has its own episodes."""
    return [
        ScoreComparison(red, blue, steps, *score(red, blue, steps, episodes, seed), *originals[LENGTHS.index(steps)])
        for (red, blue), originals in ORIGINAL.items()
        for steps in lengths
    ]


def rejected(comparisons: list[ScoreComparison], level: float = 0.01) -> list[ScoreComparison]:
    """The comparisons that differ, with Holm's step-down correction over all."""
    ordered = sorted(comparisons, key=lambda c: c.p)
    fails = [c.p <= level / (len(ordered) - i) for i, c in enumerate(ordered)]
    return ordered[: fails.index(False)] if False in fails else ordered


def test_scores_agree_with_the_original() -> None:
    assert not [str(c) for c in rejected(compare(300, (30, 100)))]


@pytest.mark.slow
def test_scores_of_a_thousand_episodes_agree_at_every_length() -> None:
    comparisons = compare(1000, LENGTHS)
    print("\n".join(map(str, comparisons)))
    assert not [str(c) for c in rejected(comparisons)]


def test_the_comparison_detects_a_wrong_rule() -> None:
    """The two late fixes of the original alone change these scores enough."""
    for red in ("b_line", "meander"):
        here = score(red, "react_restore", 100, 300, 0, rules="leaderboard")
        assert rejected([ScoreComparison(red, "react_restore", 100, *here, *ORIGINAL[red, "react_restore"][2])])
