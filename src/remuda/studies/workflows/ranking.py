"""What a search found: every trained order scored on fresh episodes, with how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remuda.games.cage2.workflow import ORDERS
from remuda.runs.display import INTERVAL
from remuda.runs.evaluation import EvaluationSetup, evaluate_policies
from remuda.runs.recorder import Row, standard_error
from remuda.studies.workflows.methods import SearchSpace, best
from remuda.studies.workflows.options import TrialResult
from remuda.studies.workflows.posterior import Belief
from remuda.studies.workflows.state import SearchState
from remuda.studies.workflows.trials import folder_of

CHOOSING = 10**6
"""Added to the seed for episodes on which a policy for all orders chooses one: it was never told their returns."""


@dataclass(frozen=True)
class Score:
    """An order's trained policy on fresh episodes, its actions drawn as in training."""

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
    def merit(self) -> tuple[bool, float]:
        """Those that comply come first."""
        return self.passed, self.env_return


@dataclass(frozen=True)
class Search:
    """A search, finished or not."""

    folder: Path
    books: SearchState
    field: SearchSpace
    ranking: Sequence[Score] = ()
    chosen: Score | None = None
    belief: Belief | None = None

    def seconds(self) -> dict[str, float]:
        """Where the time went; of trials side by side, each counts."""
        books = self.books
        trials = {
            "simulating": sum(own.collect_s for own in books.outcomes),
            "learning": sum(own.learn_s for own in books.outcomes),
        }
        own = {"searching": books.proposing_s, "scoring": books.scoring_s}
        rest = books.wall_s * books.options.side_by_side - sum(trials.values()) - sum(own.values())
        return {"wall": books.wall_s, **trials, **own, "starting and saving": max(0.0, rest)}

    def result(self) -> Row:
        """Everything that came out of it, for programs."""
        return {
            "search": str(self.folder),
            "game": self.books.game,
            "finished": self.books.finished,
            **self.books.options.model_dump(),
            "orders": len(ORDERS),
            "distinct_games": len(self.field.orders),
            "episodes": sum(own.episodes for own in self.books.outcomes),
            "trials": len(self.books.outcomes),
            "trials_that_passed": sum(own.passed for own in self.books.outcomes),
            "seconds": self.seconds(),
            "chosen": None if self.chosen is None else vars(self.chosen),
            "ranking": [vars(own) for own in self.ranking],
        }


def rank(
    folder: Path, books: SearchState, field: SearchSpace, tell: Callable[[str], None]
) -> tuple[list[Score], Score | None]:
    """Every trained order, best first, and the one chosen by what the search itself had seen."""
    options = books.options
    trained = {own.trial.workflow: own for own in books.outcomes}
    if field.everything in trained:
        trained = dict.fromkeys(field.orders, trained[field.everything])
    tell(f"scoring {len(trained)} orders on {options.score_episodes} fresh episodes each")
    scores = {order: _score(folder, books, order, own, options.seed) for order, own in trained.items()}
    if options.method == "conditioned":
        guesses = [_score(folder, books, order, own, options.seed + CHOOSING) for order, own in trained.items()]
        chosen = max(guesses, key=lambda own: own.merit).workflow
    else:
        favourite = best(books.outcomes)
        chosen = "" if favourite is None else favourite.trial.workflow
    return sorted(scores.values(), key=lambda own: own.merit, reverse=True), scores.get(chosen)


def _score(folder: Path, books: SearchState, order: str, own: TrialResult, seed: int) -> Score:
    setup = EvaluationSetup.of(folder_of(folder, own.trial.number), {"workflow": order, "seed": seed})
    count = books.options.score_episodes
    metrics = evaluate_policies(setup.plan, setup.spec, setup.bindings, count, None).metrics
    returns, compliance, fixes = (metrics[name][:, 0] for name in ("env_return", "compliance", "fixes"))
    width = [INTERVAL * float(standard_error(np.asarray(values))) for values in (returns, compliance)]
    mean = float(compliance.mean())
    return Score(
        order, own.trial.number, count, float(returns.mean()), width[0], mean, width[1], float(fixes.mean()),
        mean >= books.options.compliance_threshold,
    )  # fmt: skip
