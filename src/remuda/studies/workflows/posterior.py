"""What a Gaussian process believes about orders that were not tried, from those that were.

The kernel is exp(-c · d) with d Kendall's distance between orders (Mallows' kernel): an order is ten numbers, one for
each pair of types, whose squared Euclidean distance is 4 d, so it is the squared-exponential kernel on those.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError
from remuda.games.cage2.workflow import pair_features
from remuda.studies.workflows.options import TrialResult

LEAST = 2
"""Returns that must have been reported before anything is believed."""


@dataclass(frozen=True)
class Belief:
    """The expected return of every order and how far off it may be, in the order asked for."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    spread: float  # of the returns it comes from


def reported(outcomes: Sequence[TrialResult]) -> dict[str, TrialResult]:
    """The last outcome that passed of every order: what its longest training came to."""
    return {own.trial.workflow: own for own in outcomes if own.passed}


def believe(orders: Sequence[str], outcomes: Sequence[TrialResult], foothold_counts: bool) -> Belief | None:
    """The posterior over `orders`; None as long as too little is known."""
    known = list(reported(outcomes).values())
    if len(known) < LEAST:
        return None
    returns = np.array([own.env_return for own in known])
    centre, spread = returns.mean(), max(float(returns.std()), 1e-6)
    noise = np.array([own.env_return_se for own in known]) / spread
    process = _process(noise**2 + 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at the edge of what is thought possible is no surprise
        process.fit(_points([own.trial.workflow for own in known], foothold_counts), (returns - centre) / spread)
        mean, std = process.predict(_points(orders, foothold_counts), return_std=True)
    return Belief(centre + spread * mean, spread * std, spread)


def _process(noise: NDArray[np.float64]) -> Any:
    kernels, process = require_library()
    kernel = kernels.ConstantKernel(1.0, (0.2, 5.0)) * kernels.RBF(4.0, (1.5, 20.0)) + kernels.WhiteKernel(
        0.05,
        (1e-3, 0.5),  # how lucky a training was
    )
    return process(kernel, alpha=noise, random_state=0)


def require_library() -> tuple[Any, Any]:
    """Scikit-learn's kernels and its process, or a sentence that says how to get them."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor, kernels
    except ImportError:
        raise ConfigError("search needs scikit-learn: pip install 'remuda[search]'") from None
    return kernels, GaussianProcessRegressor


def _points(orders: Sequence[str], foothold_counts: bool) -> NDArray[np.float64]:
    return np.array([pair_features(order, foothold_counts) for order in orders])
