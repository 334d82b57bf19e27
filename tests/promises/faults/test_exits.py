"""A game or a learner that calls sys.exit(): recorded as a failure, and everything is saved at every end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.core.errors import GameError
from remuda.core.game import GameEntry
from remuda.testing.odd_games import OddGame, OddOptions, low_bits

PLAN: dict[str, Any] = {
    "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 1, "batch_size": 8, "worlds": 3, "total_episodes": 12,
    "evaluate_episodes": 2, "checkpoint_every": 3, "pictures": False, "max_failures": 1.0,
}  # fmt: skip
ONE_PROCESS = ["sequential", "vectorized", "threads"]


class Exits(OddGame):
    """Some episodes call sys.exit() in their sixth turn."""

    def begin(self) -> None:
        """As the key decides."""
        if ((self.turn == 5) & (low_bits(self.keys) % 3 == 0)).any():
            sys.exit(0)


class ExitsAtOnce(OddGame):
    """Cannot be made."""

    def reset(self, worlds: Any, keys: Any) -> None:
        """Not even this."""
        sys.exit()


EXITS = GameEntry("exits", "Some episodes exit.", OddOptions, Exits)
EXITS_AT_ONCE = GameEntry("exits_at_once", "All episodes exit.", OddOptions, ExitsAtOnce)


@pytest.mark.parametrize("engine", ONE_PROCESS)
def test_episodes_that_exit_are_failures(tmp_path: Path, engine: str) -> None:
    run = remuda.train("test_exits:EXITS", out=tmp_path / "run", quiet=True, engine=engine, **PLAN)
    assert run.result["finished"]
    assert run.result["failures"]["episodes_failed"] >= 3
    assert list((run.path / "failures").glob("*.json"))
    assert "raised SystemExit" in (run.path / "console.log").read_text()


@pytest.mark.parametrize("engine", ONE_PROCESS)
def test_a_game_that_always_exits_is_an_error(tmp_path: Path, engine: str) -> None:
    with pytest.raises(GameError, match="SystemExit"):
        remuda.train("test_exits:EXITS_AT_ONCE", out=tmp_path / "run", quiet=True, engine=engine, **PLAN)


@pytest.mark.parametrize("engine", ONE_PROCESS)
def test_a_callback_that_exits_ends_the_run_saved(train: Any, tmp_path: Path, trained: Any, engine: str) -> None:
    def leave(rows: list[dict[str, Any]]) -> None:
        if rows[0]["round"] == 2:
            sys.exit(3)

    with pytest.raises(SystemExit):
        train(callback=leave, engine=engine)
    whole = remuda.resume(tmp_path / "run", quiet=True)
    assert whole.result["weights_sha256"] == trained(engine=engine).result["weights_sha256"]
