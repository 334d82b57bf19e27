"""Yardsticks of Gymnasium: PPO beside Stable-Baselines3 with the settings of its zoo, the same budget and machine.

    python -m benchmarks.yardsticks [--sb3 PYTHON] [--seeds 5 | --seed N] [--tally FILE] [--record] [GAME …]

PYTHON has Stable-Baselines3 and the same torch; without it our lines are printed alone. Seeds of both take turns, each
on one thread. A score is the mean return of greedy test episodes of the last weights, 500 of them, or 100 of
LunarLander, whose episodes are long; ± is half of a 95 % interval over the seeds. Times are of training alone:
processor seconds, which other processes on the machine change little, and wall seconds. Our plans count episodes and
theirs turns: our runs stop before a round that could exceed the turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import remuda
from benchmarks.results import recorded
from benchmarks.seed_tally import SeedTally, half_interval
from remuda.core.machine import machine
from remuda.core.threads import one_thread_each

OURS, THEIRS = "remuda", "stable-baselines3"


class Yardstick(NamedTuple):
    """One game: turns that both libraries may play, and our plan for about so many."""

    turns: int
    plan: dict[str, Any]
    test_episodes: int = 500


GAMES: dict[str, Yardstick] = {
    "CartPole-v1": Yardstick(100_000, {
        "worlds": 8, "total_episodes": 300, "passes": 10, "minibatches": 8, "gamma": 0.98, "gae_lambda": 0.8,
        "entropy": 0.0, "lr": "0.001:0",
    }),
    "Pendulum-v1": Yardstick(100_000, {
        "worlds": 20, "total_episodes": 500, "passes": 10, "minibatch_size": 64, "gamma": 0.9, "gae_lambda": 0.95,
        "entropy": 0.0, "lr": "0.001:0.0001", "activation": "relu",
    }),
    "Acrobot-v1": Yardstick(200_000, {
        "worlds": 16, "total_episodes": 1600, "passes": 4, "minibatches": 32, "gamma": 0.99, "gae_lambda": 0.94,
        "entropy": 0.0, "lr": 0.0003, "normalise_observations": True,
    }),
    "LunarLander-v3": Yardstick(300_000, {
        "worlds": 16, "total_episodes": 800, "passes": 4, "minibatches": 64, "gamma": 0.999, "gae_lambda": 0.98,
        "entropy": 0.01, "lr": 0.0003,
    }, test_episodes=100),
}  # fmt: skip


def ours(game: str, seed: int) -> dict[str, float]:
    """What one of our runs reached. A round before it, which is not counted, compiles what is not in the cache."""
    own = GAMES[game]
    one_round = own.plan["worlds"] * int(gymnasium.spec(game).max_episode_steps or 0)
    with tempfile.TemporaryDirectory() as folder, one_thread_each():
        train(game, Path(folder) / "first", seed, {**own.plan, "total_episodes": own.plan["worlds"]})
        wall, cpu = time.perf_counter(), time.process_time()
        run = train(
            game, Path(folder) / "run", seed, own.plan, lambda rows: rows[0]["agent_steps"] + one_round <= own.turns
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        score = float(np.mean(remuda.evaluate(run.path, episodes=own.test_episodes).returns))
        return {"return": score, "wall_s": wall, "cpu_s": cpu, "turns": run.result["agent_steps"]}


def train(game: str, out: Path, seed: int, plan: dict[str, Any], *callbacks: Any) -> remuda.Run:
    """One of our runs, on one thread and without evaluations while it trains."""
    return remuda.train(
        f"gymnasium:{game}", out=out, quiet=True, pictures=False, learner="ppo", seed=seed, engine="vectorized",
        n_workers=1, evaluate_every=0, evaluate_episodes=1, callbacks=list(callbacks), **plan,
    )  # fmt: skip


def theirs(python: str, game: str, seed: int) -> dict[str, float]:
    """The same of Stable-Baselines3, in its own Python."""
    script = Path(__file__).with_name("yardsticks_sb3.py")
    words = [python, str(script), game, str(seed), str(GAMES[game].turns), str(GAMES[game].test_episodes)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(results: Sequence[dict[str, float]]) -> str:
    """Scores and times of some seeds."""
    scores, cpu, wall, turns = (np.array([own[k] for own in results]) for k in ("return", "cpu_s", "wall_s", "turns"))
    each = " ".join(f"{score:.0f}" for score in scores)
    return (
        f"return {scores.mean():8.1f} ± {half_interval(scores):5.1f} ({each}), processor {np.median(cpu):6.1f} s, "
        f"wall {np.median(wall):6.1f} s, {turns.mean():,.0f} turns"
    )


def main(words: Sequence[str] = ()) -> None:
    """Run what the tally does not have, then print a line per game and library."""
    reader = argparse.ArgumentParser(prog="python -m benchmarks.yardsticks")
    reader.add_argument("games", nargs="*", default=list(GAMES))
    reader.add_argument("--sb3", metavar="PYTHON", help="a Python that has Stable-Baselines3")
    reader.add_argument("--seeds", type=int, default=5)
    reader.add_argument("--seed", type=int, help="this seed alone")
    reader.add_argument("--tally", type=Path, metavar="FILE", help="keep results here; what it has is not run again")
    reader.add_argument("--record", action="store_true", help="write docs/benchmarks.md, too")
    asked = reader.parse_args(words)
    tally = SeedTally(asked.tally)
    for game in asked.games:
        for seed in range(asked.seeds) if asked.seed is None else [asked.seed]:
            tally.measure(f"{game} {OURS}", seed, partial(ours, game, seed))
            if asked.sb3:
                tally.measure(f"{game} {THEIRS}", seed, partial(theirs, asked.sb3, game, seed))
    with recorded("yardsticks", "python -m benchmarks.yardsticks --sb3 PYTHON") if asked.record else nullcontext():
        print(machine(), flush=True)
        for game in asked.games:
            for library in (OURS, THEIRS):
                if found := tally.of(f"{game} {library}"):
                    print(f"{game:14} {library:18} {summary(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
