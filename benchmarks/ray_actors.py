"""Ray actors: memory and time until the first round, with one player per actor, with threads and with processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from benchmarks.harness import machine
from remuda.core.machine import tree_bytes, tree_cpu_s

PLAYERS = (2, 16, 100)
THREADS = 8
MAX_SHARE_OF_MEMORY = 0.8
PROGRAM = "from benchmarks.ray_actors import measure; measure({actors}, {each}, {game!r})"
MARK = "measured:"
TOGETHER, ONE_BY_ONE = "benchmarks.sleepers:SLEEPERS", "benchmarks.sleepers:SIMULATORS"


def measure(actors: int, each: int, game: str) -> None:
    """Train one round with so many players in every actor, and print what all processes used by then."""
    import remuda

    players, began = actors * each, time.perf_counter()

    def note(rows: list[dict[str, Any]]) -> bool:
        print(f"\n{MARK} {tree_bytes(os.getpid())} {tree_cpu_s(os.getpid())} {time.perf_counter() - began}", flush=True)
        return False

    with tempfile.TemporaryDirectory() as folder:
        remuda.train(
            game, out=f"{folder}/run", quiet=True, callbacks=[note], learner="ppo", agents=2,
            episode_s=0.2, worlds=2 * players, total_episodes=4 * players, engine="ray", n_workers=actors,
            actor_cpus=each, evaluate_episodes=1, pictures=False, device="cpu", start_limit_s=3600,
        )  # fmt: skip


def main(counts: tuple[int, ...] = PLAYERS) -> None:
    """Each in a process of its own, one after the other; what would not fit into memory is left out."""
    print(f"\nRay actors until the first round is learned; all processes, Ray's own included\n  {machine()}")
    per_actor = 0.0
    for players in counts:
        threads = min(THREADS, players)
        for actors, each, game, kind in (
            (players, 1, TOGETHER, "player"),
            (-(-players // threads), threads, TOGETHER, "threads"),
            (1, players, ONE_BY_ONE, "processes"),
        ):
            words = f"  {players:3d} players, {actors:3d} actors of {each:3d} {kind:9s}:"
            if actors * per_actor > MAX_SHARE_OF_MEMORY * psutil.virtual_memory().available:
                print(f"{words} not measured: {actors} × {per_actor / 2**20:.0f} MiB do not fit here")
                continue
            program = PROGRAM.format(actors=actors, each=each, game=game)
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            line = next(line for line in done.stdout.splitlines() if line.startswith(MARK))  # Ray prints there too
            held, cpu_s, wall_s = map(float, line.split()[1:])
            per_actor = held / actors if each == 1 else per_actor
            print(
                f"{words} {held / 2**20:8,.0f} MiB, {cpu_s:6.1f} s of processor time, {wall_s:6.1f} s until then",
                flush=True,
            )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or PLAYERS)
