"""Rounds: every episode of a plan belongs to exactly one, and a round is complete with its last episode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.plan import Plan
from remuda.core.rounds import RoundCounter


@given(total=st.integers(1, 60), per_round=st.integers(1, 25), data=st.data())
def test_rounds_partition_the_episodes_of_a_plan(total: int, per_round: int, data: st.DataObject) -> None:
    plan = Plan(game="treasurehunt", total_episodes=total, episodes_per_update=per_round)
    assert sum(plan.episodes_in(number) for number in range(1, plan.rounds + 1)) == total
    counter, sizes, size = RoundCounter(plan), [], 0
    while counter.complete < plan.rounds:
        episodes = data.draw(st.integers(1, counter.missing))
        size += episodes
        before = counter.complete
        if counter.add(episodes):
            sizes.append(size)
            size = 0
        assert counter.episodes == size
        assert counter.complete == before + (size == 0)
    assert sizes == [plan.episodes_in(number) for number in range(1, plan.rounds + 1)]
    assert counter.missing == 0


def test_counting_goes_on_in_the_middle_of_a_round() -> None:
    plan = Plan(game="treasurehunt", total_episodes=20, episodes_per_update=8)
    counter = RoundCounter(plan, complete=2, episodes=1)
    assert counter.missing == 3
    assert counter.add(3)
    assert (counter.complete, counter.episodes) == (3, 0)
