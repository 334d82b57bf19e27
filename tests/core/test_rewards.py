"""Reward transforms: the papers' formulas, which argument is which, and what stays as the game pays it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core.errors import ConfigError
from remuda.core.game import make_game
from remuda.core.reward_kernel import transform
from remuda.core.rewards import RewardOptions
from remuda.games.registry import find_game
from remuda.runs.settings import make_plan


def received(rewards: list[float], turns: int = 1, **options: Any) -> list[float]:
    """What agents receive in the last of some turns with these rewards."""
    rules = RewardOptions.read(options, "reward").per_agent(len(rewards))
    compared, out = np.zeros((1, len(rewards))), np.zeros((1, len(rewards)))
    for _ in range(turns):
        transform(np.array([rewards], np.float64), compared, rules, out)
    return [float(value) for value in out[0]]


def test_without_options_agents_receive_what_the_game_pays() -> None:
    assert received([1.5, -2.0, 0.25]) == [1.5, -2.0, 0.25]


def test_inequity_alpha_is_for_having_less_and_beta_for_having_more() -> None:
    """Hughes et al. 2018, equation 3: alpha 5 against disadvantageous, beta 0.05 against advantageous inequity."""
    assert received([1, 0], inequity_alpha=5, inequity_beta=0.05, inequity_decay=0) == pytest.approx([0.95, -5])
    assert received([1, 0], inequity_alpha=5, inequity_decay=0) == pytest.approx([1, -5])
    assert received([1, 0], inequity_beta=0.05, inequity_decay=0) == pytest.approx([0.95, 0])


def test_inequity_is_averaged_over_the_other_agents_and_compares_smoothed_rewards() -> None:
    assert received([3, 1, 0], inequity_alpha=5, inequity_decay=0)[2] == pytest.approx(0 - 5 / 2 * (3 + 1))
    e = 1 + 0.99 * 0.975
    assert received([1, 0], turns=2, inequity_alpha=5, inequity_beta=0.05) == pytest.approx([1 - 0.05 * e, -5 * e])


def test_nobody_rewarded_is_not_a_special_case() -> None:
    assert received([0, 0, 0], inequity_alpha=5, inequity_beta=0.05) == [0, 0, 0]


def test_social_value_orientation_is_the_angle_between_own_and_mean_other_reward() -> None:
    """McKee et al. 2020: u = r - w |theta* - theta|, theta = atan2(mean of the others, own)."""
    assert received([1, 1], svo_weight=0.5, svo_angle=45) == pytest.approx([1, 1])
    assert received([1, 0], svo_weight=0.5, svo_angle=90) == pytest.approx([1 - math.pi / 4, 0])
    assert received([0, 2, 1], svo_weight=1, svo_angle=0)[0] == pytest.approx(-math.pi / 2)


def test_team_and_selfishness_mix_rewards() -> None:
    assert received([3, 1, 2], team=1) == [6, 6, 6]
    assert received([3, 1, 2], team=[0, 0, 1]) == [3, 1, 6]
    assert received([3, 1, 2], selfishness=0) == pytest.approx([1.5, 2.5, 2])
    assert received([3, 1, 2], selfishness=1 / 3) == pytest.approx([2, 2, 2])


def test_wrong_options_are_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"reward\.team has 3 values"):
        received([1, 2], team=[0, 1, 0])
    with pytest.raises(ConfigError, match=r"reward\.selfishness=2.* from 0 to 1"):
        received([1, 2], selfishness=2)
    with pytest.raises(ConfigError, match="should be a mapping"):
        make_game(find_game("treasurehunt"), {"reward": 3}, [0])
    with pytest.raises(remuda.RemudaError, match="inequity_alpha"):
        make_plan({"game": "treasurehunt", "reward.inequity_alfa": 3})


def test_reward_is_a_setting_of_any_game_and_off_by_default() -> None:
    assert "reward" not in make_plan({"game": "treasurehunt"}).options
    plan = make_plan({"game": "treasurehunt", "reward.team": 0.5, "reward.svo_weight": 1})
    assert plan.options["reward"]["team"] == 0.5
    assert plan.options["reward"]["svo_weight"] == 1


@pytest.mark.parametrize("name", ["treasurehunt", "coins"])
def test_a_game_with_transformed_rewards_passes_the_conformance_suite(name: str) -> None:
    reward = {"team": 0.5, "svo_weight": 0.1, "inequity_alpha": 5}
    assert [f for f in remuda.check(name, turns=40, reward=reward) if not f.good] == []


def test_metrics_keep_what_the_game_pays(tiny: dict[str, Any]) -> None:
    options = {name: tiny[name] for name in ("agents", "height", "width", "turns", "spawn")}
    plain = remuda.evaluate("treasurehunt", 4, learner="random", **options)
    team = remuda.evaluate("treasurehunt", 4, learner="random", reward={"team": 1.0}, **options)
    assert np.allclose(team.returns, plain.returns.sum(axis=1, keepdims=True))
    assert np.allclose(team.metrics["game_return"], plain.returns)
    for name in plain.metrics:
        assert np.array_equal(plain.metrics[name], team.metrics[name])
