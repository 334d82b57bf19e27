"""Ratings from matches: Bradley and Terry's model on the scale of Elo, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from remuda.studies.statistics import LEVEL, Estimate

SCALE = 400 / math.log(10)
"""Elo points per unit of log-odds: 400 points are ten wins to one."""
PRIOR_DRAWS = 1.0
"""Draws added to each pair that met, so that an entrant without a loss has a finite rating."""
MAX_STEPS = 100


def rate(wins: NDArray[np.float64], games: NDArray[np.float64]) -> list[Estimate]:
    """The rating of each entrant from `wins[i, j]` of i over j in `games[i, j]` games; their mean is 0.

    Maximum likelihood by Newton's method; intervals from the information matrix. They take episodes as independent.
    """
    from scipy import stats

    met = games > 0
    games = games + PRIOR_DRAWS * met
    wins = wins + PRIOR_DRAWS / 2 * met
    count = len(wins)
    strengths = np.zeros(count)
    for _ in range(MAX_STEPS):
        chance = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))  # of i over j
        gradient = (wins - games * chance).sum(axis=1)
        step = np.linalg.pinv(_information(games, chance)) @ gradient
        strengths += np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-10:
            break
    errors = np.sqrt(np.diag(np.linalg.pinv(_information(games, chance))))
    width = float(stats.norm.ppf((1 + LEVEL) / 2)) * errors * SCALE
    values = (strengths - strengths.mean()) * SCALE
    return [Estimate(float(v), float(v - w), float(v + w)) for v, w in zip(values, width, strict=True)]


def _information(games: NDArray[np.float64], chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The negative second derivative of the log-likelihood."""
    weights = games * chance * (1 - chance)
    matrix: NDArray[np.float64] = np.diag(weights.sum(axis=1)) - weights
    return matrix


def connected(games: NDArray[np.float64]) -> bool:
    """Whether all entrants can be compared, through others if need be."""
    reached, pending = {0}, [0]
    while pending:
        for other in np.flatnonzero(games[pending.pop()] > 0):
            if int(other) not in reached:
                reached.add(int(other))
                pending.append(int(other))
    return len(reached) == len(games)


def pair_counts(size: int, results: Sequence[tuple[int, int, float, int]]) -> tuple[NDArray[np.float64], ...]:
    """Wins and games as matrices, from (first, second, wins of the first, games)."""
    wins, games = np.zeros((size, size)), np.zeros((size, size))
    for first, second, won, played in results:
        if first != second:
            wins[first, second] += won
            wins[second, first] += played - won
            games[first, second] += played
            games[second, first] += played
    return wins, games
