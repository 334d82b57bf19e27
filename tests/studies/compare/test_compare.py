"""`remuda compare`: real trials of real engines, the recommendations, and the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import proc
from remuda.cli.main import main
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.machine import cores
from remuda.engines.table import ENGINES
from remuda.studies.compare.measure import EngineVariant, Measurement, VariantMeasurements, variants
from remuda.studies.compare.page import COLUMNS, duration
from remuda.studies.compare.recommend import recommend

TINY = ["agents=2", "height=7", "width=7", "turns=12", "layer=16", "quantiles=4", "batch_size=8", "replay_size=256"]


def measurements(engine: str, workers: int, *rates: float, **others: float) -> VariantMeasurements:
    """Made-up measurements."""
    facts: dict[str, Any] = {
        "agent_steps_per_s": 1.0, "cold_start_s": 5.0, "peak_bytes": 2**30, "collect_cpu_s": 0.01,
        "learn_cpu_s": 0.01, "other_cpu_s": 0.001, "collect_wall_s": 0.01, "learn_wall_s": 0.01, "lag_mean": 0.0,
        "lag_max": 0, "rounds": 9, **others,
    }  # fmt: skip
    return VariantMeasurements(
        EngineVariant(engine, workers), [Measurement(episodes_per_s=rate, **facts) for rate in rates]
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The files that the command writes for three engines."""
    folder = tmp_path_factory.mktemp("compared")
    words = [
        "compare", "treasurehunt", *TINY, "--engines", "sequential,vectorized,executor", "--n-workers", "2",
        "--seconds", "0.5", "--repeats", "2", "--ideal", "--cores", "8,32", "--html", str(folder / "page.html"),
        "--json", str(folder / "out.json"),
    ]  # fmt: skip
    before, sys.argv = sys.argv, ["remuda", *words]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    assert ended.value.code == 0
    return json.loads((folder / "out.json").read_text()), (folder / "page.html").read_text()


def test_every_variant_is_measured(compared: Any) -> None:
    facts, _ = compared
    measured = {(one["engine"], one["n_workers"]): one for one in facts["measured"]}
    assert set(measured) == {("sequential", 1), ("vectorized", min(2, cores())), ("executor", 2)}
    for one in measured.values():
        assert one["problem"] is None
        assert len(one["trials"]) == 2
        assert one["spread"][0] <= one["episodes_per_s"] <= one["spread"][1]
        assert sum(one["shares"].values()) == pytest.approx(1.0, abs=0.3)
        for trial in one["trials"]:
            assert trial["agent_steps_per_s"] == pytest.approx(24 * trial["episodes_per_s"])  # two agents, twelve turns
            assert trial["peak_bytes"] > 50 << 20
            assert trial["cold_start_s"] > 0
            assert trial["collect_cpu_s"] > 0
            assert trial["learn_cpu_s"] > 0
    assert measured["vectorized", min(2, cores())]["episodes_per_s"] > measured["sequential", 1]["episodes_per_s"]


