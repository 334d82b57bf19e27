"""Learners on Ray: the same bits for any number of them, and after any of them is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drill import PLAN

import proc
import remuda
from remuda.engines.trainers.ray import trainers as placement
from remuda.runs import checkpoint

EPISODES = 24
SHORT: dict[str, Any] = {
    **PLAN, "agents": 5, "total_episodes": EPISODES, "engine": "ray", "n_workers": 1, "n_learners": 2,
    "deterministic": True, "checkpoint_every": 8, "keep_checkpoints": 9, "start_limit_s": 600,
}  # fmt: skip
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {},
    "ppo": {"learner": "ppo", "layers": [8], "minibatches": 2, "passes": 2},
}
IQN_ONLY = ("layer", "quantiles", "acting_quantiles", "batch_size", "replay_size")
Books = Callable[[remuda.Run], Any]


@pytest.fixture
def train(tmp_path: Path, ray_here: None) -> Callable[..., remuda.Run]:
    """Train with learners in this process's Ray."""

    def train(name: str = "run", callback: Any = None, **changes: Any) -> remuda.Run:
        settings = {**SHORT, **changes}
        if settings.get("learner") == "ppo":
            settings = {name: value for name, value in settings.items() if name not in IQN_ONLY}
        return remuda.train(
            "fault_games:FAULTY", out=tmp_path / name, quiet=True, callbacks=[callback] if callback else [], **settings
        )

    return train


def learner_processes() -> list[int]:
    """The learner actors among our descendants."""
    return sorted(one.pid for one in proc.descendants(os.getpid()) if "LearnerActor" in one.command)


def killer(*rounds: int) -> Callable[[list[dict[str, Any]]], None]:
    """A callback that kills a learner, another one each time, after these rounds."""
    killed: list[int] = []

    def after_a_round(rows: list[dict[str, Any]]) -> None:
        number = int(rows[0]["round"])
        if number in rounds and number not in killed:
            killed.append(number)
            processes = learner_processes()
            os.kill(processes[len(killed) % len(processes)], signal.SIGKILL)

    return after_a_round


def console(run: remuda.Run) -> str:
    return (run.path / "console.log").read_text()


@pytest.mark.parametrize(
    ("learners", "learner", "lag"),
    [
        (2, "iqn", 0),
        *(pytest.param(*own, marks=pytest.mark.slow) for own in [(1, "ppo", 0), (4, "ppo", 1), (4, "iqn", 1)]),
    ],
)
def test_any_number_of_learners_gives_the_bits_of_sequential(
    train: Any, books: Books, learners: int, learner: str, lag: int
) -> None:
    own = {**LEARNERS[learner], "lag": lag}
    one = train("sequential", engine="sequential", n_learners=None, **own)
    many = train(n_learners=learners, **own)
    assert many.result["weights_sha256"] == one.result["weights_sha256"]
    assert books(many) == books(one)
    assert f"ray: {learners} learner" in console(many)
    newest = checkpoint.every(many.path / "checkpoints")[0]
    assert len(list(newest.glob("learner-*.safetensors"))) == learners, "each owner writes its own file"
    theirs, ours = (
        checkpoint.read(newest, "learner"),
        checkpoint.read(one.path / "checkpoints" / newest.name, "learner"),
    )
    assert {name: array.tobytes() for name, array in theirs.items()} == {
        name: array.tobytes() for name, array in ours.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("ray", "sequential"), ("sequential", "ray")])
def test_a_run_changes_between_four_learners_and_sequential(train: Any, before: str, after: str) -> None:
    whole = train("whole", engine="sequential")
    stopped = train(engine=before, n_learners=4, callback=lambda rows: rows[0]["round"] < 3)
    assert not stopped.result["finished"]
    again = remuda.resume(stopped.path, engine=after, quiet=True)
    assert again.result["weights_sha256"] == whole.result["weights_sha256"]


@pytest.mark.parametrize(
    ("lag", "kept"),
    [(0, True), *(pytest.param(*own, marks=pytest.mark.slow) for own in [(0, False), (1, True), (1, False)])],
)
def test_learners_that_are_killed_are_placed_again(
    train: Any, books: Books, monkeypatch: pytest.MonkeyPatch, lag: int, kept: bool
) -> None:
    """From fragments that are kept only the lost learner learns again; without them all go back and play again."""
    if not kept:
        monkeypatch.setattr(placement, "KEEP_BYTES", 0)
    whole = train("whole", engine="sequential", lag=lag)
    run = train(callback=killer(2, 5), lag=lag, checkpoint_every=12)
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert books(run) == books(whole)
    assert run.result["episodes"] == EPISODES
    assert sum(own["restarts"] for own in run.result["processes"] if own["name"].startswith("learner")) == 2
    assert ("all learners go back" in console(run)) or kept
    assert ("placed again from round" in console(run)) or not kept


@pytest.mark.slow
def test_free_the_updates_that_are_lost_are_counted_and_said(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "KEEP_BYTES", 0)
    run = train(callback=killer(3), deterministic=False, checkpoint_every=EPISODES)
    assert run.result["finished"]
    assert run.result["episodes"] == EPISODES
    assert 0 < run.result["failures"]["updates_skipped"] <= EPISODES * 5
    assert "updates skipped" in console(run)


@pytest.mark.slow
def test_one_agent_is_told_that_more_learners_do_not_help(train: Any) -> None:
    run = train(agents=1, n_learners=4)
    assert "one agent learns, so one learner does" in console(run)
