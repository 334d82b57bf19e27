"""The conformance suite for learners: sound ones keep every promise, and every broken one fails the right check."""

from __future__ import annotations

from typing import Any

import pytest

import remuda
from remuda.learners.registry import SHIPPED_LEARNERS
from remuda.testing.broken_learners import BROKEN_LEARNERS, Sound
from remuda.testing.learner_conformance import CHECKS

ENGINES = "every engine gives the same weights"
SLICES = "slices of the herd learn what the whole learns"
BREAKS = {
    "RaisesAtOnce": "it can be made, and its policy plays",
    "CountsTwice": "update makes the gradient steps it plans",
    "OncePerCall": "updates may come in portions",
    "ForgetsAMetric": "report has its metrics, one number per agent",
    "SharesRewards": "agents learn alone",
    "DrawsByPlace": SLICES,
    "ForgetsTheOptimiser": "state and restore lose nothing",
    "TakesAnything": "restore refuses what does not fit",
    "StandsStill": "skip moves clocks and nothing else",
    "DrawsGlobally": "nothing global is random",
    "KeepsFragments": "fragments are borrowed, not kept",
    "PublishesItsOwn": "published rows never change",
    "ActsByBatch": "acting does not depend on the batch",
    "LearnsBackwards": "it learns a bandit",
}
# Checks that these learners also fail, as a consequence of the promise they break.
FOLLOWS = {
    "SharesRewards": {SLICES, ENGINES},
    "DrawsByPlace": {ENGINES},
    "ForgetsAMetric": {ENGINES, "it learns a bandit"},
    "ActsByBatch": {ENGINES, "it learns a bandit"},
}  # fmt: skip
SLOW = ("LearnsBackwards", "DrawsByPlace")
"""Those that are tested by the last two checks, too, which take seconds."""
FAST = [check for check in CHECKS if check[0] not in (ENGINES, "it learns a bandit")]


def broken_promises(learner: Any, **options: Any) -> dict[str, str]:
    return {finding.promise: str(finding.problem) for finding in remuda.check(learner, **options) if not finding.good}


def test_every_check_has_a_learner_that_fails_it() -> None:
    assert set(BREAKS) == set(BROKEN_LEARNERS)
    assert {*BREAKS.values(), ENGINES} == {promise for promise, _, _ in CHECKS}


@pytest.mark.promise
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_learner_fails_its_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in SLOW:
        monkeypatch.setattr("remuda.testing.learner_conformance.CHECKS", FAST)
    found = broken_promises(BROKEN_LEARNERS[name])
    assert BREAKS[name] in found
    assert set(found) <= {BREAKS[name], *FOLLOWS.get(name, ())}, found


@pytest.mark.promise
def test_a_sound_learner_breaks_nothing() -> None:
    assert broken_promises(Sound) == {}


@pytest.mark.promise
@pytest.mark.parametrize(
    "name", [*(pytest.param(own, marks=pytest.mark.slow) for own in SHIPPED_LEARNERS), "dqn:DQN", "a2c:A2C"]
)
def test_shipped_learners_and_the_examples_keep_every_promise(name: str) -> None:
    assert broken_promises(name) == {}


def test_the_command_line_says_what_is_wrong_and_what_it_means(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.testing.learner_conformance.CHECKS", FAST)
    done = cli("check", "remuda.testing.broken_learners:CountsTwice")
    assert done.code == 1
    assert "FAIL update makes the gradient steps it plans" in done.out
    assert "`steps` grew by [2, 2, 2, 2]" in done.out
    assert "for training this means: the plan's amount of learning is not what is learned" in done.out
