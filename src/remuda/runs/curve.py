"""The learning curve as a picture. Importing this imports matplotlib, which is slow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from remuda.core.errors import RunError
from remuda.core.scene import agent_colour
from remuda.runs.callbacks.tables import KEYS, by_agent
from remuda.runs.display import INTERVAL

if TYPE_CHECKING:
    from remuda.runs.directory import RunDirectory

LEGEND_AGENTS = 10
MAX_METRICS = 6
"""Metrics drawn beside the return."""
WINDOWS = 40
"""The smoothing window is this part of the run."""


class CurveFigure(Figure):
    """A figure that a notebook shows although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def curve(run: RunDirectory) -> Figure:
    """Return against episodes, smoothed, each agent thin and the herd's mean thick with its raw line behind it.

    Evaluations are dots with an interval. The other metrics stand beside the return, as means of the herd.
    """
    table = run.metrics
    if not len(table["round"]):
        raise RunError(f"{run.path} has no learning curve yet: no round was trained")
    episodes = by_agent(table, "episodes")[:, 0]
    weights = np.diff(episodes, prepend=0.0)  # episodes in each round; the last may have few
    names = [name for name, column in table.items() if name not in (*KEYS, "return") and _is_drawn(column)]
    names = names[:MAX_METRICS]
    figure = CurveFigure(figsize=(11 if names else 8, 4.8), dpi=120, layout="constrained")
    grid = figure.add_gridspec(max(1, -(-len(names) // 2)), 4 if names else 2)
    _draw_returns(figure.add_subplot(grid[:, :2]), run, by_agent(table, "return"), episodes, weights)
    for i, name in enumerate(names):
        axes = figure.add_subplot(grid[i // 2, 2 + i % 2])
        _draw_smoothed(axes, episodes, by_agent(table, name).mean(axis=1), weights, agent_colour(i))
        axes.set_title(name, fontsize="small", loc="left")
        axes.tick_params(labelsize="x-small")
    return figure


def _is_drawn(column: NDArray[Any]) -> bool:
    """Whether a column has numbers, and not the same everywhere."""
    return column.dtype.kind == "f" and np.isfinite(column).any() and np.nanmin(column) != np.nanmax(column)


def _draw_returns(axes: Any, run: RunDirectory, returns: Any, episodes: Any, weights: Any) -> None:
    agents = returns.shape[1]
    for agent in range(agents if agents > 1 else 0):
        label = f"agent {agent}" if agents <= LEGEND_AGENTS else None
        colour = agent_colour(agent)
        axes.plot(episodes, smoothed(returns[:, agent], weights), color=colour, linewidth=0.9, alpha=0.8, label=label)
    whose = "mean of the herd" if agents > 1 else "return"
    _draw_smoothed(axes, episodes, returns.mean(axis=1), weights, "black", whose)
    tests = run.evaluations
    if len(tests["round"]):
        # The agents' errors are not independent: the mean of them bounds the error of the mean.
        errors = INTERVAL * np.nan_to_num(by_agent(tests, "return_se").mean(axis=1))
        axes.errorbar(
            by_agent(tests, "episodes")[:, 0], by_agent(tests, "return").mean(axis=1), errors,
            fmt="o", color="crimson", capsize=3, label=f"evaluation ({run.plan.evaluate_mode}, 95 %)",
        )  # fmt: skip
    title = f"{run.plan.game}, {agents} {'agent' if agents == 1 else 'agents'}"
    axes.set(xlabel="episodes", ylabel="return per episode and agent", title=title)
    axes.legend(fontsize="x-small", ncols=2)


def _draw_smoothed(axes: Any, episodes: Any, values: Any, weights: Any, colour: str, label: str | None = None) -> None:
    """The smoothed line with the raw one behind it, without a last round of few episodes."""
    whole = slice(None) if weights[-1] >= weights[0] / 2 or len(weights) == 1 else slice(-1)
    axes.plot(episodes[whole], values[whole], color=colour, linewidth=0.7, alpha=0.3)
    axes.plot(episodes, smoothed(values, weights), color=colour, linewidth=2, label=label)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_curve(run: RunDirectory) -> Path:
    """Write the learning curve into the run directory."""
    target = run.path / "curve.png"
    try:
        curve(run).savefig(target)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def smoothed(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over a window around each round, in which every episode counts the same; unknown values do not count."""
    reach = max(len(values) // WINDOWS // 2, min(2, len(values) // 8))
    known = np.where(np.isfinite(values), weights, 0.0)
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values) * known)])
    counts = np.concatenate([[0.0], np.cumsum(known)])
    # A round of few episodes is never alone in its window.
    last_reach = reach + (1 if len(values) > 1 and weights[-1] < weights[0] / 2 else 0)
    first = np.maximum(
        np.arange(len(values)) - np.where(np.arange(len(values)) == len(values) - 1, last_reach, reach), 0
    )
    last = np.minimum(np.arange(len(values)) + reach + 1, len(values))
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = (sums[last] - sums[first]) / (counts[last] - counts[first])
    return means
