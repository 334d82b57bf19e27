"""A Gaussian process over orders: predicts the returns of untried orders from those of tried ones.

The kernel is exp(-c · d) with d Kendall's distance between orders (Mallows' kernel). An order is represented by ten
numbers, one per pair of host types. The squared Euclidean distance of these is 4 d, so this is the squared-exponential
kernel on them.
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

MIN_RETURNS = 2
"""How many orders must have passed before a posterior is computed."""


@dataclass(frozen=True)
class Posterior:
    """Mean and standard deviation of the return of every order asked for."""

    mean: NDArray[np.float64]  # (orders,)
    std: NDArray[np.float64]  # (orders,)
    spread: float  # the standard deviation of the returns it was fitted to


def last_passed(results: Sequence[TrialResult]) -> dict[str, TrialResult]:
    """For every order, the last result that passed: that of its longest training."""
    return {result.trial.workflow: result for result in results if result.passed}


def fit_posterior(orders: Sequence[str], results: Sequence[TrialResult], foothold_counts: bool) -> Posterior | None:
    """The posterior over `orders`; None if fewer than MIN_RETURNS orders have passed."""
    known = list(last_passed(results).values())
    if len(known) < MIN_RETURNS:
        return None
    returns = np.array([result.env_return for result in known])
    centre, spread = returns.mean(), max(float(returns.std()), 1e-6)
    noise = np.array([result.env_return_se for result in known]) / spread
    process = _make_process(noise**2 + 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns if a length scale ends at a bound, which is fine here
        process.fit(
            _features([result.trial.workflow for result in known], foothold_counts), (returns - centre) / spread
        )
        mean, std = process.predict(_features(orders, foothold_counts), return_std=True)
    return Posterior(centre + spread * mean, spread * std, spread)


def _make_process(noise: NDArray[np.float64]) -> Any:
    kernels, process = require_scikit_learn()
    training_noise = kernels.WhiteKernel(0.05, (1e-3, 0.5))  # two trainings of one order differ
    kernel = kernels.ConstantKernel(1.0, (0.2, 5.0)) * kernels.RBF(4.0, (1.5, 20.0)) + training_noise
    return process(kernel, alpha=noise, random_state=0)


def require_scikit_learn() -> tuple[Any, Any]:
    """Scikit-learn's kernels and its Gaussian process; raises ConfigError that says how to install it."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor, kernels
    except ImportError:
        raise ConfigError("search needs scikit-learn: pip install 'remuda-rl[search]'") from None
    return kernels, GaussianProcessRegressor


def _features(orders: Sequence[str], foothold_counts: bool) -> NDArray[np.float64]:
    return np.array([pair_features(order, foothold_counts) for order in orders])
