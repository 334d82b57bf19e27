"""Schelling diagrams: what it pays to cooperate or to defect, by how many of the others cooperate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remuda.core.errors import ConfigError
from remuda.games.registry import AnyGame
from remuda.runs.display import INTERVAL, text_table
from remuda.runs.evaluation import evaluate
from remuda.runs.recorder import standard_error
from remuda.runs.settings import make_plan, spec_of


@dataclass(frozen=True)
class SchellingRow:
    """Mean returns of an agent while `others` of the other agents cooperate, with half their 95 % intervals."""

    others: int
    cooperator: float
    cooperator_ci95: float
    defector: float
    defector_ci95: float


@dataclass(frozen=True)
class SchellingDiagram:
    """One row for each number of others that cooperate."""

    game: str
    rows: list[SchellingRow]

    def __str__(self) -> str:
        header = ["others that cooperate", "a cooperator gets", "a defector gets"]
        body = [
            [
                str(row.others),
                f"{row.cooperator:.1f} ± {row.cooperator_ci95:.1f}",
                f"{row.defector:.1f} ± {row.defector_ci95:.1f}",
            ]
            for row in self.rows
        ]
        return text_table([header, *body])

    def draw(self, target: Path) -> None:
        """Write the diagram as a picture."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(5, 3.5))
        others = [row.others for row in self.rows]
        for name in ("cooperator", "defector"):
            means = [getattr(row, name) for row in self.rows]
            widths = [getattr(row, f"{name}_ci95") for row in self.rows]
            axes.errorbar(others, means, yerr=widths, marker="o", capsize=3, label=name)
        axes.set(xlabel="others that cooperate", ylabel="return", title=self.game)
        axes.legend()
        figure.tight_layout()
        figure.savefig(target)
        plt.close(figure)


def schelling(
    game: AnyGame,
    episodes: int = 32,
    cooperator: str = "cooperator",
    defector: str = "defector",
    **settings: Any,
) -> SchellingDiagram:
    """Play every mix of cooperators and defectors, each named like a learner: a scripted player or frozen:RUN/agent.

    With c cooperators in the herd, the agents 0 … c-1 are those.
    """
    spec = spec_of(make_plan({"game": game, "learner": "random", **settings}))
    agents = spec.agents
    if agents < 2:
        raise ConfigError(f"{spec.name} has one agent: a Schelling diagram needs at least two")
    found: list[dict[str, tuple[float, float]]] = []
    for count in range(agents + 1):
        players = {str(i): cooperator if i < count else defector for i in range(agents)}
        returns = evaluate(game, episodes, learners=players, **settings).returns
        found.append({"cooperator": _mean(returns[:, :count]), "defector": _mean(returns[:, count:])})
    rows = [
        SchellingRow(others, *found[others + 1]["cooperator"], *found[others]["defector"]) for others in range(agents)
    ]
    return SchellingDiagram(spec.name, rows)


def _mean(returns: Any) -> tuple[float, float]:
    """The mean over agents and episodes, and half its interval over episodes."""
    if not returns.shape[1]:
        return float("nan"), float("nan")
    per_episode = returns.mean(axis=1)
    return float(per_episode.mean()), float(INTERVAL * np.asarray(standard_error(per_episode)))
