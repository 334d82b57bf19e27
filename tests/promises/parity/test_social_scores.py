"""Random, idle and scripted play: the same returns as recorded from the originals, and rules that are broken are found.

Welch's tests, with Holm's correction at 1 %. Where the recorded return was the same in every episode, Fisher's exact
test compares how many episodes had another one.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from recorded_policies import POLICIES
from scipy import stats

from remuda.core import rng
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.registry import find_game

pytestmark = pytest.mark.slow
WORLDS, TURNS, LEVEL = 32, 1000, 0.01


class Baseline(NamedTuple):
    """A row of the recorded table."""

    game: str
    options: dict[str, Any]
    policy: str
    episodes: int
    mean: float
    error: float

    @property
    def name(self) -> str:
        return f"{self.game} {' '.join(self.options.values())} {self.policy}"


def recorded() -> list[Baseline]:
    path = Path(__file__).parents[2] / "data" / "social_baselines.json"
    return [Baseline(*row) for row in json.loads(path.read_text())["rows"]]


@cache
def returns(game_name: str, policy: str, options: str) -> NDArray[np.float64]:
    """The collective return of each world, in plain units."""
    game: Any = make_game(find_game(game_name), {"turns": TURNS, **json.loads(options)}, range(WORLDS))
    game.reset(np.arange(WORLDS), rng.keys(rng.key(1, Stream.CHECK), np.arange(WORLDS)))
    draws = np.random.default_rng(0)
    for _ in range(TURNS):
        game.step([POLICIES[policy](game, draws)])
    return np.asarray(game.state.tally[:, :, 0].sum(axis=1))


def probability(ours: NDArray[np.float64], row: Baseline) -> float:
    """How probable returns as different as these are, if the games are the same."""
    if row.error == 0:
        others = int((ours != row.mean).sum())
        return float(stats.fisher_exact([[others, len(ours) - others], [0, row.episodes]]).pvalue)
    spread = row.error * math.sqrt(row.episodes)
    return float(
        stats.ttest_ind_from_stats(
            ours.mean(), ours.std(ddof=1), len(ours), row.mean, spread, row.episodes, equal_var=False
        ).pvalue
    )


def rejected(values: dict[str, float]) -> list[str]:
    """The names whose hypothesis Holm's procedure rejects."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    for rank, (_, value) in enumerate(ordered):
        if value > LEVEL / (len(ordered) - rank):
            return [name for name, _ in ordered[:rank]]
    return [name for name, _ in ordered]


def compared() -> dict[str, float]:
    """The probability of every row."""
    values = {}
    for row in recorded():
        ours = returns(row.game, row.policy, json.dumps(row.options))
        values[row.name] = probability(ours, row)
        found = f"{ours.mean():.1f} ± {ours.std(ddof=1) / math.sqrt(len(ours)):.1f}"
        print(f"{row.name}: {found}, recorded {row.mean} ± {row.error}, p={values[row.name]:.3g}")
    return values


def test_no_return_differs_from_the_recorded_one() -> None:
    assert rejected(compared()) == []


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        ({"penalty": 1.0}, "coins socialjax random"),
        ({"coins": 0.0004}, "coins socialjax own colour"),
        ({"growth": [0.0, 0.001, 0.005, 0.035]}, "harvest socialjax 4 neighbours"),
        ({"growth": 0.06}, "cleanup socialjax 2 cleaners"),
    ],
)
def test_a_broken_rule_is_rejected(broken: dict[str, Any], noticed: str) -> None:
    """Only what the broken rule is noticed by is played again; the other rows are as they were."""
    values = compared()
    row = next(row for row in recorded() if row.name == noticed)
    values[noticed] = probability(returns(row.game, row.policy, json.dumps({**row.options, **broken})), row)
    assert noticed in rejected(values)