def test_a_comparison_that_is_killed_leaves_no_training_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    words = ["compare", "treasurehunt", *TINY, "--engines", "executor", "--n-workers", "2", "--seconds", "600"]
    command = [sys.executable, "-m", "remuda", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as compare:
        proc.wait(lambda: len(proc.descendants(compare.pid)) >= 5, 120)  # the training and its workers
        assert any(temporary.glob("remuda-compare-*"))
        trainings = proc.descendants(compare.pid)
        compare.kill()
    proc.wait(lambda: not any(proc.find(one.pid) == one for one in trainings), 60)
    proc.wait(lambda: not any(temporary.iterdir()), 60)


def test_recommendations_predictions_and_ideal_are_there(compared: Any) -> None:
    facts, _ = compared
    assert [line["situation"] for line in facts["advice"]] == [
        "production", "debugging", "little memory", "small scale", "several machines"
    ]  # fmt: skip
    assert facts["ideal_episodes_per_s"] > 0
    assert {(one["engine"], one["cores"]) for one in facts["predicted"]} == {
        (engine, n) for engine in ("sequential", "vectorized", "executor") for n in {cores(), 8, 32}
    }


def test_the_page_is_one_file(compared: Any) -> None:
    _, page = compared

    class Reader(HTMLParser):
        tags: list[str]
        links: list[str]

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.tags.append(tag)
            self.links += [value for name, value in attrs if name in ("src", "href") and not value.startswith("#")]

    reader = Reader()
    reader.tags, reader.links = [], []
    reader.feed(page)
    assert reader.links == []
    assert "script" not in reader.tags
    assert reader.tags.count("svg") == 4
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    for name in COLUMNS:
        assert name in page
    assert "Nothing in this part was measured" in page
    assert "remuda compare treasurehunt" in page


def test_an_engine_that_cannot_run_has_a_problem_and_the_others_are_measured(
    cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)  # trials search this path too
    outcome = cli(
        "compare", "treasurehunt", *TINY, "--engines", "vectorized,ray", "--n-workers", "1", "--seconds", "0.2",
        "--repeats", "1", "--html", tmp_path / "page.html", "--json", tmp_path / "out.json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    works, missing = json.loads((tmp_path / "out.json").read_text())["measured"]
    assert works["problem"] is None
    assert "pip install 'remuda-rl[ray]'" in missing["problem"]
    assert "pip install" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--engines", "vectorised"], "did you mean 'vectorized'"),
        (["--n-workers", "2,x"], "n_workers=2,x should be whole numbers"),
        (["--cores", "0"], "cores=0 should be whole numbers"),
        (["--html", "/nowhere/page.html"], "there is no directory /nowhere"),
        (["colour=red"], "colour"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(cli: Any, words: list[str], match: str) -> None:
    outcome = cli("compare", "treasurehunt", *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert match in outcome.err


def test_more_threads_than_cores_are_not_measured() -> None:
    tried = variants("all", [1, 100])
    assert {one.kind for one in tried} == {*ENGINES, "ray+learners"}
    assert EngineVariant("executor", 100) in tried
    assert EngineVariant("ray", 100) in tried
    assert EngineVariant("vectorized", 100) not in tried
    assert sum(one.engine == "sequential" for one in tried) == 1
    with pytest.raises(UnknownName):
        variants("all,nonsense", [1])
    with pytest.raises(ConfigError):
        variants("all", [])


def test_production_is_the_fastest_or_the_simplest_within_its_spread() -> None:
    clear = [
        measurements("sequential", 1, 1, 1.1),
        measurements("vectorized", 2, 9, 10),
        measurements("executor", 2, 20, 21),
    ]
    assert recommend(clear)[0].use == "executor 2"
    close = [
        measurements("sequential", 1, 1, 1.1),
        measurements("vectorized", 2, 19, 20.5),
        measurements("executor", 2, 20, 21),
    ]
    assert recommend(close)[0].use == "vectorized 2"
    assert "executor 2 has" in recommend(close)[0].reason


def test_the_other_situations_follow_the_measurements() -> None:
    all_of_them = [
        measurements("sequential", 1, 2.0, cold_start_s=1.0, peak_bytes=1 << 28),
        measurements("vectorized", 2, 10.0, cold_start_s=3.0, peak_bytes=1 << 30),
        measurements("executor", 2, 12.0, cold_start_s=200.0, peak_bytes=1 << 29),
        measurements("ray", 2, 9.0, cold_start_s=20.0, peak_bytes=1 << 31),
    ]
    use = {line.situation: line for line in recommend(all_of_them)}
    assert use["debugging"].use == "sequential"
    assert "6.0 times as fast" in use["debugging"].reason
    assert use["little memory"].use == "executor 2"  # sequential is smaller, and too slow
    assert use["small scale"].use == "vectorized 2"
    assert use["several machines"].use == "ray 2"
    assert "0.75 of the fastest" in use["several machines"].reason
    assert {line.situation: line.use for line in recommend(all_of_them[:3])}["several machines"] == "ray"
    assert recommend([]) == []


def test_wide_spreads_are_marked() -> None:
    assert measurements("executor", 2, 1.0, 2.0, 3.0).wide
    assert not measurements("executor", 2, 1.9, 2.0, 2.1).wide


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (119, "119 s"), (150, "2.5 min"), (9000, "2.5 h"), (2e5, "2.3 days")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
