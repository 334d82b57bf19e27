"""Failures on every engine: retry, give up the episode, end the run; and samples that are not finite."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import Field

import remuda
from remuda.core.errors import GameError, LearnerError
from remuda.core.game import GameEntry, Group
from remuda.core.rng import Keys, below
from remuda.learners.iqn import learner as iqn_learner
from remuda.learners.iqn.compiled import CompiledUpdates
from remuda.learners.iqn.learner import IQN
from remuda.learners.ppo.tiled import AgentLearning
from remuda.runs.failure_log import FAILURES, MAX_FAILED_ROUNDS, MIN_FAILURES, read_failure
from remuda.testing.odd_games import OddGame, OddOptions

COMMON: dict[str, Any] = {
    "agents": 2, "turns": 8, "worlds": 4, "total_episodes": 24, "n_workers": 2, "evaluate_episodes": 4,
    "checkpoint_every": 4, "device": "cpu", "pictures": False, "deterministic": True, "max_failures": 1.0,
}  # fmt: skip
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256},
    "ppo": {"learner": "ppo", "layers": [8], "minibatches": 2},
}
PLAN = {**COMMON, **LEARNERS["iqn"]}
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized"},
    "threads": {"engine": "threads"},
    "sync": {"engine": "sync"},
    "executor": {"engine": "executor"},
    "actor-learner": {"engine": "actor-learner", "deterministic": False},
    "ray": {"engine": "ray"},
}
ANOTHER = 0xBAD  # a number that decides which episodes are unlucky


class UnluckyOptions(OddOptions):
    """What goes wrong in how many episodes."""

    what: str = Field("raise", description="raise, nan, inf, outside or nothing")
    one_in: int = Field(4, ge=1, description="episodes of which one is unlucky")
    agent: int = Field(0, ge=0, description="whom it happens to")


class Unlucky(OddGame):
    """Some episodes fail, by their own chance, whoever plays them and however often."""

    def __init__(self, options: UnluckyOptions, worlds: Sequence[int]) -> None:
        group = Group("odd", options.agents, (3,), np.float32, 3, low=0, high=1 << 20)
        super().__init__(options, worlds, group)
        self.options = options
        self.unlucky = np.zeros(len(worlds), np.bool_)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        super().reset(worlds, keys)
        self.unlucky[worlds] = [below(key, ANOTHER, self.options.one_in) == 0 for key in keys]

    @property
    def now(self) -> NDArray[np.bool_]:
        """Worlds in which it happens."""
        happening: NDArray[np.bool_] = self.unlucky & (self.turn == 5)
        return happening

    def begin(self) -> None:
        if self.options.what == "raise" and self.now.any():
            raise ZeroDivisionError("a bug of the game's author")

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        super().observe(group, first, last, out)
        if self.options.what == "outside" and first <= self.options.agent < last:
            out[self.now, self.options.agent - first, 2] = -1

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        super().act(group, first, last, actions)
        if self.options.what in ("nan", "inf") and first <= self.options.agent < last:
            self.signals[0].rewards[self.now, self.options.agent] = float(self.options.what)


UNLUCKY = GameEntry("unlucky", "Some episodes fail, by their own chance.", UnluckyOptions, Unlucky)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., remuda.Run]:
    def train(name: str = "run", learner: str = "iqn", **changes: Any) -> remuda.Run:
        settings = {**COMMON, **LEARNERS[learner], **changes}
        return remuda.train("test_ladder:UNLUCKY", out=tmp_path / name, quiet=True, **settings)

    return train


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> remuda.Run:
    """What `sequential` comes to with episodes that always fail."""
    out = tmp_path_factory.mktemp("alone") / "run"
    return remuda.train("test_ladder:UNLUCKY", out=out, quiet=True, **PLAN, engine="sequential")


def test_some_episodes_are_given_up_and_others_played_instead(alone: remuda.Run) -> None:
    failed = alone.result["failures"]
    assert alone.result["finished"]
    assert alone.result["episodes"] == PLAN["total_episodes"]
    assert len(failed["episodes_given_up"]) >= 2
    told = (alone.path / "console.log").read_text()
    for episode in failed["episodes_given_up"]:
        assert f"train episode {episode} failed 3 times: given up, episode " in told
    assert failed["episodes_failed"] == 3 * told.count("failed 3 times")
    assert len(alone.metrics["round"]) == 2 * alone.plan.rounds


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "sequential"])
def test_the_same_episodes_on_every_engine(train: Any, alone: remuda.Run, csv_rows: Any, engine: str) -> None:
    run = train(**ENGINES[engine])
    assert sorted(run.result["failures"]["episodes_given_up"]) == sorted(alone.result["failures"]["episodes_given_up"])
    assert run.result["episodes"] == PLAN["total_episodes"]
    if engine != "actor-learner":
        assert run.result["weights_sha256"] == alone.result["weights_sha256"]
        assert csv_rows(run) == csv_rows(alone)


@pytest.mark.parametrize("engine", ["vectorized", "executor", "ray"])
def test_a_failure_is_kept_with_all_it_takes_to_play_it_again(train: Any, cli: Any, engine: str) -> None:
    run = train(**ENGINES[engine])
    record, actions = read_failure(run.path, 1)
    assert (record.turn, record.seed) == (5, 0)
    assert actions[0].shape == (6, len(record.episodes), 2)
    assert record.worlds == [episode % 4 for episode in record.episodes]
    assert "a bug of the game's author" in record.traceback
    assert re.search(r"failure 1: .*turn 5 .*--failure 1", (run.path / "console.log").read_text())
    outcome = cli("replay", run.path, "--failure", "1")
    assert outcome.code == 0, outcome.err
    assert "played again: unlucky raised ZeroDivisionError in turn 5" in outcome.out
    assert "in begin" in outcome.out


def test_a_failure_that_does_not_happen_again_is_said(train: Any, cli: Any) -> None:
    run = train(engine="vectorized")
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("what: raise", "what: nothing"))
    assert "what: nothing" in config.read_text()
    outcome = cli(
        "replay", run.path, "--failure", "1", "--trust"
    )  # edited settings are no longer those that were signed
    assert outcome.code == 1
    assert "nothing was raised" in outcome.out


def test_a_failure_that_is_not_there(train: Any, cli: Any) -> None:
    run = train(engine="vectorized", what="nothing")
    outcome = cli("replay", run.path, "--failure", "3")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"error: {run.path} has no failure 3: it has none\n"


@pytest.mark.parametrize("engine", ["sequential", "executor"])
def test_too_many_failures_end_the_run_after_saving(train: Any, tmp_path: Path, engine: str) -> None:
    with pytest.raises(GameError, match=rf"^{MIN_FAILURES} failures .* the first: .*unlucky raised ZeroDivisionError"):
        train(**ENGINES[engine], one_in=1, max_failures=0.1)
    run = remuda.Run(tmp_path / "run")
    assert len(list((run.path / FAILURES).glob("*.json"))) == MIN_FAILURES
    assert run.checkpoints()


def test_the_first_failure_ends_a_run_that_allows_none(train: Any, tmp_path: Path) -> None:
    with pytest.raises(GameError, match=r"^1 failures and"):
        train(engine="vectorized", max_failures=0)
    with pytest.raises(GameError):
        remuda.resume(tmp_path / "run", quiet=True)


def test_an_exception_of_the_caller_is_passed_on_and_the_run_can_be_resumed(train: Any, tmp_path: Path) -> None:
    def callback(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 3:
            raise KeyError("a bug of the caller's")

    with pytest.raises(KeyError):
        remuda.train(
            "test_ladder:UNLUCKY", out=tmp_path / "run", quiet=True, callbacks=[callback], what="nothing", **PLAN
        )
    resumed = remuda.resume(tmp_path / "run", quiet=True)
    assert resumed.result["weights_sha256"] == train("whole", what="nothing").result["weights_sha256"]


@pytest.mark.parametrize("what", ["nan", "inf", "outside"])
@pytest.mark.parametrize("learner", ["iqn", "ppo"])
def test_bad_numbers_are_named_and_concern_nobody_else(train: Any, what: str, learner: str) -> None:
    """Agents here do not meet, so the other one must learn exactly what it learns without them."""
    good = train("good", learner, engine="vectorized", what="nothing")
    bad = train("bad", learner, engine="vectorized", what=what)
    told = (bad.path / "console.log").read_text()
    expected = {"nan": "a reward of nan", "inf": "a reward of inf", "outside": "an observation outside 0 to"}[what]
    assert re.search(rf"{expected}.* for agent 0 in turn 5 of train episode \d+, world \d", told)
    assert bad.result["failures"]["invalid_episodes"] >= 2
    weights = [_weights(run) for run in (good, bad)]
    assert _same(weights[0][1], weights[1][1]), "agent 1"
    assert not _same(weights[0][0], weights[1][0]), "agent 0 has learned from less"
    assert all(np.isfinite(array).all() for array in weights[1][0].values())


def _weights(run: remuda.Run) -> list[dict[str, NDArray[np.float32]]]:
    return [run.policy([agent], run.spec.groups[0], "cpu").weights()[0] for agent in range(2)]


def _same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def _spoil_readable(kind: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent 0's second and third loss or gradient are not finite."""
    original = getattr(kind, verb)
    damaged = [0]

    def spoil(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        agents, agent = (self.agents, self.agent) if isinstance(self, AgentLearning) else (self, 0)
        mine = agents.context.herd_first + agent == 0
        damaged[0] += mine
        if mine and damaged[0] in (2, 3):
            rows, *rest = result if isinstance(result, tuple) else (result,)
            factor = torch.ones(len(rows), *[1] * (rows.dim() - 1))  # PPO's is of one agent: one number is enough
            factor[0] = torch.nan
            return (rows * factor, *rest) if rest else rows * factor
        return result

    monkeypatch.setattr(kind, verb, spoil)


def _spoil_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for IQN's compiled form."""
    original = IQN._compiled_updates
    damaged = [0]

    class Unlucky(CompiledUpdates):
        def gradient(self, *args: Any) -> float:
            loss = super().gradient(*args)
            damaged[0] += 1
            return np.nan if damaged[0] in (2, 3) else loss

    def spoil(self: IQN, agent: int, numbers: range) -> Any:
        self._kernels = Unlucky(self.network) if self.context.herd_first + agent == 0 else None
        yield from original(self, agent, numbers)

    monkeypatch.setattr(IQN, "_compiled_updates", spoil)


@pytest.mark.parametrize("form", ["iqn, compiled", "iqn, readable", "ppo"])
@pytest.mark.parametrize("engine", ["vectorized", "threads"])
def test_what_is_not_finite_costs_its_agent_that_update_and_nobody_else(
    train: Any, monkeypatch: pytest.MonkeyPatch, form: str, engine: str
) -> None:
    learner = form[:3]
    if form == "iqn, readable":
        monkeypatch.setattr(iqn_learner, "can_be_compiled", lambda network: False)
    good = train("good", learner, **ENGINES[engine], what="nothing")
    if form == "iqn, compiled":
        _spoil_compiled(monkeypatch)
    else:
        _spoil_readable(*((IQN, "_loss") if learner == "iqn" else (AgentLearning, "gradient")), monkeypatch)
    bad = train("bad", learner, **ENGINES[engine], what="nothing")
    assert re.search(r"agent 0: \d updates skipped, their gradients", (bad.path / "console.log").read_text())
    left_out = bad.result["failures"]["updates_skipped"]
    assert left_out >= 1
    steps = [run.result["updates_per_agent"] for run in (good, bad)]
    assert (steps[0][0] - steps[1][0], steps[0][1] - steps[1][1]) == (left_out, 0)
    weights = [_weights(run) for run in (good, bad)]
    assert _same(weights[0][1], weights[1][1])
    assert all(np.isfinite(array).all() for array in weights[1][0].values())


@pytest.mark.parametrize("engine", ["vectorized", "threads"])
def test_a_learner_that_raises_goes_on(train: Any, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    update = IQN.update
    calls = [0]

    def fail_once(self: IQN, count: int) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("out of luck")
        return update(self, count)

    monkeypatch.setattr(IQN, "update", fail_once)
    run = train(**ENGINES[engine], what="nothing")
    assert run.result["finished"]
    told = (run.path / "console.log").read_text()
    left_out = run.result["failures"]["updates_skipped"]
    assert f"{left_out} updates skipped, learning raised RuntimeError: out of luck" in told
    assert "in fail_once" in told
    assert 1 <= left_out <= 4


@pytest.mark.parametrize("engine", ["vectorized", "threads"])
def test_a_learner_that_keeps_raising_ends_the_run_after_saving(
    train: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str
) -> None:
    def fail(self: IQN, count: int) -> Any:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(IQN, "update", fail)
        with pytest.raises(LearnerError, match=rf"out of luck.*this was round {MAX_FAILED_ROUNDS} in a row"):
            train(**ENGINES[engine], what="nothing")
    saved = json.loads((remuda.Run(tmp_path / "run").checkpoints()[0] / "checkpoint.json").read_text())
    assert saved["loop"]["rounds"] >= MAX_FAILED_ROUNDS
    assert remuda.resume(tmp_path / "run", quiet=True).result["finished"]
