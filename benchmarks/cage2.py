"""CAGE 2 with observations and random actions, without networks, on one core."""

from __future__ import annotations

import numpy as np

from benchmarks.harness import Claim, compare, rate
from remuda.core import rng
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.registry import find_game

STEPS = 100
PROMISED = 500_000
ORIGINAL = 456  # steps/s of the original simulator, one core of the same machine when idle
APPROXIMATE = 97_000  # the highest rate of MiniCAGE there, with 1,000 worlds


def measure(worlds: int, seconds: float, **options: object) -> float:
    """Steps per second of processor time; includes resets and an observation for every step."""
    game = make_game(find_game("cage2"), {"steps": STEPS, **options}, range(worlds))
    obs = np.zeros((worlds, 1, *game.spec.groups[0].obs_shape), np.uint8)
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds))
    actions = (rng.uniforms(keys, STEPS) * game.spec.groups[0].actions).astype(np.int64)
    by_turn = np.ascontiguousarray(actions.T)[:, :, None]  # (turns, worlds, agents)
    all_worlds = np.arange(worlds)
    episode = 0

    def play() -> int:
        nonlocal episode
        episode += 1
        game.reset(all_worlds, rng.keys(keys, episode))
        for turn in range(STEPS):
            game.begin()
            game.observe(0, 0, 1, obs)
            game.act(0, 0, 1, by_turn[turn])
            game.end()
        return worlds * STEPS

    return rate(play, seconds)


def main() -> None:
    """Print the table."""
    compare(
        "CAGE 2 with observations and random actions, one core, steps per second of processor time",
        {
            "1,000 worlds, b_line": lambda: measure(1000, 0.5, red="b_line"),
            "1,000 worlds, meander": lambda: measure(1000, 0.5, red="meander"),
            "1,000 worlds, mixed, with green": lambda: measure(1000, 0.5, red="mixed", green=True),
            "1 world, b_line": lambda: measure(1, 0.5, red="b_line"),
            "promised (a constant)": lambda: float(PROMISED),
            "MiniCAGE (a constant, not measured now)": lambda: float(APPROXIMATE),
            "the original (a constant, not measured now)": lambda: float(ORIGINAL),
        },
        [
            Claim("b_line over the promised rate", "1,000 worlds, b_line", "promised (a constant)", 1.0),
            Claim("meander over the promised rate", "1,000 worlds, meander", "promised (a constant)", 1.0),
            Claim("1,000 worlds over one", "1,000 worlds, b_line", "1 world, b_line"),
        ],
        "steps/s",
        repeats=5,
    )


if __name__ == "__main__":
    main()
