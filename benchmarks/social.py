"""Social dilemmas with views and without networks, on one core: compiled, and the same source interpreted."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from benchmarks.harness import Claim, compare, rate
from remuda.core import rng
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.registry import find_game

GAMES = ("cleanup", "harvest", "coins", "stag_hunt", "tag")


def episode(name: str, worlds: int, turns: int) -> int:
    """Play random actions in `worlds` worlds, writing every agent's view; returns agent-steps."""
    game = make_game(find_game(name), {"turns": turns}, range(worlds))
    group = game.spec.groups[0]
    views = np.zeros((worlds, group.size, *group.obs_shape), group.obs_dtype)
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds))
    draws = rng.uniforms(keys, turns * group.size)
    actions = (draws * group.actions).astype(np.int64).reshape(worlds, turns, group.size)
    actions = np.ascontiguousarray(actions.swapaxes(0, 1))
    game.reset(np.arange(worlds), keys)
    for turn in range(turns):
        game.begin()
        game.observe(0, 0, group.size, views)
        game.act(0, 0, group.size, actions[turn])
        game.end()
    return worlds * turns * group.size


def interpreted(name: str) -> float:
    """The same in its own process with NUMBA_DISABLE_JIT=1."""
    code = (
        "from benchmarks.social import episode; from benchmarks.harness import rate;"
        f"print(rate(lambda: episode({name!r}, 1, 5), 1.0))"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the table."""
    compare(
        "Social dilemmas with views, 64 worlds, one core, agent-steps per second of processor time",
        {
            **{name: lambda name=name: rate(lambda: episode(name, 64, 200), 0.5) for name in GAMES},  # type: ignore[misc]
            "cleanup, interpreted, 1 world": lambda: interpreted("cleanup"),
        },
        [Claim("cleanup, compiled over interpreted", "cleanup", "cleanup, interpreted, 1 world")],
        "agent-steps/s",
        repeats=3,
    )


if __name__ == "__main__":
    main()
