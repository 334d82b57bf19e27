"""Ray actors: memory and processor time until the first round, with one player per actor and with threads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.harness import machine
from remuda.core.machine import tree_bytes, tree_cpu_s

PLAYERS = (2, 16, 100)
THREADS = 8
PROGRAM = "from benchmarks.ray_actors import measure; measure({players}, {threads})"


def measure(players: int, threads: int) -> None:
    """Train one round with so many players, and print what all processes used by then."""
    import remuda

    def note(rows: list[dict[str, Any]]) -> bool:
        print(tree_bytes(os.getpid()), tree_cpu_s(os.getpid()), flush=True)
        return False

    actors = -(-players // threads)
    with tempfile.TemporaryDirectory() as folder:
        remuda.train(
            "benchmarks.sleepers:SLEEPERS", out=f"{folder}/run", quiet=True, callbacks=[note], learner="ppo", agents=2,
            episode_s=0.2, worlds=2 * players, total_episodes=4 * players, engine="ray", n_workers=actors,
            actor_cpus=threads, evaluate_episodes=1, pictures=False, device="cpu", start_limit_s=3600,
        )  # fmt: skip


def main(counts: tuple[int, ...] = PLAYERS) -> None:
    """Each in a process of its own, one after the other."""
    print(f"\nRay actors until the first round is learned\n  {machine()}")
    for players in counts:
        for threads in (1, min(THREADS, players)):
            program = PROGRAM.format(players=players, threads=threads)
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            held, cpu_s = map(float, done.stdout.split()[:2])
            actors = -(-players // threads)
            print(
                f"  {players:3d} players in {actors:3d} actors of {threads} threads: {held / 2**20:8,.0f} MiB in all, "
                f"{cpu_s:6.1f} s of processor time to start",
                flush=True,
            )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or PLAYERS)
