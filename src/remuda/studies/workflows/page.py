"""The report of a search: tables as CSV files, and a web page in one file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from remuda.games.cage2.workflow import ORDERS
from remuda.runs.callbacks.base import Row
from remuda.runs.directory import to_json
from remuda.runs.display import INTERVAL
from remuda.runs.storage import storage_errors
from remuda.studies.html import BLUE, GREEN, GREY, INK, ORANGE, RED, figure, note, page, svg, table
from remuda.studies.tables import write_table
from remuda.studies.workflows.options import TrialResult
from remuda.studies.workflows.posterior import last_passed
from remuda.studies.workflows.ranking import Search
from remuda.studies.workflows.state import RESULT

MAX_NAMED = 20
"""How many orders the ranking on the page lists."""


def write_report(found: Search) -> None:
    """Write ranking, trials, posterior, result and page into the search's folder."""
    write_table(found.folder / "ranking.csv", [vars(score) for score in found.ranking])
    write_table(found.folder / "trials.csv", [_trial_row(result) for result in found.state.outcomes])
    write_table(found.folder / "posterior.csv", _posterior_rows(found))
    with storage_errors(found.folder):
        (found.folder / RESULT).write_text(to_json(found.result(), indent=1), encoding="utf-8")
        (found.folder / "search.html").write_text(html(found), encoding="utf-8")


def _trial_row(result: TrialResult) -> Row:
    trial = result.trial
    head = {"trial": trial.number, "workflow": trial.workflow, "from_trial": trial.parent, "limit": trial.episodes}
    return {**head, **result.model_dump(exclude={"trial"})}


def _posterior_rows(found: Search) -> list[Row]:
    if found.posterior is None:
        return []
    known = last_passed(found.state.outcomes)
    rows = [
        {"workflow": order, "expected_return": float(mean), "std": float(std), "tried": order in known}
        for order, mean, std in zip(found.space.orders, found.posterior.mean, found.posterior.std, strict=True)
    ]
    return sorted(rows, key=lambda row: row["expected_return"], reverse=True)


def html(found: Search) -> str:
    """The page."""
    state, space = found.state, found.space
    options, results = state.options, state.outcomes
    games = (
        f"The {len(ORDERS)} orders are {len(space.orders)} different games: red always holds User0, so a fix of a "
        "type after “user” can never comply. Only one order of each game was tried."
        if space.foothold_counts
        else f"User0 is not counted, so all {len(ORDERS)} orders are different games."
    )
    parts = [
        f"<h1>{escape(state.game)}: which order should a defender repair in?</h1>",
        f"<p>{escape(_summary(found))}</p>",
        note(games),
        "<h2>Ranking</h2>",
        note(
            f"Each trained policy on {options.score_episodes} fresh episodes, with actions drawn as in training; ± is "
            "half of a 95 % confidence interval of the mean over episodes. It does not cover the variation between "
            "trainings: another seed gives another policy."
        ),
        _ranking_table(found),
        "<h2>Return against compliance</h2>",
        note("Every trial at its end. The search does not use the returns left of the line."),
        _scatter(results, options.compliance_threshold),
        "<h2>Trials in order</h2>",
        _timeline(results),
    ]
    if found.posterior is not None:
        parts += [
            "<h2>What the Gaussian process expects of every order</h2>",
            note(
                "Mean and standard deviation of the posterior, from the returns of trials that passed; the kernel "
                "falls with Kendall’s distance between orders. Only the marked points were measured."
            ),
            _posterior_picture(found),
        ]
    parts += ["<h2>Where the time went</h2>", _time_table(found)]
    return page(f"{state.game}: which order?", parts)


def _summary(found: Search) -> str:
    options, results = found.state.options, found.state.outcomes
    episodes = sum(result.episodes for result in results)
    text = (
        f"Method {options.method}, seed {options.seed}: {episodes:,} episodes in {len(results)} trials, "
        f"{sum(result.passed for result in results)} of which reached compliance {options.compliance_threshold:g}. "
    )
    if found.chosen is None:
        return text + "None was chosen, since none passed."
    chosen = found.chosen
    return text + (
        f"Chosen: {chosen.workflow}, with a return of {chosen.env_return:.1f} ± {chosen.env_return_ci95:.1f} and "
        f"compliance {chosen.compliance:.3f} on fresh episodes."
    )


