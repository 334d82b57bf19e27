"""Running mean and standard deviation of what agents observe and return."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RunningMoments:
    """Running mean and standard deviation of `size` numbers per agent, by Chan's parallel formula."""

    def __init__(self, agents: int, size: int) -> None:
        self.moments = np.zeros((agents, 1 + 2 * size))  # count, means, sums of squared deviations

    def add(self, agent: int, rows: NDArray[np.float64]) -> None:
        """Include rows (rows, size) of one agent."""
        if not len(rows):
            return
        own, size = self.moments[agent], rows.shape[1]
        count, means, squares = own[0], own[1 : 1 + size], own[1 + size :]
        new_means, total = rows.mean(axis=0), own[0] + len(rows)
        delta = new_means - means
        squares += ((rows - new_means) ** 2).sum(axis=0) + delta**2 * count * len(rows) / total
        means += delta * len(rows) / total
        own[0] = total

    def mean_and_std(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both (agents, size); 0 and 1 for an agent with fewer than two rows."""
        size = (self.moments.shape[1] - 1) // 2
        count, means, squares = np.split(self.moments, [1, 1 + size], axis=1)
        known = count > 1
        std = np.sqrt(squares / np.maximum(count, 1))
        return np.where(known, means, 0.0), np.where(known, std, 1.0)
