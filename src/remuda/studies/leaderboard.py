"""The leaderboard of CAGE Challenge 2: nine cells, three red agents by three lengths, beside what was published.

A defender is not told how long the game is, so 30 and 50 steps are the beginning of the same 100 steps. The official
total is the sum of the nine means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.plan import FROZEN
from remuda.games.cage2.defenders import DEFENDERS, NEEDED_OPTIONS
from remuda.games.cage2.red import AGENTS
from remuda.learners.registry import PLAYERS
from remuda.runs.directory import RunDirectory
from remuda.runs.display import INTERVAL, html_table, plus_minus, text_table
from remuda.runs.evaluation import EvaluationSetup, is_path, is_run, play_test_episodes
from remuda.studies.html import note, page, table

LENGTHS = (30, 50, 100)
CELLS = tuple((red, steps) for red in AGENTS for steps in LENGTHS)
RULES = ("leaderboard", "head")
WITHOUT_PAY = {"alignment": 0.0, "compliant_bonus": 0.0, "violation_penalty": 0.0}
SOURCE = "https://github.com/cage-challenge/cage-challenge-2"
PUBLISHED: dict[str, tuple[float, ...]] = {  # in the order of CELLS; 1,000 episodes each, rules=leaderboard
    "CardiffUni, PPO and greedy decoys": (-3.47, -6.41, -13.76, -5.64, -8.69, -16.60, 0.0, 0.0, 0.0),
    "Keeping it RL, ensemble of ensembles": (-3.48, -5.85, -11.39, -6.47, -10.33, -19.38, 0.0, 0.0, 0.0),
    "Mindrake, hierarchical PPO": (-3.53, -6.20, -12.78, -6.76, -10.13, -17.65, 0.0, 0.0, 0.0),
    "UoA, belief ensemble": (-3.87, -6.74, -14.63, -6.54, -12.01, -26.09, 0.0, 0.0, 0.0),
    "Keeping it RL, PPO": (-4.76, -8.13, -17.19, -8.03, -12.91, -22.94, 0.0, 0.0, -0.01),
    "CCS benchmark, PPO": (-8.75, -14.92, -30.19, -7.31, -12.04, -22.21, -0.01, -0.01, -0.03),
    "CCS random": (-154.06, -347.10, -726.92, -33.43, -171.49, -566.41, -2.80, -4.45, -8.94),
    "CCS sleep": (-218.65, -480.17, -1134.03, -39.31, -267.60, -972.43, 0.0, 0.0, 0.0),
}


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """Returns of one defender in the nine cells."""

    name: str
    rules: str
    simulator: str
    returns: Mapping[str, NDArray[np.float64]]  # by red agent, (episodes, lengths)

    @property
    def episodes(self) -> int:
        """How many episodes each cell has."""
        return len(self.returns[AGENTS[0]])

    @property
    def total(self) -> float:
        """The sum of the nine means."""
        return float(sum(own.mean(axis=0).sum() for own in self.returns.values()))

    @property
    def total_ci95(self) -> float:
        """Half its interval. Three lengths are of the same episodes, so their sum per episode is what varies."""
        errors = [_half_width(own.sum(axis=1)) for own in self.returns.values()]
        return float(np.sqrt(np.square(errors).sum()))

    def summary(self) -> dict[str, Any]:
        """Everything as plain data: the total, and for each cell its mean and half its 95 % interval."""
        return {
            "name": self.name,
            "rules": self.rules,
            "simulator": self.simulator,
            "episodes": self.episodes,
            "total": self.total,
            "total_ci95": self.total_ci95,
            "cells": {f"{red}/{steps}": {"mean": mean, "ci95": width} for red, steps, mean, width in self._cells()},
        }

    def _cells(self) -> list[tuple[str, int, float, float]]:
        return [
            (red, steps, float(own.mean()), _half_width(own))
            for red in AGENTS
            for steps, own in zip(LENGTHS, self.returns[red].T, strict=True)
        ]

    def rows(self) -> list[list[str]]:
        """A table for people: this defender first, then the published ones."""
        head = ["defender", "total", *(f"{red} {steps}" for red, steps in CELLS)]
        own = [f"{mean:.2f} {plus_minus(width)}" for _, _, mean, width in self._cells()]
        published = [
            [name, f"{sum(cells):.2f}", *(f"{cell:.2f}" for cell in cells)] for name, cells in PUBLISHED.items()
        ]
        return [head, [self.name, f"{self.total:.2f} {plus_minus(self.total_ci95)}", *own], *published]

    def remark(self) -> str:
        """What the figures are, in words."""
        where = "the original simulator" if self.simulator == "cyborg" else "remuda's simulator"
        text = (
            f"{self.episodes:,} episodes a red agent, rules={self.rules}, in {where}; ± is half a 95 % interval of the "
            f"evaluation. The other defenders were published at {SOURCE} (1,000 episodes, rules=leaderboard)."
        )
        return text if self.rules == "leaderboard" else f"{text} Rules differ: they cannot be compared."

    def __repr__(self) -> str:
        return f"{text_table(self.rows())}\n{self.remark()}"

    def _repr_html_(self) -> str:
        return html_table(self.rows()) + note(self.remark())

    def write(self, path: Path | str) -> Path:
        """Write a page with the table."""
        return write_page([self], path)


def write_page(boards: Sequence[Leaderboard], path: Path | str) -> Path:
    """Write a page with the table of each of these defenders, and the published ones below."""
    target, title = Path(path), "CAGE Challenge 2: leaderboard"
    head, _, *published = boards[0].rows()
    rows = [*(board.rows()[1] for board in boards), *published]
    parts = [f"<h1>{title}</h1>", table(head, rows), note(boards[0].remark())]
    target.write_text(page(title, parts), encoding="utf-8")
    return target


def over_runs(boards: Sequence[Leaderboard]) -> dict[str, Any]:
    """Several runs of one recipe as plain data: means over the runs, with Student's 95 % interval over the runs."""
    cells = np.array([[mean for _, _, mean, _ in board._cells()] for board in boards])  # (runs, cells)
    totals = cells.sum(axis=1)
    return {
        "runs": [board.summary() for board in boards],
        "rules": boards[0].rules,
        "simulator": boards[0].simulator,
        "total": float(totals.mean()),
        "total_ci95": _student_half_width(totals),
        "best": float(totals.max()),
        "cells": {
            f"{red}/{steps}": {"mean": float(own.mean()), "ci95": _student_half_width(own)}
            for (red, steps), own in zip(CELLS, cells.T, strict=True)
        },
    }


