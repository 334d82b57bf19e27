"""Workers play the version of a user's code that their parent has, or refuse."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import remuda
from remuda.core import code_versions

SOURCE = """
import gymnasium, numpy

REWARD = {reward}

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {{}}
    def step(self, action):
        return numpy.zeros(2, numpy.float32), reward(), False, False, {{}}

def reward():
    return float(REWARD)

def make():
    return Walk()
"""
PLAN = {
    "worlds": 2, "total_episodes": 4, "turns": 3, "learner": "ppo", "layers": [4], "pictures": False,
    "evaluate_episodes": 2, "device": "cpu", "quiet": True, "engine": "executor", "n_workers": 1,
}  # fmt: skip


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"edited_{abs(hash(request.node.name)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(reward=1))
    return importlib.import_module(name)


def _edit(module: ModuleType, reward: int) -> None:
    assert module.__file__ is not None
    Path(module.__file__).write_text(SOURCE.format(reward=reward))
    importlib.invalidate_caches()


def test_workers_play_a_module_as_it_was_reloaded(module: ModuleType, tmp_path: Path) -> None:
    name = f"{module.__name__}:make"
    first = remuda.train(name, out=tmp_path / "first", **PLAN)
    _edit(module, 10)
    importlib.reload(module)
    second = remuda.train(name, out=tmp_path / "second", **PLAN)
    assert set(first.metrics["return"]) == {3.0}
    assert set(second.metrics["return"]) == {30.0}


def test_a_file_edited_after_it_was_imported_is_refused(module: ModuleType, tmp_path: Path) -> None:
    _edit(module, 10)
    with pytest.raises(remuda.RemudaError, match="another version in the file than in the process that trains"):
        remuda.train(f"{module.__name__}:make", out=tmp_path / "run", **PLAN)


def test_the_hash_covers_what_the_code_uses_and_nothing_else(module: ModuleType) -> None:
    before = code_versions.hash_code(module.make)
    importlib.reload(module)
    assert code_versions.hash_code(module.make) == before
    module.REWARD = 2
    assert code_versions.hash_code(module.make) != before
