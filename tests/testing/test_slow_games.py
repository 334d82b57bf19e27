"""The slow games: the length of a turn depends on the key or the options, never on who plays."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.fragment import Fragment
from remuda.core.game import GameEntry, StepCost, make_game
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.testing.check import check
from remuda.testing.slow_games import BUSY, SLOW, Slow, SlowOptions, congruential

SHORT = {"mean_ms": 0.1, "long_ms": 0.5}


def play(entry: GameEntry, episodes: tuple[int, ...], **options: Any) -> Fragment:
    game = make_game(entry, options, episodes)
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, 100))
    rollout.start(Task(episodes))
    return rollout.play(rollout.empty_fragments())[0]


@pytest.mark.parametrize(("entry", "options"), [(SLOW, SHORT), (BUSY, {"work": 50})])
def test_games_that_cost_time_keep_every_promise(entry: GameEntry, options: dict[str, Any]) -> None:
    assert [finding.problem for finding in check(entry, **options) if not finding.good] == []
    assert entry.step_cost is StepCost.SLOW


def test_turns_are_drawn_with_the_mean_and_share_asked_for() -> None:
    game = make_game(SLOW, {"mean_ms": 100, "long_ms": 500, "long_share": 0.05}, range(20_000))
    assert isinstance(game, Slow)
    game.reset(np.arange(game.worlds), rng.keys(rng.key(0, Stream.CHECK), np.arange(game.worlds)))
    lengths = game.lengths_s()
    assert set(lengths.round(6)) == {0.5, 0.078947}
    assert lengths.mean() == pytest.approx(0.1, rel=0.03)
    game.turn += 1
    assert (game.lengths_s() != lengths).any()


def test_worlds_sleep_one_after_another_and_only_until_they_are_over() -> None:
    began = time.perf_counter()
    fragment = play(SLOW, (0, 1, 2), mean_ms=4, long_ms=20, turns=5)
    slept = float(fragment.metrics.sum())
    assert time.perf_counter() - began >= slept
    apart = [play(SLOW, (episode,), mean_ms=4, long_ms=20, turns=5).metrics[0] for episode in (0, 1, 2)]
    assert np.array_equal(fragment.metrics, apart)
    game = make_game(SLOW, SHORT, range(2))
    assert isinstance(game, Slow)
    assert (game.lengths_s() == 0).all(), "no episode has begun"


def test_long_turns_that_exceed_the_mean_are_refused() -> None:
    with pytest.raises(ConfigError, match="mean_ms"):
        SlowOptions.read({"mean_ms": 10, "long_ms": 500}, "game slow")


def test_the_work_is_done_and_its_result_is_observed() -> None:
    fragment = play(BUSY, (3,), work=7, turns=6)
    numbers, actions = fragment.obs[:, 0, 0, 1], fragment.actions[:, 0, 0]
    for turn in range(6):
        assert numbers[turn + 1] == congruential(int(numbers[turn] + actions[turn]), 7)