def _student_half_width(values: NDArray[np.float64]) -> float:
    from scipy.stats import t

    if len(values) < 2:
        return float("nan")
    return float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def cage2_leaderboard(
    target: RunDirectory | Path | str,
    rules: str = "leaderboard",
    episodes: int = 1000,
    *,
    original: bool = False,
    checkpoint: str | None = None,
    seed: int | None = None,
) -> Leaderboard:
    """Score a trained defender of CAGE 2, or a scripted one by its name, in the nine cells of the leaderboard.

    `target` is a run or its directory, `zoo:…`, or the name of a scripted defender. `original` plays in CybORG, where
    it is installed; `rules` must then be those of the installed version. `seed` decides the test episodes.
    """
    if rules not in RULES:
        raise UnknownName("rules", rules, RULES)
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} should be at least 1")
    simulator = "cyborg" if original else "own"
    options = {"rules": rules, "steps": max(LENGTHS), "simulator": simulator, "green": False, "wrapper": "challenge"}
    options |= {} if seed is None else {"seed": seed}
    returns = {red: _play(target, {**options, "red": red}, episodes, checkpoint) for red in AGENTS}
    name = target.path.name if isinstance(target, RunDirectory) else str(target)
    return Leaderboard(name, rules, simulator, returns)


def _play(
    target: RunDirectory | Path | str, settings: dict[str, Any], episodes: int, checkpoint: str | None
) -> NDArray[np.float64]:
    """Returns of the episodes after each of LENGTHS steps, (episodes, lengths)."""
    setup = _setup(target, settings, checkpoint)
    parts = []
    for fragment, *_ in play_test_episodes(setup.plan, setup.spec, setup.bindings, episodes):
        sums = fragment.rewards[:, :, 0].astype(np.float64).cumsum(axis=0)  # (turns, worlds)
        parts.append(sums[[steps - 1 for steps in LENGTHS]].T)
    return np.concatenate(parts)


def _setup(target: RunDirectory | Path | str, settings: dict[str, Any], checkpoint: str | None) -> EvaluationSetup:
    if is_run(target) or is_path(target):
        run = RunDirectory.of(target)
        if run.plan.game != "cage2":
            raise ConfigError(f"{target} is a run of {run.plan.game}: the leaderboard is that of cage2")
        if run.plan.options["workflow"] is not None:
            settings = {**settings, **WITHOUT_PAY}
        return EvaluationSetup.of(run, settings, checkpoint)
    known = [*DEFENDERS, *PLAYERS]
    if target not in known and not str(target).startswith(f"{FROZEN}:"):
        raise UnknownName("run or defender", str(target), known)
    settings = {**settings, **NEEDED_OPTIONS.get(str(target), {}), "learner": target}
    return EvaluationSetup.of("cage2", settings, checkpoint)


def _half_width(values: NDArray[np.float64]) -> float:
    return float(INTERVAL * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
