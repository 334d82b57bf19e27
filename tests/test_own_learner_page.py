"""The page that explains how to write a learner, and its examples: both must be true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import remuda
from a2c import A2C
from dqn import DQN
from remuda.learners.single_agent.base import SingleAgentLearner

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "write-a-learner.md").read_text(encoding="utf-8")
SMALL = {"turns": 8, "worlds": 2, "total_episodes": 4, "agents": 2, "batch_size": 4, "pictures": False}


def blocks(heading: str) -> str:
    """The Python under a heading, without blank lines."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return without_blank_lines("".join(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)))


def without_blank_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


@pytest.mark.parametrize(("heading", "file"), [("DQN", "dqn.py"), ("A2C", "a2c.py")])
def test_the_python_of_the_page_is_the_file(heading: str, file: str) -> None:
    source = (ROOT / "examples" / file).read_text(encoding="utf-8")
    assert blocks(heading) == without_blank_lines(source)
    assert 30 <= len(without_blank_lines(source).splitlines()) <= 60


@pytest.mark.parametrize("learner", [DQN, A2C])
def test_the_page_names_every_option_that_the_base_class_has(learner: type[SingleAgentLearner]) -> None:
    for name in learner.__mro__[1].options_class.model_fields:  # type: ignore[attr-defined]
        assert f"`{name}`" in PAGE, name


def test_the_commands_of_the_page_train(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    remuda (train .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines[::2]:
        own = {name: value for name, value in SMALL.items() if name != "batch_size" or "dqn" in line}
        words = [word for word in line.split()[1:] if word.partition("=")[0] not in own]
        done = cli("train", *words, *(f"{name}={value}" for name, value in own.items()))
        assert done.code == 0, done


def test_a_learner_of_a_notebook_cell_trains_and_is_given_again(tmp_path: Path) -> None:
    class Own(DQN):
        """A class that no other process can import."""

    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, learner=Own, **SMALL)
    assert run.plan.learner.startswith("session:Own-")
    again = remuda.load(run.path, learner=Own)
    assert again.evaluate(episodes=2).returns.shape == (2, 2)
    with pytest.raises(remuda.RemudaError, match="has no learner A2C of another session"):
        remuda.load(run.path, learner=A2C)


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ("dqn:math", "is a module, not a subclass of remuda.OffPolicyLearner"),
        ("dqn:DQNOptions", "is DQNOptions, not a subclass"),
        ("dqn:Missing", "learner 'dqn:Missing' cannot be imported"),
        ("nowhere:DQN", "learner 'nowhere:DQN' cannot be imported"),
        ("ippo", "unknown learner 'ippo'"),
        ("remuda:OffPolicyLearner", "has no loss, network: define it"),
    ],
)
def test_a_wrong_learner_is_one_sentence(learner: str, message: str) -> None:
    with pytest.raises(remuda.RemudaError, match=message):
        remuda.train("treasurehunt", learner=learner)


def test_a_learner_of_ones_own_plays_frozen(tmp_path: Path) -> None:
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, learner="dqn:DQN", **SMALL)
    scores = remuda.evaluate("treasurehunt", 2, agents=2, turns=8, learner=f"frozen:{run.path}")
    assert scores.returns.shape == (2, 2)
