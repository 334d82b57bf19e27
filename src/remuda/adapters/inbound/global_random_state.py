"""A private copy of the process-wide random generators for each world.

Some simulators draw from Python's `random` or from NumPy's global generator, which all code in a process shares. Here
every world keeps its own state of both and installs it only while its simulator runs. So worlds and threads do not
change each other's random numbers. Environments are also created this way, because creating one may draw too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

# The generators are global, so only one thread at a time may install its state.
_INSTALLING = RLock()


class GlobalRandomState:
    """One world's state of Python's and NumPy's global generators."""

    def __init__(self, seed: int = 0) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start over, as after `random.seed` and `numpy.random.seed`."""
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Global draws inside the block come from this state; afterwards the previous state is back."""
        with _INSTALLING:
            python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(self._python)
            np.random.set_state(self._numpy)  # noqa: NPY002
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(python)
                np.random.set_state(numpy)  # noqa: NPY002
