"""What `engine=auto` chooses for three environments of other libraries, beside what `remuda compare` finds best.

As for the shipped games; these environments are written in Python and played world by world.
"""

from __future__ import annotations

from typing import Any

from benchmarks.auto_shipped import print_table

PLANS: dict[str, dict[str, Any]] = {
    "gymnasium:CartPole-v1": {"learner": "ppo", "agents": 2},
    "mpe2.simple_spread_v3:parallel_env": {},
    "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env": {"learner": "ppo", "turns": 100},
}


def main() -> None:
    """Print the table."""
    print_table(PLANS)
