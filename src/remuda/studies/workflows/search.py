"""Which order should a defender repair in? A search over workflows, trial by trial; it can be killed and goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remuda.core.errors import ConfigError, RunError, Stopped, UnknownName
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.engines.table import check_engine, choose_engine
from remuda.games.cage2.options import ALL, DISTINCT
from remuda.games.cage2.workflow import ORDERS, distinct_orders
from remuda.games.registry import refuse_while_importing
from remuda.runs.settings import make_plan, spec_of
from remuda.runs.training import free_folder, locked
from remuda.studies.workflows import state as book_keeping
from remuda.studies.workflows.methods import SearchSpace, propose
from remuda.studies.workflows.options import SearchOptions, TrialResult
from remuda.studies.workflows.page import publish
from remuda.studies.workflows.posterior import believe, require_library
from remuda.studies.workflows.ranking import Search, rank
from remuda.studies.workflows.state import SearchState
from remuda.studies.workflows.trial_pool import TrialPool, Watch
from remuda.transport.processes import refuse_inside_workers

GAMES = ("cage2",)
SETTINGS: dict[str, Any] = {"learner": "ppo", "worlds": 100, "passes": 4, "minibatches": 8, "lr": 0.001}
"""Of the trials, unless one says otherwise."""
OURS = ("workflow", "warm_start")
"""Settings of a trial that the search decides itself."""


@dataclass(frozen=True)
class SearchListener:
    """Who is told what happens: sentences, and every round of a trial in this process."""

    tell: Callable[[str], None] = lambda text: None
    watch: Watch = lambda trial, row: None


SILENT = SearchListener()


def search(game: str, settings: Mapping[str, Any], out: Path | str, listener: SearchListener = SILENT) -> Search:
    """Search the order under which a trained defender does best; `settings` are those of the search and its trials."""
    refuse_while_importing()
    refuse_inside_workers()
    if game not in GAMES:
        raise UnknownName("game with workflows", game, GAMES)
    folder = free_folder(Path(out))
    books = _begin(game, settings)
    with locked(folder):
        book_keeping.write(folder, books)
        return _go(folder, books, listener)


def resume_search(folder: Path | str, listener: SearchListener = SILENT) -> Search:
    """Go on with a search as if it had never stopped."""
    path = Path(folder)
    if not book_keeping.is_search(path):
        raise RunError(f"{path} is not a search: it has no {book_keeping.STATE}")
    with locked(path):
        return _go(path, book_keeping.read(path), listener)


def _begin(game: str, settings: Mapping[str, Any]) -> SearchState:
    """Sort the settings, and refuse those no trial could run with before anything is written."""
    own = {name: value for name, value in settings.items() if name in SearchOptions.model_fields}
    options = SearchOptions.read(own, "the search")
    trials = {name: value for name, value in settings.items() if name not in own}
    for name in OURS:
        if name in trials:
            raise ConfigError(f"{name} is for the search to choose: leave it out")
    trials = {**({} if "preset" in trials else SETTINGS), "pictures": False, **trials, "game": game}
    if options.side_by_side > 1:
        trials.setdefault("n_workers", max(1, cores() // options.side_by_side))
    books = SearchState(game=game, options=options, settings=trials)
    plan = _plan(books)
    check_engine(choose_engine(plan, spec_of(plan))[0])
    propose(options, _field(plan), [])
    require_library()
    return books


def _plan(books: SearchState) -> Plan:
    """The plan of a trial that holds all orders."""
    return make_plan({**books.settings, "workflow": DISTINCT, "total_episodes": books.options.total_episodes})


def _field(plan: Plan) -> SearchSpace:
    """What there is to search."""
    counts = plan.options["foothold_counts"]
    return SearchSpace(distinct_orders(counts), counts, plan.round_episodes, DISTINCT if counts else ALL)


def _go(folder: Path, books: SearchState, listener: SearchListener) -> Search:
    """Trial after trial until the episodes are spent, then score what was trained."""
    field, before = _field(_plan(books)), books.wall_s
    began = time.perf_counter()
    listener.tell(_introduced(books, field))
    try:
        with TrialPool(folder, books.settings, books.options, listener.watch) as team:
            while True:
                proposing = time.perf_counter()
                trials = propose(books.options, field, books.outcomes)
                proposed = time.perf_counter() - proposing
                if not trials:
                    break
                outcomes = team.attempt(trials)
                books = books.model_copy(
                    update={
                        "outcomes": [*books.outcomes, *outcomes],
                        "wall_s": before + time.perf_counter() - began,
                        "proposing_s": books.proposing_s + proposed,
                    }
                )
                book_keeping.write(folder, books)
                for outcome in outcomes:
                    listener.tell(_reported(outcome))
    except Stopped:
        listener.tell(f"stopped after {len(books.outcomes)} trials; go on with: remuda resume {folder}")
        return Search(folder, books, field)
    scoring = time.perf_counter()
    ranking, chosen = rank(folder, books, field, listener.tell)
    update = {
        "finished": True,
        "scoring_s": time.perf_counter() - scoring,
        "wall_s": before + time.perf_counter() - began,
    }
    books = books.model_copy(update=update)
    belief = believe(field.orders, books.outcomes, field.foothold_counts)
    found = Search(folder, books, field, ranking, chosen, belief)
    publish(found)
    book_keeping.write(folder, books)
    return found


def _introduced(books: SearchState, field: SearchSpace) -> str:
    why = ", since red always holds User0" if field.foothold_counts else ""
    known = f"; going on after {len(books.outcomes)} trials" if books.outcomes else ""
    return (
        f"{books.game}: the {len(ORDERS)} orders are {len(field.orders)} different games{why}; "
        f"{books.options.method}, {books.options.total_episodes:,} episodes in all{known}"
    )


def _reported(own: TrialResult) -> str:
    gate = "" if own.passed else ", below the threshold"
    return (
        f"trial {own.trial.number}: {own.trial.workflow}: {own.episodes:,} episodes, return {own.env_return:.1f}, "
        f"compliance {own.compliance:.2f}{gate} ({own.why})"
    )
