"""What blue observes: four bits per host, two for its activity and two for its compromise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import N_HOSTS

BITS = 4 * N_HOSTS
ACTIVITY: NDArray[np.uint8] = np.array(  # (wrapper, activity, bits): the wrappers differ only in SCREENED
    [[[0, 0], [1, 0], [1, 1], [0, 0]], [[0, 0], [1, 0], [1, 1], [1, 0]]], np.uint8
)
COMPROMISED: NDArray[np.uint8] = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.uint8)  # (compromised, bits)


@kernel
def write_observation(s: Any, wrapper: int, out: Any) -> None:
    """Blue's table of a world as 52 bits, as one of the two wrappers shows it."""
    activity, compromised = s.activity, s.compromised
    for host in range(N_HOSTS):
        out[4 * host] = ACTIVITY[wrapper, activity[host], 0]
        out[4 * host + 1] = ACTIVITY[wrapper, activity[host], 1]
        out[4 * host + 2] = COMPROMISED[compromised[host], 0]
        out[4 * host + 3] = COMPROMISED[compromised[host], 1]
