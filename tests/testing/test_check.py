"""The conformance suite: shipped games keep every promise, and each broken one is found out."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameEntry
from remuda.games.registry import SHIPPED
from remuda.testing.check import CHECKS, check
from remuda.testing.games import BROKEN, ODD, RESPAWN

RUNS = "episodes run, with parallel actions and without"
BREAKS = {
    "oneaction": "the spec makes sense",
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
    "nomove": "somebody who must act may act",
    "prints": "it prints nothing",
    "starts": "it starts no processes",
}
# A game that fails to run, or never repeats itself, need not keep these either.
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
    [*((entry, {}) for entry in ODD), (RESPAWN, {"at_begin": True}), (RESPAWN, {"longest_rest": 0})],
)
def test_odd_but_honest_games_keep_them_too(entry: GameEntry, options: dict[str, Any]) -> None:
    assert broken_promises(entry, **options) == {}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_game_is_caught_by_the_right_check(name: str) -> None:
    broken = broken_promises(BROKEN[name])
    assert BREAKS[name] in broken
    assert set(broken) <= {BREAKS[name]} | FOLLOWS.get(name, set())


def test_every_check_has_a_game_that_fails_it() -> None:
    assert set(BREAKS) == set(BROKEN)
    assert set(BREAKS.values()) == {promise for promise, _, _ in CHECKS}


def test_what_a_game_raises_is_told_not_raised() -> None:
    told = broken_promises(BROKEN["raises"])[RUNS]
    where = "turn 2 of train episodes 0 to 2, worlds 0 to 2, seed 0"
    assert f"raised ZeroDivisionError in {where}: a bug of the game's author" in told


def test_problems_say_where() -> None:
    told = "a reward of nan for agent 2 in turn 4 of train episode 0, world 0"
    assert told in broken_promises(BROKEN["nanreward"]).values()


def test_options_are_passed_on() -> None:
    assert broken_promises(BROKEN["nanreward"], turns=4) == {}  # it pays nan in the fifth turn
    assert "did you mean 'turns'" in broken_promises(BROKEN["nanreward"], turn=4)[RUNS]


def test_a_game_that_does_not_exist_is_the_askers_mistake() -> None:
    with pytest.raises(UnknownName):
        check("treasurehut")
    with pytest.raises(ConfigError):
        check("remuda.testing:NOTHING")
