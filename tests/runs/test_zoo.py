"""Agents that come with remuda: found by name only, intact, and as good as any run to evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest

import remuda
from remuda.core.errors import UnknownName
from remuda.learners.herd import weights_sha256
from remuda.runs.zoo import FOLDER, zoo_names


@pytest.mark.parametrize("name", zoo_names())
def test_its_weights_are_those_that_its_result_names(name: str) -> None:
    run = remuda.load(f"zoo:{name}")
    policy = run.policy([0], run.spec.groups[0], "cpu")
    assert weights_sha256([policy]) == run.result["weights_sha256"]
    files = [path for path in (FOLDER / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1 << 20
    assert {path.suffix for path in files} == {".yaml", ".json", ".safetensors"}


def test_the_generalist_defends_against_every_script() -> None:
    returns = {
        red: remuda.evaluate("zoo:cage2/generalist", 50, red=red).returns.mean() for red in ("b_line", "meander")
    }
    assert min(returns.values()) > -20
    assert remuda.evaluate("zoo:cage2/generalist", 10, red="sleep").returns.mean() == 0


def test_it_plays_as_a_frozen_agent() -> None:
    scores = remuda.evaluate(
        "cage2", 5, learner="frozen:zoo:cage2/memory/0", observation="memory", actions="compact", steps=10
    )
    assert scores.returns.shape == (5, 1)


@pytest.mark.parametrize("name", ["zoo:cage2/generalst", "zoo:../zoo/cage2/generalist", "zoo:/etc", "zoo:"])
def test_only_names_of_the_list_are_followed(name: str) -> None:
    with pytest.raises(UnknownName, match="agent of the zoo"):
        remuda.load(name)


@pytest.mark.promise
def test_nothing_is_written_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert remuda.watch("zoo:cage2/generalist") == Path("watch.gif")
    assert (tmp_path / "watch.gif").is_file()
