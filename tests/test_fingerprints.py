"""The recorded fingerprints: complete, and the same on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import fingerprints

ROOT = Path(__file__).parents[1]


@pytest.fixture
def plans() -> dict[str, dict[str, Any]]:
    """What is recorded of each plan."""
    recorded = json.loads((ROOT / "benchmarks" / "fingerprints.json").read_text(encoding="utf-8"))
    assert set(recorded["machine"]) == set(fingerprints.machine_type())
    found: dict[str, dict[str, Any]] = recorded["plans"]
    return found


def test_every_plan_is_recorded(plans: dict[str, dict[str, Any]]) -> None:
    assert set(plans) == {*fingerprints.PLANS, *fingerprints.RESUMED}
    assert len(plans) >= 30


def test_plans_that_differ_in_more_than_their_engine_have_other_weights(plans: dict[str, dict[str, Any]]) -> None:
    """Else a plan would not notice a change of what it alone has."""
    same = {name: group[0] for group in fingerprints.same_but_for_engine(plans) for name in group}
    seen: dict[str, str] = {}
    for name, own in plans.items():
        assert seen.setdefault(own["weights_sha256"], same.get(name, name)) == same.get(name, name), name


def test_engines_agree_on_recorded_plans(plans: dict[str, dict[str, Any]]) -> None:
    groups = fingerprints.same_but_for_engine(plans)
    assert ["hunt ppo sequential", "hunt ppo executor"] in groups
    assert sum(map(len, groups)) >= 20
    assert fingerprints.engines_agree(plans)


def test_an_engine_that_differs_is_named(plans: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    plans["hunt ppo executor"] = {**plans["hunt ppo executor"], "weights_sha256": "0" * 64}
    assert not fingerprints.engines_agree(plans)
    out = capsys.readouterr().out
    assert "ENGINES DIFFER: hunt ppo sequential" in out
    assert "hunt ppo executor 0000000000000000" in out
    assert "4 of 5 groups" in out
