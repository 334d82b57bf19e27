"""Schedules: values that differ per agent and change over the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remuda.core.errors import ConfigError
from remuda.learners.schedule import schedule

HERD = np.arange(3)


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (0.25, [0.25, 0.25, 0.25, 0.25]),
        (1, [1.0, 1.0, 1.0, 1.0]),
        ("0.9:0.1", [0.9, 0.7, 0.5, 0.1]),
        ("0.9:0.1:0.5", [0.9, 0.5, 0.1, 0.1]),
        ("0:1:0.25", [0.0, 1.0, 1.0, 1.0]),
    ],
)
def test_a_value_moves_over_its_share_of_the_run_and_stays(value: Any, at: list[float]) -> None:
    values_over_time = schedule("epsilon", value, HERD)
    for update, expected in zip((0, 50, 100, 200), at, strict=True):
        assert values_over_time.at(update, 200) == pytest.approx([expected] * 3)


def test_the_end_value_stays_after_the_last_update_and_the_start_value_without_updates() -> None:
    values_over_time = schedule("epsilon", "0.9:0.1:0.5", HERD)
    assert values_over_time.at(500, 200) == pytest.approx([0.1] * 3)
    assert values_over_time.at(0, 0) == pytest.approx([0.9] * 3)


def test_an_agent_uses_the_list_entry_at_its_herd_wide_number() -> None:
    values = [0.1, "1:0", 0.3, "0:1:0.5"]
    assert schedule("lr", values, np.arange(4)).at(25, 100) == pytest.approx([0.1, 0.75, 0.3, 0.5])
    assert schedule("lr", values, np.array([3, 1])).at(25, 100) == pytest.approx([0.5, 0.75])


def test_a_list_that_is_too_short_names_the_agent_left_out() -> None:
    with pytest.raises(ConfigError, match="lr lists 2 values, but agent 2 needs one"):
        schedule("lr", [0.1, 0.2], HERD)


@pytest.mark.parametrize("value", ["0.9", "a:b", "1:2:3:4", "", "0.9:0.1:"])
def test_an_unreadable_schedule_raises_one_sentence_with_an_example(value: str) -> None:
    with pytest.raises(ConfigError, match=r'epsilon=.* "0\.9:0\.05:0\.5"'):
        schedule("epsilon", value, HERD)


@pytest.mark.parametrize("share", ["0", "-0.5", "1.5", "nan"])
def test_a_share_must_be_in_the_interval_from_0_to_1(share: str) -> None:
    with pytest.raises(ConfigError, match="share of the run"):
        schedule("epsilon", f"0.9:0.1:{share}", HERD)