def _ranking_table(found: Search) -> str:
    chosen = found.chosen.workflow if found.chosen else ""
    rows = [
        [
            score.workflow.replace(",", ", ") + ("  ← chosen" if score.workflow == chosen else ""),
            f"{score.env_return:.2f} ± {score.env_return_ci95:.2f}",
            f"{score.compliance:.3f} ± {score.compliance_ci95:.3f}" + ("" if score.passed else " (too low)"),
            f"{score.fixes:.1f}",
            str(score.trial),
        ]
        for score in found.ranking[:MAX_NAMED]
    ]
    more = len(found.ranking) - len(rows)
    rest = note(f"{more} more are in ranking.csv.") if more > 0 else ""
    return table(("order", "return", "compliance", "fixes", "trial"), rows) + rest


def _scatter(results: Sequence[TrialResult], threshold: float) -> str:
    drawn, axes = figure(4.2)
    order = [result.trial.number for result in results]
    points = axes.scatter(
        [result.compliance for result in results], [result.env_return for result in results], c=order, cmap="viridis",
        s=36, edgecolors=INK, linewidths=0.5,
    )  # fmt: skip
    axes.axvline(threshold, color=RED, linestyle="--", label="threshold")
    axes.set(xlabel="compliance", ylabel="return of the environment")
    axes.legend(loc="lower left", frameon=False)
    drawn.colorbar(points, label="trial")
    return svg(drawn)


def _timeline(results: Sequence[TrialResult]) -> str:
    drawn, axes = figure(4.2)
    start = 0
    for result in results:
        axes.plot(
            [start, start + result.episodes], [result.env_return] * 2, linewidth=4, solid_capstyle="butt",
            color=GREEN if result.passed else ORANGE,
        )  # fmt: skip
        start += result.episodes
    bests = _best_so_far(results)
    if bests:
        axes.step(*zip(*bests, strict=True), where="post", color=INK, linewidth=1)
    for colour, text in ((GREEN, "passed"), (ORANGE, "below the threshold"), (INK, "best so far")):
        axes.plot([], [], color=colour, label=text)
    axes.set(xlabel="episodes of training, all trials together", ylabel="return of the environment")
    axes.legend(loc="lower right", frameon=False)
    return svg(drawn)


def _best_so_far(results: Sequence[TrialResult]) -> list[tuple[int, float]]:
    episodes, best, line = 0, -np.inf, []
    for result in results:
        episodes += result.episodes
        if result.passed:
            best = max(best, result.env_return)
            line.append((episodes, float(best)))
    return line


def _posterior_picture(found: Search) -> str:
    rows = _posterior_rows(found)
    known = last_passed(found.state.outcomes)
    drawn, axes = figure(0.8 + 0.17 * len(rows))
    axes.invert_yaxis()
    names = [_short(row["workflow"]) for row in rows]
    means, widths = [row["expected_return"] for row in rows], [INTERVAL * row["std"] for row in rows]
    axes.errorbar(means, names, xerr=widths, fmt="o", color=BLUE, ecolor=GREY, markersize=4, label="expected (95 %)")
    tried: list[tuple[float, Any]] = [
        (known[row["workflow"]].env_return, name) for row, name in zip(rows, names, strict=True) if row["tried"]
    ]
    if tried:
        axes.plot(*zip(*tried, strict=True), "D", color=ORANGE, markersize=4, zorder=3, label="reported by a trial")
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(y=0.01)
    axes.set_xlabel("return of the environment")
    axes.legend(loc="upper left", frameon=False)
    return svg(drawn)


def _short(order: str) -> str:
    return order.replace("defender", "def").replace("enterprise", "ent").replace(",", " · ")


def _time_table(found: Search) -> str:
    seconds = dict(found.seconds())
    wall = seconds.pop("wall")
    total = max(sum(seconds.values()), 1e-9)
    rows = [[name, f"{spent:,.1f} s", f"{spent / total:.1%}"] for name, spent in seconds.items()]
    return note(f"{wall:,.0f} s in total.") + table(("", "seconds", "share"), rows)
