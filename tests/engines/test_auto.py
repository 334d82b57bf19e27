"""`engine: auto`: what it chooses, and that weights do not depend on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from engine_runs import ONE_WORLD_AT_A_TIME, console_lines, fingerprint

import remuda
from remuda.core.machine import cores
from remuda.engines import choose
from remuda.engines.turn_cost import TurnCost, measure_turn
from remuda.games.registry import find_game, game_name
from remuda.runs.settings import make_plan, spec_of
from remuda.testing.broken_games import BROKEN


def test_auto_chooses_vectorized_where_the_game_plays_many_worlds_at_once(
    trained: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        choose, "processes_unavailable", lambda request: pytest.fail("a trial process was started for nothing")
    )
    run = train(engine="auto")
    assert yaml.safe_load((run.path / "config.yaml").read_text())["engine"] == "vectorized"
    assert len(console_lines(run, "engine: auto (the game plays many worlds at once) → engine vectorized (")) == 1
    assert fingerprint(run) == fingerprint(trained(engine="vectorized"))


@pytest.mark.usefixtures("processes_always_pay")
def test_auto_chooses_processes_where_the_game_plays_one_world_at_a_time(tmp_path: Path) -> None:
    run = remuda.train(out=tmp_path / "run", quiet=True, n_workers=2, **ONE_WORLD_AT_A_TIME)
    assert run.plan.engine == run.result["engine"] == "executor"
    (line,) = console_lines(run, "engine: auto (the game plays one world at a time")
    assert "→ engine executor (2 collecting pro" in line


def test_auto_starts_no_processes_for_a_short_run(tmp_path: Path) -> None:
    run = remuda.train(out=tmp_path / "run", quiet=True, **ONE_WORLD_AT_A_TIME)
    assert run.result["engine"] == "vectorized"
    assert len(console_lines(run, "less than starting processes")) == 1


@pytest.mark.usefixtures("processes_always_pay")
def test_the_weights_do_not_depend_on_what_auto_chooses(tmp_path: Path) -> None:
    chosen = remuda.train(out=tmp_path / "chosen", quiet=True, n_workers=2, **ONE_WORLD_AT_A_TIME)
    plain = remuda.train(out=tmp_path / "plain", quiet=True, engine="sequential", **ONE_WORLD_AT_A_TIME)
    assert chosen.result["engine"] == "executor"
    assert fingerprint(chosen) == fingerprint(plain)


def test_auto_uses_more_workers_than_cores_for_turns_that_wait() -> None:
    plan = make_plan(
        {"game": "remuda.testing.slow_games:SLOW", "worlds": 12, "engine": "auto", "total_episodes": 10**6}
    )
    chosen, why = choose.choose_engine(plan, spec_of(plan))
    assert (chosen.engine, chosen.deterministic) == ("executor", True)
    assert cores() < (chosen.n_workers or 0) <= 12
    assert "mostly waits" in why


class OneTurn(gymnasium.Env[Any, Any]):
    """Every episode is over after one turn; making it takes long, as where something is loaded or compiled."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.turns = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        if self.turns == 1:
            time.sleep(0.3)
        return np.zeros(2, np.float32), 1.0, True, False, {}


def test_a_turn_that_is_interrupted_does_not_wait() -> None:
    """A turn that computes takes twice its processor time on a busy machine, and one that sleeps gives it up."""
    assert not TurnCost(wall_s=0.01, cpu_s=0.002, pauses=0.1).waits
    assert TurnCost(wall_s=0.01, cpu_s=0.002, pauses=1.0).waits
    busy, slow = (measure_turn(find_game(f"remuda.testing:{name}"), {}) for name in ("BUSY", "SLOW"))
    assert busy
    assert not busy.waits
    assert slow
    assert slow.waits


def test_the_cost_of_a_turn_is_not_that_of_the_first_one() -> None:
    cost = measure_turn(find_game(game_name(OneTurn)), {})
    assert cost
    assert cost.wall_s < 0.3


def test_a_game_that_raises_while_it_is_measured_is_left_to_training() -> None:
    assert measure_turn(BROKEN["raises"], {}) is None


@pytest.mark.usefixtures("processes_always_pay")
def test_auto_chooses_sequential_where_processes_are_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "processes_unavailable", lambda request: "none are left")
    run = remuda.train(out=tmp_path / "run", quiet=True, engine="auto", **ONE_WORLD_AT_A_TIME)
    assert run.plan.engine == run.result["engine"] == "sequential"
    assert run.result["finished"]
    line = "engine: auto (worker processes cannot be started here: none are left) → engine sequential (1 thread)"
    assert len(console_lines(run, line)) == 1


def test_a_run_can_be_resumed_with_auto(train: Any, trained: Any) -> None:
    stopped = train(engine="sequential", callback=lambda rows: rows[0]["round"] < 2)
    again = remuda.resume(stopped.path, engine="auto", quiet=True)
    assert again.result["engine"] == "vectorized"
    assert fingerprint(again) == fingerprint(trained())


def test_auto_is_listed_and_suggested(cli: Any) -> None:
    assert "auto: " in cli("engines").out
    assert "use_threads" in cli("settings").out
    assert "did you mean 'auto'?" in cli("train", "treasurehunt", "--engine", "atuo").err
