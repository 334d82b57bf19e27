"""Treasurehunt with observations and without networks: compiled, and the same source interpreted."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from benchmarks.harness import Claim, compare, rate
from remuda.core import rng
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.registry import find_game

AGENTS = 2


def episode(worlds: int, turns: int) -> int:
    """Play random actions in `worlds` worlds, writing every agent's view; returns agent-steps."""
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS, "turns": turns}, range(worlds))
    views = np.zeros((worlds, AGENTS, *game.spec.groups[0].obs_shape), np.uint8)
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds))
    actions = (rng.uniforms(keys, turns * AGENTS) * 4).astype(np.int64).reshape(worlds, turns, AGENTS)
    actions = np.ascontiguousarray(actions.swapaxes(0, 1))
    game.reset(np.arange(worlds), keys)
    for turn in range(turns):
        game.begin()
        game.observe(0, 0, AGENTS, views)
        game.act(0, 0, AGENTS, actions[turn])
        game.end()
    return worlds * turns * AGENTS


def interpreted() -> float:
    """The same in its own process with NUMBA_DISABLE_JIT=1."""
    code = (
        "from benchmarks.worlds import episode; from benchmarks.harness import rate;"
        "print(rate(lambda: episode(1, 20), 1.0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Print the table."""
    compare(
        "Worlds with views, one core, agent-steps per second of processor time",
        {
            "compiled, 1 world": lambda: rate(lambda: episode(1, 100), 0.5),
            "compiled, 64 worlds": lambda: rate(lambda: episode(64, 100), 0.5),
            "compiled, 256 worlds": lambda: rate(lambda: episode(256, 100), 0.5),
            "interpreted, 1 world": interpreted,
        },
        [Claim("compiled over interpreted", "compiled, 256 worlds", "interpreted, 1 world")],
        "agent-steps/s",
        repeats=3,
    )
