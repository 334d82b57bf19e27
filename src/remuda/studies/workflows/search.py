"""Searches the order in which a defender should repair, trial by trial; a search that was killed can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remuda.core.code_names import refuse_while_importing
from remuda.core.errors import ConfigError, RunError, Stopped, UnknownName, WorkerError
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.engines.choose import check_engine
from remuda.engines.table import AUTO
from remuda.games.cage2.options import ALL, DISTINCT
from remuda.games.cage2.workflow import ORDERS, distinct_orders
from remuda.runs.folder import free_folder, locked
from remuda.runs.settings import make_plan, spec_of
from remuda.runs.trust import check_trust, sign, sign_runs
from remuda.studies.trials.opening import open_places
from remuda.studies.trials.places import on_ray
from remuda.studies.trials.pool import TrialPool
from remuda.studies.trials.trial import TrialProgress
from remuda.studies.workflows.methods import SearchSpace, propose
from remuda.studies.workflows.options import SearchOptions, TrialResult, WorkflowTrial
from remuda.studies.workflows.page import write_report
from remuda.studies.workflows.posterior import fit_posterior, require_scikit_learn
from remuda.studies.workflows.ranking import Search, rank
from remuda.studies.workflows.state import STATE, SearchState, is_search, read_state, write_state
from remuda.studies.workflows.trials import make_trial, trial_result
from remuda.transport.processes import refuse_inside_workers

GAMES = ("cage2",)
DEFAULTS: dict[str, Any] = {"learner": "ppo", "worlds": 100, "passes": 4, "minibatches": 8, "lr": 0.001}
"""Settings of the trials, unless a preset or the user gives others."""
CHOSEN_BY_SEARCH = ("workflow", "warm_start")
"""Settings of a trial that the search chooses itself."""


@dataclass(frozen=True)
class SearchListener:
    """Callbacks of a search: for messages, and for the progress of its trials."""

    on_message: Callable[[str], None] = lambda text: None
    on_round: Callable[[WorkflowTrial, TrialProgress], None] = lambda trial, progress: None


SILENT = SearchListener()


def search(game: str, settings: Mapping[str, Any], out: Path | str, listener: SearchListener = SILENT) -> Search:
    """Search the order under which a trained defender does best; `settings` are those of the search and its trials."""
    refuse_while_importing()
    refuse_inside_workers()
    if game not in GAMES:
        raise UnknownName("game with workflows", game, GAMES)
    folder = free_folder(Path(out))
    state = _first_state(game, settings)
    with locked(folder):
        sign(folder, state.settings)
        write_state(folder, state)
        return _run(folder, state, listener)


def resume_search(
    folder: Path | str, listener: SearchListener = SILENT, trust: bool = False, on: str | None = None
) -> Search:
    """Continue a search as if it had never stopped; `trust` follows names of code in one that somebody else began."""
    path = Path(folder)
    if not is_search(path):
        raise RunError(f"{path} is not a search: it has no {STATE}")
    with locked(path):
        if trust:
            sign_runs(path)
        state = read_state(path)
        check_trust(path, state.settings, trust)
        if on is not None:
            on_ray(on)
            state = state.model_copy(update={"options": state.options.model_copy(update={"on": on})})
        return _run(path, state, listener)


def _first_state(game: str, settings: Mapping[str, Any]) -> SearchState:
    """Split the settings, and refuse those with which no trial could run before anything is written."""
    for_search = {name: value for name, value in settings.items() if name in SearchOptions.model_fields}
    options = SearchOptions.read(for_search, "the search")
    trials = {name: value for name, value in settings.items() if name not in for_search}
    for name in CHOSEN_BY_SEARCH:
        if name in trials:
            raise ConfigError(f"{name} is chosen by the search: leave it out")
    trials = {**({} if "preset" in trials else DEFAULTS), "pictures": False, **trials, "game": game}
    if on_ray(options.on):
        trials.setdefault("n_workers", 1)
    elif options.side_by_side > 1:
        trials.setdefault("n_workers", max(1, cores() // options.side_by_side))
    state = SearchState(game=game, options=options, settings=trials)
    plan = _plan(state)
    spec_of(plan)
    check_engine(plan.model_copy(update={"engine": "vectorized"}) if plan.engine == AUTO else plan)
    propose(options, _space(plan), [])
    require_scikit_learn()
    return state


def _plan(state: SearchState) -> Plan:
    """The plan of a trial with all orders."""
    return make_plan({**state.settings, "workflow": DISTINCT, "total_episodes": state.options.total_episodes})


def _space(plan: Plan) -> SearchSpace:
    counts = plan.options["foothold_counts"]
    return SearchSpace(distinct_orders(counts), counts, plan.round_episodes, DISTINCT if counts else ALL)


def _run(folder: Path, state: SearchState, listener: SearchListener) -> Search:
    """Run trials until the episodes are used up, then score the trained orders."""
    space, wall_before = _space(_plan(state)), state.wall_s
    began = time.perf_counter()
    listener.on_message(_introduction(state, space))
    under_way: dict[str, WorkflowTrial] = {}
    try:
        places = open_places(
            state.options.on, state.options.side_by_side, folder, [_plan(state)], say=listener.on_message
        )
        with TrialPool(places, lambda told: listener.on_round(under_way[told.name], told)) as pool:
            while True:
                proposing = time.perf_counter()
                trials = propose(state.options, space, state.outcomes)
                proposed_s = time.perf_counter() - proposing
                if not trials:
                    break
                under_way = {str(trial.number): trial for trial in trials}
                results = _run_trials(pool, folder, state, trials)
                state = state.model_copy(
                    update={
                        "outcomes": [*state.outcomes, *results],
                        "wall_s": wall_before + time.perf_counter() - began,
                        "proposing_s": state.proposing_s + proposed_s,
                    }
                )
                write_state(folder, state)
                for result in results:
                    listener.on_message(_result_line(result))
    except Stopped:
        listener.on_message(f"stopped after {len(state.outcomes)} trials; go on with: remuda resume {folder}")
        return Search(folder, state, space)
    scoring = time.perf_counter()
    ranking, chosen = rank(folder, state, space, listener.on_message)
    update = {
        "finished": True,
        "scoring_s": time.perf_counter() - scoring,
        "wall_s": wall_before + time.perf_counter() - began,
    }
    state = state.model_copy(update=update)
    posterior = fit_posterior(space.orders, state.outcomes, space.foothold_counts)
    found = Search(folder, state, space, ranking, chosen, posterior)
    write_report(found)
    write_state(folder, state)
    return found


def _run_trials(
    pool: TrialPool, folder: Path, state: SearchState, trials: Sequence[WorkflowTrial]
) -> list[TrialResult]:
    """Run these trials at the same time; returns their results in their order."""
    waiting = [make_trial(folder, trial, state.settings, state.options) for trial in trials]
    results = {}
    for outcome in pool.run(lambda busy: waiting.pop(0) if waiting else None):
        number = int(outcome.trial.name)
        if outcome.status == "failed":
            raise WorkerError(f"trial {number} failed: {outcome.why}; nothing else is lost: go on with resume")
        if outcome.status != "stopped":
            own = next(trial for trial in trials if trial.number == number)
            results[number] = trial_result(outcome, own, state.options)
    if len(results) < len(trials):
        raise Stopped("the search was asked to end")
    return [results[trial.number] for trial in trials]


def _introduction(state: SearchState, space: SearchSpace) -> str:
    why = ", since red always holds User0" if space.foothold_counts else ""
    known = f"; going on after {len(state.outcomes)} trials" if state.outcomes else ""
    return (
        f"{state.game}: the {len(ORDERS)} orders are {len(space.orders)} different games{why}; "
        f"{state.options.method}, {state.options.total_episodes:,} episodes in all{known}"
    )


def _result_line(result: TrialResult) -> str:
    below = "" if result.passed else ", below the threshold"
    return (
        f"trial {result.trial.number}: {result.trial.workflow}: {result.episodes:,} episodes, "
        f"return {result.env_return:.1f}, compliance {result.compliance:.2f}{below} ({result.why})"
    )
