"""An exported defender of CAGE 2 carries its memory with it and plays as it does here, without remuda."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core import rng
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.registry import find_game
from remuda.runs.run import Run

SMALL: dict[str, Any] = {"total_episodes": 10, "worlds": 5, "layers": [16], "pictures": False, "quiet": True}


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def actions_here(run: Run, worlds: int, steps: int) -> np.ndarray:
    """What the trained agent does in a game of its own kind, as actions of the 145, (steps, worlds)."""
    game: Any = make_game(find_game("cage2"), run.plan.options, range(worlds))
    game.reset(np.arange(worlds), rng.keys(rng.key(3, Stream.CHECK), np.arange(worlds)))
    (group,) = game.spec.groups
    obs = np.zeros((worlds, 1, *group.obs_shape), group.obs_dtype)
    mask = np.zeros((worlds, 1, group.actions), np.bool_)
    agents, chosen = [run.agent(0) for _ in range(worlds)], []
    for _ in range(steps):
        game.observe(0, 0, 1, obs)
        if group.masked:
            game.mask(0, 0, 1, mask)
        own = [agents[w].act(obs[w, 0], mask=mask[w, 0] if group.masked else None) for w in range(worlds)]
        game.step([np.array(own)[:, None]])
        chosen.append(game.state["blue"].copy())
    return np.array(chosen)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("observation", "actions"),
    [("memory", "compact"), ("bits", "compact"), ("belief", "compact"), ("belief", "useful")],
)
def test_it_chooses_the_same_actions_from_bits_alone(observation: str, actions: str, tmp_path: Path) -> None:
    run = remuda.train(preset="cage2_record", observation=observation, actions=actions, out=tmp_path / "run", **SMALL)
    files = remuda.export(run, out=tmp_path / "agent")
    assert tmp_path / "agent" / "defender.py" in files
    theirs = imported(tmp_path / "agent" / "defender.py")
    worlds, steps = 2, 60  # B_line and Meander
    wanted = actions_here(run, worlds, steps)
    options = {"red": run.plan.options["red"], "rules": "leaderboard"}
    game: Any = make_game(find_game("cage2"), options, range(worlds))
    game.reset(np.arange(worlds), rng.keys(rng.key(3, Stream.CHECK), np.arange(worlds)))
    defenders = [theirs.Defender(str(tmp_path / "agent" / "weights.safetensors")) for _ in range(worlds)]
    bits = np.zeros((worlds, 1, 52), np.uint8)
    for t in range(steps):
        game.observe(0, 0, 1, bits)
        actions = [defender.get_action(bits[w, 0]) for w, defender in enumerate(defenders)]
        np.testing.assert_array_equal(actions, wanted[t])
        game.step([np.array(actions)[:, None]])


@pytest.mark.promise
def test_it_plays_in_a_process_without_remuda(tmp_path: Path) -> None:
    run = remuda.train(preset="cage2_record", out=tmp_path / "run", **SMALL)
    remuda.export(run, out=tmp_path / "agent")
    code = (
        "import sys; sys.modules['remuda'] = None; sys.modules['numba'] = None\n"
        "import defender, numpy as np\n"
        "agent = defender.Defender('weights.safetensors')\n"
        "for episode in range(2):\n"
        "    actions = [agent.get_action(np.zeros(52)) for _ in range(20)]\n"
        "    agent.end_episode()\n"
        "    print(actions)\n"
    )
    played = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "agent", capture_output=True, text=True, check=True
    )
    first, second = played.stdout.splitlines()
    assert first == second


def test_plain_bits_and_actions_need_no_file_of_their_own(tmp_path: Path) -> None:
    run = remuda.train("cage2", learner="ppo", steps=5, out=tmp_path / "run", **SMALL)
    assert "defender.py" not in [path.name for path in remuda.export(run, out=tmp_path / "agent")]
