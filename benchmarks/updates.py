"""IQN's updates: compiled, with torch and all agents stacked, with torch one agent after another; bf16 and fp32."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import Claim, compare, rate
from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import LearnerContext
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import find_game
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.options import IQNOptions
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings

WORLDS = 8


def fragment(agents: int) -> Fragment:
    """A fragment of random play."""
    game = make_game(find_game("treasurehunt"), {"agents": agents}, range(WORLDS))
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    return rollout.play(rollout.empty_fragments())[0]


def learner(
    played: Fragment, first: int, last: int, precision: str = "fp32", compiled: bool = False, **options: int
) -> IQN:
    """A learner for agents first … last-1 that has taken the fragment."""
    group = make_game(find_game("treasurehunt"), {"agents": played.actions.shape[2]}, [0]).spec.groups[0]
    context = LearnerContext(group, 0, first, last, first, 0, 100, WORLDS, 1000, precision)
    result = IQN(context, IQNOptions(**options))
    result.compiled &= compiled
    result.take(context.select([played]))
    return result


def updating(learners: list[IQN]) -> Callable[[], float]:
    """Updates of all agents per second of processor time."""

    def work() -> int:
        for one in learners:
            one.update(1)
        return sum(one.context.agents for one in learners)

    return lambda: rate(work, 1.0)


def compare_forms(agents: int, wanted: float, **options: int) -> None:
    """Compare the compiled form with torch's, and there one learner for all agents with one learner per agent."""
    played = fragment(agents)
    size = ", ".join(f"{name} {value}" for name, value in options.items()) or "default size"
    compare(
        f"Updates of {agents} networks, {size}, one core, agent updates per second of processor time",
        {
            "compiled": updating([learner(played, 0, agents, compiled=True, **options)]),
            "stacked": updating([learner(played, 0, agents, **options)]),
            "one after another": updating([learner(played, i, i + 1, **options) for i in range(agents)]),
        },
        [
            Claim("compiled over stacked", "compiled", "stacked"),
            Claim("stacked over single", "stacked", "one after another", wanted),
        ],
        "updates/s",
    )


def main() -> None:
    """Print the tables."""
    with one_thread_each():
        compare_forms(16, 1.4, layer=64)
        compare_forms(4, 1.0)
        played = fragment(2)
        compare(
            "Precision of the matrix products, 2 networks of default size, updates per second of processor time",
            {
                "bf16": updating([learner(played, 0, 2, "bf16")]),
                "fp32": updating([learner(played, 0, 2)]),
                "fp32, compiled": updating([learner(played, 0, 2, compiled=True)]),
            },
            [Claim("bf16 over fp32", "bf16", "fp32"), Claim("bf16 over compiled fp32", "bf16", "fp32, compiled")],
            "updates/s",
            repeats=3,
        )
