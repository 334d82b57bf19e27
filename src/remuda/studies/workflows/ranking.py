"""The result of a search: every trained order, scored on fresh episodes with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remuda.games.cage2.workflow import ORDERS
from remuda.runs.callbacks.base import Row
from remuda.runs.display import INTERVAL
from remuda.runs.evaluation import EvaluationSetup, evaluate_policies
from remuda.runs.recorder import standard_error
from remuda.studies.workflows.methods import SearchSpace, best_result
from remuda.studies.workflows.options import TrialResult
from remuda.studies.workflows.posterior import Posterior
from remuda.studies.workflows.state import SearchState
from remuda.studies.workflows.trials import trial_folder

CHOICE_SEED_OFFSET = 10**6
"""Added to the seed of the episodes on which method=conditioned chooses an order; it is not scored on them."""


@dataclass(frozen=True)
class Score:
    """The trained policy of an order on fresh episodes, with actions drawn as in training."""

    workflow: str
    trial: int
    episodes: int
    env_return: float
    env_return_ci95: float
    compliance: float
    compliance_ci95: float
    fixes: float
    passed: bool

    @property
    def rank_key(self) -> tuple[bool, float]:
        """Orders that comply come first, then by return."""
        return self.passed, self.env_return


@dataclass(frozen=True)
class Search:
    """A search, finished or not."""

    folder: Path
    state: SearchState
    space: SearchSpace
    ranking: Sequence[Score] = ()
    chosen: Score | None = None
    posterior: Posterior | None = None

    def seconds(self) -> dict[str, float]:
        """Where the time went; trials that run at the same time are added up."""
        state = self.state
        trials = {
            "simulating": sum(result.collect_s for result in state.outcomes),
            "learning": sum(result.learn_s for result in state.outcomes),
        }
        searching = {"searching": state.proposing_s, "scoring": state.scoring_s}
        rest = state.wall_s * state.options.side_by_side - sum(trials.values()) - sum(searching.values())
        return {"wall": state.wall_s, **trials, **searching, "starting and saving": max(0.0, rest)}

    def result(self) -> Row:
        """Everything the search found, for programs."""
        results = self.state.outcomes
        return {
            "search": str(self.folder),
            "game": self.state.game,
            "finished": self.state.finished,
            **self.state.options.model_dump(),
            "orders": len(ORDERS),
            "distinct_games": len(self.space.orders),
            "episodes": sum(result.episodes for result in results),
            "trials": len(results),
            "trials_that_passed": sum(result.passed for result in results),
            "seconds": self.seconds(),
            "chosen": None if self.chosen is None else vars(self.chosen),
            "ranking": [vars(score) for score in self.ranking],
        }


def rank(
    folder: Path, state: SearchState, space: SearchSpace, on_message: Callable[[str], None]
) -> tuple[list[Score], Score | None]:
    """Scores of every trained order, best first, and the order that the search itself chose."""
    options = state.options
    trained = {result.trial.workflow: result for result in state.outcomes}
    if space.all_orders in trained:
        trained = dict.fromkeys(space.orders, trained[space.all_orders])
    on_message(f"scoring {len(trained)} orders on {options.score_episodes} fresh episodes each")
    scores = {order: _score(folder, state, order, result, options.seed) for order, result in trained.items()}
    if options.method == "conditioned":
        seed = options.seed + CHOICE_SEED_OFFSET
        others = [_score(folder, state, order, result, seed) for order, result in trained.items()]
        chosen = max(others, key=lambda score: score.rank_key).workflow
    else:
        best = best_result(state.outcomes)
        chosen = "" if best is None else best.trial.workflow
    return sorted(scores.values(), key=lambda score: score.rank_key, reverse=True), scores.get(chosen)


def _score(folder: Path, state: SearchState, order: str, result: TrialResult, seed: int) -> Score:
    setup = EvaluationSetup.of(trial_folder(folder, result.trial.number), {"workflow": order, "seed": seed})
    count = state.options.score_episodes
    metrics = evaluate_policies(setup.plan, setup.spec, setup.bindings, count, None).metrics
    returns, compliance, fixes = (metrics[name][:, 0] for name in ("env_return", "compliance", "fixes"))
    width = [INTERVAL * float(standard_error(np.asarray(values))) for values in (returns, compliance)]
    mean = float(compliance.mean())
    return Score(
        order, result.trial.number, count, float(returns.mean()), width[0], mean, width[1], float(fixes.mean()),
        mean >= state.options.compliance_threshold,
    )  # fmt: skip
