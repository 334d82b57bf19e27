"""The examples in which others train on our games; they need `pip install 'remuda-rl[bench]'`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS = {"sb3_cage2": ("stable_baselines3",), "rllib_treasurehunt": ("ray", "tree", "gymnasium")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "amount"), [("sb3_cage2", "20000"), ("rllib_treasurehunt", "4")])
def test_others_learn_our_games(tmp_path: Path, name: str, amount: str) -> None:
    missing = [module for module in NEEDS[name] if find_spec(module) is None]
    if missing:
        pytest.fail(f"{name} cannot be run: {missing[0]} is not installed, pip install 'remuda-rl[bench]'")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", amount],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    before, after = map(float, re.findall(r"-?\d+\.\d", done.stdout))
    assert after > before, done.stdout
