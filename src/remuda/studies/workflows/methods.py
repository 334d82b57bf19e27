"""Search methods: which orders to try next.

Each method is a pure function of the options and of the results so far. So a search that was killed continues as if it
had not been.
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
from remuda.studies.workflows.posterior import fit_posterior, last_passed


@dataclass(frozen=True)
class SearchSpace:
    """What is searched: the orders that give different games, and the episodes of a round."""

    orders: Sequence[str]
    foothold_counts: bool
    round_episodes: int
    all_orders: str  # the value of the option `workflow` that stands for all of them

    def whole_rounds(self, episodes: float) -> int:
        """The largest number of episodes, at most this many, that makes whole rounds."""
        return int(episodes) // self.round_episodes * self.round_episodes


def propose(options: SearchOptions, space: SearchSpace, results: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """The next trials, to be run at the same time; none if the search has finished."""
    return METHODS[options.method](options, space, results)


def best_result(results: Sequence[TrialResult]) -> TrialResult | None:
    """The result with the best return, among the last result of every order that passed."""
    return max(last_passed(results).values(), key=lambda result: result.env_return, default=None)


def _gp_ucb(options: SearchOptions, space: SearchSpace, results: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """The orders with the largest upper confidence bounds.

    The bound of an order falls with every trial of it, and more with every trial that did not pass. A failed trial adds
    nothing to the Gaussian process, so without this the same order would be chosen for ever.
    """
    trials: list[WorkflowTrial] = []
    with_expected = list(results)  # and the trials proposed here, as if each gave the return expected of it
    for limit in _episode_limits(options, space, results):
        posterior = fit_posterior(space.orders, with_expected, space.foothold_counts)
        if posterior is None:
            order = _fewest_trials_order(options, space, [*results, *trials])
        else:
            tries = np.array([_count_trials(order, results) for order in space.orders])
            failed = [result for result in results if not result.passed]
            failures = np.array([_count_trials(order, failed) for order in space.orders])
            bound = posterior.mean + options.exploration * posterior.std / (1 + tries) - failures * posterior.spread
            bound[[space.orders.index(trial.workflow) for trial in trials]] = -np.inf
            order = space.orders[int(bound.argmax())]
            expected = float(posterior.mean[bound.argmax()])
            with_expected.append(_expected_result(order, expected, len(with_expected)))
        trials.append(_from_nearest(order, limit, space, results, len(results) + len(trials)))
    return trials


def _random(options: SearchOptions, space: SearchSpace, results: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """Random orders; no order is drawn twice before all have been drawn once."""
    trials: list[WorkflowTrial] = []
    for limit in _episode_limits(options, space, results):
        order = _fewest_trials_order(options, space, [*results, *trials])
        trials.append(_from_nearest(order, limit, space, results, len(results) + len(trials)))
    return trials


def _halving(options: SearchOptions, space: SearchSpace, results: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """Successive halving: all orders for a few episodes, the better half for twice as many, and so on.

    Each order continues from its own weights.
    """
    sizes = [len(space.orders)]
    while sizes[-1] > 2:
        sizes.append(-(-sizes[-1] // 2))
    remaining = list(space.orders)
    done = 0
    for size in sizes:
        episodes = space.whole_rounds(options.total_episodes / len(sizes) / size)
        if not episodes:
            needed = len(sizes) * len(space.orders) * space.round_episodes
            raise ConfigError(
                f"total_episodes={options.total_episodes} is too little for method=halving: {len(space.orders)} orders "
                f"in {len(sizes)} rungs need {needed}, or smaller rounds (episodes_per_update)"
            )
        rung = {result.trial.workflow: result for result in results[done : done + size]}
        waiting = [order for order in remaining if order not in rung]
        if waiting:
            numbers = {result.trial.workflow: result.trial.number for result in results[:done]}
            first = len(results)
            return [
                WorkflowTrial(
                    number=first + i, workflow=order, parent=numbers.get(order), episodes=episodes, patient=False
                )
                for i, order in enumerate(waiting[: options.side_by_side])
            ]  # fmt: skip
        remaining = sorted(remaining, key=lambda order: _rank_key(rung[order]), reverse=True)[: -(-size // 2)]
        done += size
    return []


def _rank_key(result: TrialResult) -> tuple[bool, float]:
    """Orders results that passed by return, and below them those that did not by compliance."""
    return result.passed, result.env_return if result.passed else result.compliance


def _conditioned(options: SearchOptions, space: SearchSpace, results: Sequence[TrialResult]) -> list[WorkflowTrial]:
    """One trial with all orders."""
    if results:
        return []
    return [WorkflowTrial(number=0, workflow=space.all_orders, episodes=options.total_episodes, patient=False)]


METHODS: dict[str, Callable[[SearchOptions, SearchSpace, Sequence[TrialResult]], list[WorkflowTrial]]] = {
    "gp-ucb": _gp_ucb,
    "random": _random,
    "halving": _halving,
    "conditioned": _conditioned,
}


def _episode_limits(options: SearchOptions, space: SearchSpace, results: Sequence[TrialResult]) -> list[int]:
    """The most episodes of each of the next trials: whole rounds, and in total no more than are left."""
    left = options.total_episodes - sum(result.episodes for result in results)
    longest = max(space.whole_rounds(options.max_trial_episodes), space.round_episodes)
    for count in range(options.side_by_side, 0, -1):
        each = min(longest, space.whole_rounds(left / count))
        if each:
            return [each] * count
    return []


def _count_trials(order: str, tried: Sequence[TrialResult | WorkflowTrial]) -> int:
    return sum((one.trial if isinstance(one, TrialResult) else one).workflow == order for one in tried)


def _fewest_trials_order(
    options: SearchOptions, space: SearchSpace, tried: Sequence[TrialResult | WorkflowTrial]
) -> str:
    """A random one of the orders that were tried least often."""
    tries = [_count_trials(order, tried) for order in space.orders]
    fewest = [order for order, count in zip(space.orders, tries, strict=True) if count == min(tries)]
    return fewest[int(rng.below(rng.key(options.seed, Stream.SEARCH, len(tried)), 0, len(fewest)))]


def _from_nearest(
    order: str, limit: int, space: SearchSpace, results: Sequence[TrialResult], number: int
) -> WorkflowTrial:
    """A trial that starts with the weights of the nearest order already trained; of equally near ones the last."""
    nearest = min(
        results,
        key=lambda result: (
            kendall_distance(order, result.trial.workflow, space.foothold_counts),
            -result.trial.number,
        ),
        default=None,
    )
    return WorkflowTrial(
        number=number, workflow=order, parent=nearest.trial.number if nearest else None, episodes=limit
    )


def _expected_result(order: str, expected: float, number: int) -> TrialResult:
    """A result for a trial that has not run, with the return expected of it, so that the next trial is another one."""
    return TrialResult(
        trial=WorkflowTrial(number=number, workflow=order, episodes=1), episodes=0, compliance=1, fixes=0,
        env_return=expected, env_return_se=0, passed=True, why="expected", collect_s=0, learn_s=0, wall_s=0,
    )  # fmt: skip
