"""Social dilemmas on one core: worlds with views and without networks, the memory of a world, and whole training."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks.harness import Claim, compare, rate, remuda
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


def print_memory() -> None:
    """Print how many bytes the arrays of one world have, and the views of its agents in one turn."""
    print("\nBytes of a world, and of its agents' views in a turn")
    for name in GAMES:
        game = make_game(find_game(name), {}, range(1))
        group = game.spec.groups[0]
        found = (*vars(game).values(), *game.state, *vars(game.signals[0]).values())  # type: ignore[attr-defined]
        arrays = {id(array): array.nbytes for array in found if isinstance(array, np.ndarray)}
        views = group.size * int(np.prod(group.obs_shape)) * np.dtype(group.obs_dtype).itemsize
        print(f"  {name:42s} {sum(arrays.values()):10,} {views:10,}")


def print_training() -> None:
    """Print agent-steps per second of processor time in training with PPO: playing, acting and learning."""
    print("\nTraining, PPO, own networks of two layers of 64, 16 worlds, agent-steps per second of processor time")
    words = ("learner=ppo", "worlds=16", "episodes_per_update=16", "turns=200", "engine=vectorized", "pictures=false")
    for name in ("cleanup", "harvest", "coins"):
        rates = []
        for episodes in (16, 64, 64, 64):  # the first compiles
            with tempfile.TemporaryDirectory() as folder:
                settings = (*words, f"total_episodes={episodes}", "evaluate_episodes=1", "--n-workers", "1")
                result = remuda("train", name, *settings, "--out", f"{folder}/run")
            rates.append(result["agent_steps"] / sum(spent["cpu"] for spent in result["seconds"].values()))
        _, *rates = rates
        print(
            f"  {name:42s} {sorted(rates)[1]:14,.0f} agent-steps/s  ({min(rates):,.0f} to {max(rates):,.0f})",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    compare(
        "Social dilemmas with views, 64 worlds, one core, agent-steps per second of processor time",
        {
            **{name: lambda name=name: rate(lambda: episode(name, 64, 200), 0.5) for name in GAMES},  # type: ignore[misc]
            "coins, 256 worlds": lambda: rate(lambda: episode("coins", 256, 200), 0.5),
            "cleanup, interpreted, 1 world": lambda: interpreted("cleanup"),
        },
        [Claim("cleanup, compiled over interpreted", "cleanup", "cleanup, interpreted, 1 world")],
        "agent-steps/s",
        repeats=3,
    )
    print_memory()
    print_training()


if __name__ == "__main__":
    main()
