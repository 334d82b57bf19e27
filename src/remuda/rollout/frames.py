"""Which observations an agent acts on: its own last ones, whatever it was shown while it was away."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.kernels import kernel


def frame_window(fragment: Fragment, turn: int, frames: int, first: int, last: int) -> NDArray[Any]:
    """The observation of a turn and the last ones before it that agents first … last-1 acted on, oldest first.

    Returns (frames, worlds, agents, *obs); a view where nobody was away.
    """
    now, agents = fragment.before + turn, slice(first, last)
    before = fragment.alive[max(0, turn - frames + 1) : turn, :, agents]
    if before.all():
        return fragment.obs[now - frames + 1 : now + 1, :, agents]
    obs = fragment.obs[: now + 1, :, agents]
    out = np.zeros((frames, *obs.shape[1:]), obs.dtype)
    flat = obs.reshape(*obs.shape[:3], -1)
    _fill_window(flat, fragment.alive[:, :, agents], fragment.before, out.reshape(frames, *flat.shape[1:]))
    return out


@kernel
def _fill_window(obs: Any, alive: Any, before: int, out: Any) -> None:
    frames, worlds, agents, size = out.shape
    for w in range(worlds):
        for a in range(agents):
            source = obs.shape[0] - 1
            for f in range(frames - 1, -1, -1):
                if source < 0:
                    break
                for i in range(size):
                    out[f, w, a, i] = obs[source, w, a, i]
                source -= 1
                while source >= before and not alive[source - before, w, a]:
                    source -= 1
