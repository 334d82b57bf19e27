"""Packages offer learners and games by entry points, which go the way of the shipped ones in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
SOURCE = '''"""A package somebody published."""

from typing import Any

import gymnasium
from dqn import DQN
from gymnasium.envs.classic_control import CartPoleEnv


class OffTheShelf(DQN):
    """DQN of a package."""


def cart() -> gymnasium.Env[Any, Any]:
    """A cart, 9 turns at most."""
    return gymnasium.wrappers.TimeLimit(CartPoleEnv(), 9)
'''
ENTRY_POINTS = """[remuda.learners]
shelf = published:OffTheShelf
gone = published:Gone
[remuda.games]
cart = published:cart
"""
EXAMPLES = Path(__file__).parents[2] / "examples"
PLAN = ("learner=shelf", "hidden=8", "batch_size=4", "worlds=2", "evaluate_episodes=2", "pictures=false")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run a command of remuda where the package is installed."""
    site = tmp_path / "site"
    about = site / "published-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "published.py").write_text(SOURCE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: published\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(site), str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    place = {**os.environ, "PYTHONPATH": path, "XDG_CONFIG_HOME": str(tmp_path / "config"), "COLUMNS": "200"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "remuda", *words]
        return subprocess.run(whole, cwd=tmp_path, env=place, capture_output=True, text=True, check=False)

    return run


def test_a_learner_and_a_game_of_a_package_train_resume_play_frozen_and_are_exported(command: Command) -> None:
    listed = command("learners").stdout
    assert "DQN of a package." in listed
    assert "learner 'gone' of an installed package cannot be imported" in listed
    assert "published:cart" in command("games").stdout
    assert "hidden" in command("learners", "shelf").stdout
    done = command("train", "cart", *PLAN, "total_episodes=4", "engine=executor", "n_workers=2", "--out", "run")
    assert done.returncode == 0, done.stderr
    for words in (
        ("resume", "run", "--total-episodes", "8"),
        ("evaluate", "run", "--episodes", "2"),
        ("evaluate", "cart", "learner=frozen:run", "--episodes", "2"),
        ("export", "run", "--out", "agent"),
        ("train", "cart", *PLAN, "agents=2", "learners={1: ppo}", "total_episodes=4", "--out", "mixed"),
    ):
        done = command(*words)
        assert done.returncode == 0, (words, done.stderr)


def test_an_entry_point_that_names_nothing_is_one_sentence(command: Command) -> None:
    done = command("train", "cart", "learner=gone", "total_episodes=2")
    assert done.returncode == 2
    assert "learner 'gone' of an installed package cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr
