"""The learning curve as a picture. Importing this imports matplotlib, which is slow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from remuda.core.errors import RunError
from remuda.runs.callbacks.tables import by_agent

if TYPE_CHECKING:
    from remuda.runs.directory import RunDirectory

LEGEND_AGENTS = 10


class CurveFigure(Figure):
    """A figure that a notebook shows although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def curve(run: RunDirectory) -> Figure:
    """Return against episodes: each agent thin, the herd's mean thick, evaluations as dots."""
    table = run.metrics
    if not len(table["round"]):
        raise RunError(f"{run.path} has no learning curve yet: no round was trained")
    episodes = by_agent(table, "episodes")[:, 0]
    returns = by_agent(table, "return")
    figure = CurveFigure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    width = max(1, len(returns) // 50)
    smooth = _moving_mean(returns, width)
    for agent in range(returns.shape[1]):
        label = f"agent {agent}" if returns.shape[1] <= LEGEND_AGENTS else None
        axes.plot(episodes[width - 1 :], smooth[:, agent], linewidth=0.9, alpha=0.7, label=label)
    axes.plot(episodes[width - 1 :], smooth.mean(axis=1), color="black", linewidth=2, label="mean of the herd")
    tests = run.evaluations
    if len(tests["round"]):
        axes.plot(
            by_agent(tests, "episodes")[:, 0], by_agent(tests, "return").mean(axis=1),
            "o", color="crimson", label="evaluation (greedy)",
        )  # fmt: skip
    axes.set(xlabel="episodes", ylabel="return per episode", title=f"{run.plan.game}, {returns.shape[1]} agents")
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small", ncols=2)
    return figure


def draw_curve(run: RunDirectory) -> Path:
    """Write the learning curve into the run directory."""
    target = run.path / "curve.png"
    try:
        curve(run).savefig(target)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def _moving_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    sums = np.cumsum(np.vstack([np.zeros((1, values.shape[1])), values]), axis=0)
    means: NDArray[np.float64] = (sums[width:] - sums[:-width]) / width
    return means
