"""The random generators that a whole process shares, lent to one world at a time.

Simulators that draw from Python's `random` or from NumPy's global generator all draw from the same stream. Here every
world has a stream of its own: worlds side by side, and threads, do not notice each other. Environments are made with
one lent as well, because their making may draw too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

_ONE_AT_A_TIME = RLock()


class GlobalGenerators:
    """The shared generators as one world last left them."""

    def __init__(self, seed: int = 0) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start over, as after `random.seed` and `numpy.random.seed`."""
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Whoever draws in here draws from this world's stream; everybody else finds theirs as it was."""
        with _ONE_AT_A_TIME:
            python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(self._python)
            np.random.set_state(self._numpy)  # noqa: NPY002
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(python)
                np.random.set_state(numpy)  # noqa: NPY002
