"""Updates: the herd stacked against one agent after another, and bf16 against fp32."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import Claim, compare, rate
from remuda.check import seats
from remuda.collect import Manner, Player, Task
from remuda.fragment import Fragment
from remuda.game import make_game
from remuda.games import find_game
from remuda.learners.iqn import IQN, IQNOptions
from remuda.learners.learner import Post
from remuda.threads import one_thread_each

WORLDS = 8


def fragment(agents: int) -> Fragment:
    """Some random play to learn from."""
    game = make_game(find_game("treasurehunt"), {"agents": agents}, range(WORLDS))
    player = Player(game, seats(game), Manner(0, WORLDS))
    player.start(Task(tuple(range(WORLDS))))
    return player.play(player.room())[0]


def learner(played: Fragment, first: int, last: int, precision: str = "fp32", **options: int) -> IQN:
    """A learner for some agents that has taken the fragment."""
    group = make_game(find_game("treasurehunt"), {"agents": played.actions.shape[2]}, [0]).spec.groups[0]
    post = Post(group, 0, first, last, first, 0, 100, WORLDS, 1000, precision)
    result = IQN(post, IQNOptions(**options))
    result.take(played)
    return result


def updating(learners: list[IQN]) -> Callable[[], float]:
    """Updates of all agents per second of processor time."""

    def work() -> int:
        for own in learners:
            own.update(1)
        return sum(own.post.agents for own in learners)

    return lambda: rate(work, 1.0)


def stacked_against_single(agents: int, least: float, **options: int) -> None:
    """One learner for all, or one each."""
    played = fragment(agents)
    size = ", ".join(f"{name} {value}" for name, value in options.items()) or "default size"
    compare(
        f"Updates of {agents} networks, {size}, one core, agent updates per second of processor time",
        {
            "stacked": updating([learner(played, 0, agents, **options)]),
            "one after another": updating([learner(played, i, i + 1, **options) for i in range(agents)]),
        },
        [Claim("stacked over single", "stacked", "one after another", least)],
        "updates/s",
    )


def main() -> None:
    """Print the tables."""
    with one_thread_each():
        stacked_against_single(16, 1.4, layer=64)
        stacked_against_single(4, 1.0)
        played = fragment(2)
        compare(
            "Precision of the matrix products, 2 networks of default size, updates per second of processor time",
            {
                "bf16": updating([learner(played, 0, 2, "bf16")]),
                "fp32": updating([learner(played, 0, 2)]),
            },
            [Claim("bf16 over fp32", "bf16", "fp32")],
            "updates/s",
            repeats=3,
        )
