"""A search for people: tables as CSV, and a page with pictures that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from remuda.games.cage2.workflow import ORDERS
from remuda.runs.callbacks.base import Row
from remuda.runs.run import to_json
from remuda.runs.storage import storage_errors
from remuda.studies.html import BLUE, GREEN, GREY, INK, ORANGE, RED, figure, note, page, svg, table
from remuda.studies.workflows.options import TrialResult
from remuda.studies.workflows.posterior import reported
from remuda.studies.workflows.ranking import Search
from remuda.studies.workflows.state import RESULT, write_table

MOST_NAMED = 20
"""Orders that a table or a picture names one by one."""


def publish(found: Search) -> None:
    """Write ranking, trials, result and page beside the books."""
    write_table(found.folder / "ranking.csv", [vars(own) for own in found.ranking])
    write_table(found.folder / "trials.csv", [_trial_row(own) for own in found.books.outcomes])
    write_table(found.folder / "posterior.csv", _beliefs(found))
    with storage_errors(found.folder):
        (found.folder / RESULT).write_text(to_json(found.result(), indent=1), encoding="utf-8")
        (found.folder / "search.html").write_text(html(found), encoding="utf-8")


def _trial_row(own: TrialResult) -> Row:
    trial = own.trial
    head = {"trial": trial.number, "workflow": trial.workflow, "from_trial": trial.parent, "limit": trial.episodes}
    return {**head, **own.model_dump(exclude={"trial"})}


def _beliefs(found: Search) -> list[Row]:
    if found.belief is None:
        return []
    known = reported(found.books.outcomes)
    rows = [
        {"workflow": order, "expected_return": float(mean), "std": float(std), "tried": order in known}
        for order, mean, std in zip(found.field.orders, found.belief.mean, found.belief.std, strict=True)
    ]
    return sorted(rows, key=lambda row: row["expected_return"], reverse=True)


def html(found: Search) -> str:
    """The page."""
    books, field = found.books, found.field
    options, outcomes = books.options, books.outcomes
    same = (
        f"The {len(ORDERS)} orders are {len(field.orders)} different games: red always holds User0, so a fix of any "
        "type that stands after “user” can never comply. Only one order of each game was tried."
        if field.foothold_counts
        else f"User0 is not counted, so all {len(ORDERS)} orders are different games."
    )
    parts = [
        f"<h1>{escape(books.game)}: which order should a defender repair in?</h1>",
        f"<p>{escape(_summary(found))}</p>",
        note(same),
        "<h2>Ranking</h2>",
        note(
            f"Each trained policy on {options.score_episodes} fresh episodes, its actions drawn as in training; ± is "
            "half of a 95 % interval of the mean over episodes. It does not contain the luck of training: another "
            "seed gives another policy."
        ),
        _ranking(found),
        "<h2>Return against compliance</h2>",
        note("Every trial at its end. Left of the line its return was not told to the search."),
        _scatter(outcomes, options.compliance_threshold),
        "<h2>What was tried when</h2>",
        _timeline(outcomes),
    ]
    if found.belief is not None:
        parts += [
            "<h2>What the Gaussian process expects of every order</h2>",
            note(
                "Mean and standard deviation of the posterior, from the returns of trials that passed; the kernel "
                "falls with Kendall’s distance between orders. Nothing here was measured except what is marked."
            ),
            _posterior(found),
        ]
    parts += ["<h2>Where the time went</h2>", _time(found)]
    return page(f"{books.game}: which order?", parts)


def _summary(found: Search) -> str:
    options, outcomes = found.books.options, found.books.outcomes
    spent = sum(own.episodes for own in outcomes)
    text = (
        f"Method {options.method}, seed {options.seed}: {spent:,} episodes in {len(outcomes)} trials, "
        f"{sum(own.passed for own in outcomes)} of which reached compliance {options.compliance_threshold:g}. "
    )
    if found.chosen is None:
        return text + "None was chosen, since none passed."
    own = found.chosen
    return text + (
        f"Chosen: {own.workflow}, with a return of {own.env_return:.1f} ± {own.env_return_ci95:.1f} and compliance "
        f"{own.compliance:.3f} on fresh episodes."
    )


def _ranking(found: Search) -> str:
    chosen = found.chosen.workflow if found.chosen else ""
    rows = [
        [
            own.workflow.replace(",", ", ") + ("  ← chosen" if own.workflow == chosen else ""),
            f"{own.env_return:.2f} ± {own.env_return_ci95:.2f}",
            f"{own.compliance:.3f} ± {own.compliance_ci95:.3f}" + ("" if own.passed else " (too low)"),
            f"{own.fixes:.1f}",
            str(own.trial),
        ]
        for own in found.ranking[:MOST_NAMED]
    ]
    more = len(found.ranking) - len(rows)
    rest = note(f"{more} more are in ranking.csv.") if more > 0 else ""
    return table(("order", "return", "compliance", "fixes", "trial"), rows) + rest


def _scatter(outcomes: Sequence[TrialResult], threshold: float) -> str:
    drawn, axes = figure(4.2)
    order = [own.trial.number for own in outcomes]
    points = axes.scatter(
        [own.compliance for own in outcomes], [own.env_return for own in outcomes], c=order, cmap="viridis", s=36,
        edgecolors=INK, linewidths=0.5,
    )  # fmt: skip
    axes.axvline(threshold, color=RED, linestyle="--", label="threshold")
    axes.set(xlabel="compliance", ylabel="return of the environment")
    axes.legend(loc="lower left", frameon=False)
    drawn.colorbar(points, label="trial")
    return svg(drawn)


def _timeline(outcomes: Sequence[TrialResult]) -> str:
    drawn, axes = figure(4.2)
    start = 0
    for own in outcomes:
        axes.plot(
            [start, start + own.episodes], [own.env_return] * 2, linewidth=4, solid_capstyle="butt",
            color=GREEN if own.passed else ORANGE,
        )  # fmt: skip
        start += own.episodes
    bests = _best_so_far(outcomes)
    if bests:
        axes.step(*zip(*bests, strict=True), where="post", color=INK, linewidth=1)
    for colour, text in ((GREEN, "passed"), (ORANGE, "below the threshold"), (INK, "best so far")):
        axes.plot([], [], color=colour, label=text)
    axes.set(xlabel="episodes of training, all trials together", ylabel="return of the environment")
    axes.legend(loc="lower right", frameon=False)
    return svg(drawn)


def _best_so_far(outcomes: Sequence[TrialResult]) -> list[tuple[int, float]]:
    episodes, best, line = 0, -np.inf, []
    for own in outcomes:
        episodes += own.episodes
        if own.passed:
            best = max(best, own.env_return)
            line.append((episodes, float(best)))
    return line


def _posterior(found: Search) -> str:
    rows = _beliefs(found)
    known = reported(found.books.outcomes)
    drawn, axes = figure(0.8 + 0.17 * len(rows))
    axes.invert_yaxis()
    names = [_short(row["workflow"]) for row in rows]
    means, widths = [row["expected_return"] for row in rows], [row["std"] for row in rows]
    axes.errorbar(means, names, xerr=widths, fmt="o", color=BLUE, ecolor=GREY, markersize=4, label="expected ± 1 sd")
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


def _time(found: Search) -> str:
    seconds = dict(found.seconds())
    wall = seconds.pop("wall")
    total = max(sum(seconds.values()), 1e-9)
    rows = [[name, f"{own:,.1f} s", f"{own / total:.1%}"] for name, own in seconds.items()]
    return note(f"{wall:,.0f} s on the wall.") + table(("", "seconds", "share"), rows)
