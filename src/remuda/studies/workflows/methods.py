"""Which orders to try next. Each method is a function of what came of the trials so far, and of nothing else.

So a search that was killed goes on as if it had not been, whatever happened in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.rng import Stream
from remuda.games.cage2.workflow import kendall_distance
from remuda.studies.workflows.options import SearchOptions, TrialResult, WorkflowTrial
from remuda.studies.workflows.posterior import believe, reported


@dataclass(frozen=True)
class SearchSpace:
    """What is searched: the orders that are different games, in rounds of so many episodes."""

    orders: Sequence[str]
    foothold_counts: bool
    round_episodes: int
    everything: str  # the word for all of them at once

    def whole_rounds(self, episodes: float) -> int:
        """As many of these episodes as make whole rounds."""
        return int(episodes) // self.round_episodes * self.round_episodes


def propose(options: SearchOptions, field: SearchSpace, outcomes: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """The next trials, to be run side by side; none if the episodes are spent or there is nothing more to try."""
    return METHODS[options.method](options, field, outcomes)


def best(outcomes: Sequence[TrialResult]) -> TrialResult | None:
    """The outcome a search would go for: of those that passed, the last one of the order with the best return."""
    return max(reported(outcomes).values(), key=lambda own: own.env_return, default=None)


def _gp_ucb(options: SearchOptions, field: SearchSpace, outcomes: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """The orders with the most to hope for.

    The more often one was tried, the less it is hoped for, and even less if it did not comply: that tells the process
    nothing, so it would hope for the same one for ever.
    """
    trials: list[WorkflowTrial] = []
    imagined = list(outcomes)
    for limit in _limits(options, field, outcomes):
        belief = believe(field.orders, imagined, field.foothold_counts)
        if belief is None:
            order = _any_order(options, field, [*outcomes, *trials])
        else:
            tries = np.array([_tries(order, outcomes) for order in field.orders])
            failures = np.array([_tries(order, [o for o in outcomes if not o.passed]) for order in field.orders])
            hope = belief.mean + options.exploration * belief.std / (1 + tries) - failures * belief.spread
            hope[[field.orders.index(trial.workflow) for trial in trials]] = -np.inf
            order = field.orders[int(hope.argmax())]
            expected = float(belief.mean[hope.argmax()])
            imagined.append(_imagined(order, expected, len(imagined)))
        trials.append(_from_nearest(order, limit, field, outcomes, len(outcomes) + len(trials)))
    return trials


def _random(options: SearchOptions, field: SearchSpace, outcomes: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """Orders drawn by lot, none twice before all were drawn."""
    trials: list[WorkflowTrial] = []
    for limit in _limits(options, field, outcomes):
        order = _any_order(options, field, [*outcomes, *trials])
        trials.append(_from_nearest(order, limit, field, outcomes, len(outcomes) + len(trials)))
    return trials


def _halving(options: SearchOptions, field: SearchSpace, outcomes: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """All orders for a little while, the better half for twice as long, and so on; each from its own weights."""
    sizes = [len(field.orders)]
    while sizes[-1] > 2:
        sizes.append(-(-sizes[-1] // 2))
    standing = list(field.orders)
    done = 0
    for size in sizes:
        episodes = field.whole_rounds(options.total_episodes / len(sizes) / size)
        if not episodes:
            least = len(sizes) * len(field.orders) * field.round_episodes
            raise ConfigError(
                f"total_episodes={options.total_episodes} is too little for method=halving: {len(field.orders)} orders "
                f"in {len(sizes)} rungs need {least}, or smaller rounds (episodes_per_update)"
            )
        rung = {own.trial.workflow: own for own in outcomes[done : done + size]}
        waiting = [order for order in standing if order not in rung]
        if waiting:
            numbers = {own.trial.workflow: own.trial.number for own in outcomes[:done]}
            first = len(outcomes)
            return [
                WorkflowTrial(
                    number=first + i, workflow=order, parent=numbers.get(order), episodes=episodes, patient=False
                )
                for i, order in enumerate(waiting[: options.side_by_side])
            ]  # fmt: skip
        standing = sorted(standing, key=lambda order: _merit(rung[order]), reverse=True)[: -(-size // 2)]
        done += size
    return []


def _merit(own: TrialResult) -> tuple[bool, float]:
    """Who passed is ranked by its return, who did not by its compliance."""
    return own.passed, own.env_return if own.passed else own.compliance


def _conditioned(options: SearchOptions, field: SearchSpace, outcomes: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """One trial that holds all orders."""
    if outcomes:
        return []
    return [WorkflowTrial(number=0, workflow=field.everything, episodes=options.total_episodes, patient=False)]


METHODS: dict[str, Callable[[SearchOptions, SearchSpace, Sequence[TrialResult]], list[WorkflowTrial]]] = {
    "gp-ucb": _gp_ucb,
    "random": _random,
    "halving": _halving,
    "conditioned": _conditioned,
}


def _limits(options: SearchOptions, field: SearchSpace, outcomes: Sequence[TrialResult]) -> list[int]:
    """Most episodes of each of the next trials: whole rounds, and together no more than is left."""
    left = options.total_episodes - sum(own.episodes for own in outcomes)
    for count in range(options.side_by_side, 0, -1):
        each = min(max(field.whole_rounds(options.longest), field.round_episodes), field.whole_rounds(left / count))
        if each:
            return [each] * count
    return []


def _tries(order: str, tried: Sequence[TrialResult | WorkflowTrial]) -> int:
    return sum((own.trial if isinstance(own, TrialResult) else own).workflow == order for own in tried)


def _any_order(options: SearchOptions, field: SearchSpace, tried: Sequence[TrialResult | WorkflowTrial]) -> str:
    """One by lot of those tried least often."""
    tries = [_tries(order, tried) for order in field.orders]
    fewest = [order for order, count in zip(field.orders, tries, strict=True) if count == min(tries)]
    return fewest[int(rng.below(rng.key(options.seed, Stream.SEARCH, len(tried)), 0, len(fewest)))]


def _from_nearest(
    order: str, limit: int, field: SearchSpace, outcomes: Sequence[TrialResult], number: int
) -> WorkflowTrial:
    """A trial that begins with the weights of the nearest order already trained; of equally near ones the last."""
    nearest = min(
        outcomes,
        key=lambda own: (kendall_distance(order, own.trial.workflow, field.foothold_counts), -own.trial.number),
        default=None,
    )
    return WorkflowTrial(
        number=number, workflow=order, parent=nearest.trial.number if nearest else None, episodes=limit
    )


def _imagined(order: str, expected: float, number: int) -> TrialResult:
    """A trial under way, as if it had come out as expected: the next one looks elsewhere."""
    return TrialResult(
        trial=WorkflowTrial(number=number, workflow=order, episodes=1), episodes=0, compliance=1, fixes=0, env_return=expected,
        env_return_se=0, passed=True, why="imagined", collect_s=0, learn_s=0, wall_s=0,
    )  # fmt: skip
