"""CAGE 2 with observations and random actions, no networks: one core, against one world at a time."""

from __future__ import annotations

import numpy as np

from benchmarks.harness import Claim, compare, rate
from remuda import rng
from remuda.game import make_game
from remuda.games import find_game
from remuda.rng import Stream

STEPS = 100
ORIGINAL = 456  # steps/s of the original simulator on one core, shared/facts/cage2: baselines (a), idle machine
CLOSEST = 97_000  # the most the approximate MiniCAGE reached there, 1,000 worlds
LEAST = 500_000


def measure(worlds: int, seconds: float, **options: object) -> float:
    """Steps per second of processor time, resets included, an observation written for every step."""
    game = make_game(find_game("cage2"), {"steps": STEPS, **options}, range(worlds))
    seen = np.zeros((worlds, 1, *game.spec.groups[0].obs_shape), np.uint8)
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds))
    actions = (rng.uniforms(keys, STEPS) * game.spec.groups[0].actions).astype(np.int64)
    by_turn = np.ascontiguousarray(actions.T)[:, :, None]  # (turns, worlds, agents)
    everyone = np.arange(worlds)
    episode = 0

    def play() -> int:
        nonlocal episode
        episode += 1
        game.reset(everyone, rng.keys(keys, episode))
        for turn in range(STEPS):
            game.begin()
            game.observe(0, 0, 1, seen)
            game.act(0, 0, 1, by_turn[turn])
            game.end()
        return worlds * STEPS

    return rate(play, seconds)


def main() -> None:
    """Print the table."""
    ratios = compare(
        "CAGE 2 with observations and random actions, one core, steps per second of processor time",
        {
            "1,000 worlds, b_line": lambda: measure(1000, 0.5, red="b_line"),
            "1,000 worlds, meander": lambda: measure(1000, 0.5, red="meander"),
            "1,000 worlds, mixed, green": lambda: measure(1000, 0.5, red="mixed", green=True),
            "1 world, b_line": lambda: measure(1, 0.5, red="b_line"),
            f"wanted at least ({LEAST:,})": lambda: float(LEAST),
            f"the original, measured elsewhere ({ORIGINAL:,})": lambda: float(ORIGINAL),
            f"MiniCAGE, measured elsewhere ({CLOSEST:,})": lambda: float(CLOSEST),
        },
        [
            Claim("over what is wanted, b_line", "1,000 worlds, b_line", f"wanted at least ({LEAST:,})", 1.0),
            Claim("over what is wanted, meander", "1,000 worlds, meander", f"wanted at least ({LEAST:,})", 1.0),
            Claim("1,000 worlds over one", "1,000 worlds, b_line", "1 world, b_line"),
        ],
        "steps/s",
        repeats=5,
    )
    assert ratios


if __name__ == "__main__":
    main()
