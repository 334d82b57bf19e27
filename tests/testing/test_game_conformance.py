"""The conformance suite: shipped games keep every promise, and every broken game fails the right check."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from remuda.core.errors import ConfigError, UnknownName, message_of
from remuda.core.game import GameEntry
from remuda.core.kernels import kernel, uncompiled
from remuda.games.registry import SHIPPED
from remuda.testing import BROKEN, ERRANDS, ODD, RESPAWN
from remuda.testing.check import check
from remuda.testing.game_conformance import CHECKS
from remuda.testing.odd_games import OddGame, OddOptions

RUNS = "episodes run, with parallel actions and without"
UNCOMPILED = "rules run uncompiled, where every index is checked"
BREAKS = {
    "oneaction": "the spec is valid",
    "outofbounds": UNCOMPILED,
    "raises": RUNS,
    "outofspace": "observations stay in their space",
    "nanreward": "rewards are finite",
    "globalrandom": "the same key gives the same episode",
    "sameagain": "another key gives another episode",
    "seesothers": "worlds do not influence each other",
    "paysothers": "worlds do not influence each other",
    "remembers": "reset forgets everything",
    "endless": "episodes end, and say how",
    "silentend": "episodes end, and say how",
    "nomove": "an agent that is alive may act",
    "cutsoff": "being away is not the end of a life",
    "prints": "it prints nothing",
    "starts": "it starts no processes",
}
# Checks that these games also fail, as a consequence of the promise they break.
FOLLOWS = {
    "raises": {promise for promise, _, _ in CHECKS},
    "globalrandom": {"reset forgets everything", "worlds do not influence each other"},
}


def broken_promises(entry: str | GameEntry, **options: Any) -> dict[str, str]:
    return {finding.promise: str(finding.problem) for finding in check(entry, **options) if not finding.good}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_games_keep_every_promise(name: str) -> None:
    findings = check(name)
    assert [finding.promise for finding in findings] == [promise for promise, _, _ in CHECKS]
    assert broken_promises(name) == {}


@pytest.mark.parametrize(
    ("entry", "options"),
    [*((entry, {}) for entry in ODD), (ERRANDS, {}), (RESPAWN, {"at_begin": True}), (RESPAWN, {"longest_rest": 0})],
)
def test_odd_games_keep_every_promise(entry: GameEntry, options: dict[str, Any]) -> None:
    assert broken_promises(entry, **options) == {}


def test_a_death_and_a_new_life_are_pointed_out() -> None:
    notes = {entry.name: [finding.note for finding in check(entry) if finding.note] for entry in (RESPAWN, ERRANDS)}
    assert notes["errands"] == []
    assert len(notes["respawn"]) == 1
    assert "a death and a new life" in notes["respawn"][0]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_game_fails_the_right_check(name: str) -> None:
    broken = broken_promises(BROKEN[name])
    assert BREAKS[name] in broken
    assert set(broken) <= {BREAKS[name]} | FOLLOWS.get(name, set())


def test_every_check_has_a_game_that_fails_it() -> None:
    assert set(BREAKS) == set(BROKEN)
    assert set(BREAKS.values()) == {promise for promise, _, _ in CHECKS}


def test_what_a_game_raises_becomes_a_finding() -> None:
    problem = broken_promises(BROKEN["raises"])[RUNS]
    where = "turn 2 of train episodes 0 to 2, worlds 0 to 2, seed 0"
    assert f"raised ZeroDivisionError in {where}: a bug of the game's author" in problem


def test_an_index_out_of_bounds_is_told_with_its_line_before_anything_compiled_runs() -> None:
    findings = check(BROKEN["outofbounds"])
    assert [finding.good for finding in findings] == [True, False]
    problem = str(findings[-1].problem)
    assert "raised IndexError: index 3 is out of bounds for axis 2 with size 3 in _write_ones (" in problem
    assert problem.endswith(": out[w, i, n] = 1")


class LateOutOfBounds(OddGame):
    """Writes behind an array of its own in turn 45."""

    def end(self) -> None:
        _write_at(np.zeros(45), int(self.turn.max()))
        super().end()


@kernel
def _write_at(array: Any, index: int) -> None:
    array[index] = 1


LATE = GameEntry("late", "Writes out of bounds in turn 45.", OddOptions, LateOutOfBounds)


def test_a_whole_episode_runs_uncompiled() -> None:
    problem = broken_promises(LATE, turns=60)[UNCOMPILED]
    assert "raised IndexError: index 45 is out of bounds for axis 0 with size 45 in _write_at (" in problem
    assert broken_promises(LATE, turns=45) == {}


def test_an_episode_that_takes_too_long_uncompiled_is_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.testing.game_conformance.UNCOMPILED_S", 0.0)
    notes = {finding.promise: finding.note for finding in check(LATE, turns=45)}
    said = "the first 25 turns ran uncompiled; NUMBA_DISABLE_JIT=1 remuda check … plays the rest"
    assert notes[UNCOMPILED] == said


def test_compiled_code_runs_compiled_after_a_check() -> None:
    array, kernel = np.zeros(1), njit(_reads)
    with pytest.raises(IndexError), uncompiled() as raised:
        kernel(array, 1)
    assert [type(error) for error in raised] == [IndexError]
    assert kernel.signatures == []
    assert kernel(array, 0) == 0
    assert len(kernel.signatures) == 1


def _reads(array: Any, index: int) -> Any:
    return array[index]


def test_problems_say_where() -> None:
    problem = "a reward of nan for agent 2 in turn 4 of train episode 0, world 0"
    assert problem in broken_promises(BROKEN["nanreward"]).values()


def test_options_are_passed_on() -> None:
    assert broken_promises(BROKEN["nanreward"], turns=4) == {}  # it pays nan in the fifth turn
    (problem,) = broken_promises(BROKEN["nanreward"], turn=4).values()
    assert "did you mean 'turns'" in problem


def test_a_game_that_cannot_be_made_has_one_finding() -> None:
    (finding,) = check(lambda: object())
    assert "made a object" in str(finding.problem)


def test_a_type_error_of_numba_is_told_once_with_its_place() -> None:
    class Untyped(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: Any) -> tuple[int, dict[str, Any]]:  # type: ignore[override]
            return 0, {}

        def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
            _calls_what_numba_lacks(np.zeros(2))
            return 0, 0.0, True, False, {}

    last = check(Untyped)[-1]
    lines = str(last.problem).splitlines()
    assert [line for line in lines if "Unknown attribute 'tolist'" in line]
    assert [line for line in lines if line.strip() == "return array.tolist()"]
    assert len(lines) == len(set(lines)) <= 6
    assert "\x1b" not in str(last.problem)


def test_a_run_tells_a_type_error_of_numba_once_too() -> None:
    with pytest.raises(TypingError) as raised:
        _calls_what_numba_lacks(np.zeros(2))
    lines = message_of(raised.value).splitlines()
    assert "Unknown attribute 'tolist' of type array(float64, 1d, C)" in lines
    assert len(lines) == len(set(lines)) <= 5
    assert "\x1b" not in "".join(lines)


@njit
def _calls_what_numba_lacks(array: Any) -> Any:
    return _as_list(array)


@njit
def _as_list(array: Any) -> Any:
    return array.tolist()


def test_an_unknown_game_raises() -> None:
    with pytest.raises(UnknownName):
        check("treasurehut")
    with pytest.raises(ConfigError):
        check("remuda.testing:NOTHING")
