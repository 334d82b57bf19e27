"""What the tests share: a plan that trains in a fraction of a second, and runs trained with it."""

from __future__ import annotations

import csv
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

import remuda
from ray_nodes import ray_of_this_process
from remuda.cli.main import main

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are slow now and then
hypothesis.settings.load_profile("untimed")
torch.set_num_threads(1)  # two on a busy two-core machine make tiny products many times slower

TINY: dict[str, Any] = {
    "agents": 2, "height": 7, "width": 7, "turns": 12, "spawn": 0.1,
    "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256,
    "worlds": 3, "total_episodes": 12, "evaluate_episodes": 3, "checkpoint_every": 3, "keep_checkpoints": 99,
    "deterministic": True, "device": "cpu", "pictures": False,
}  # fmt: skip

Train = Callable[..., remuda.Run]

HERE = Path(__file__).parent
FOLDERS = (
    "promises", "adapters", "board/test_browser", "games/test_cyborg.py", "studies/compare/test_compare.py",
    "studies/workflows/test_search.py", "engines/test_placements.py", "runs/test_trackers.py", "runs/test_session.py",
    "runs/test_folder.py", "runs/test_tables.py", "runs/test_trust.py", "runs/test_odd_places.py",
    "core/test_code_versions.py", "transport/test_leaks.py", "runs/test_installed_packages.py",
    "transport/test_torn_reads.py",
)  # fmt: skip
"""Tests in here run in `make test-promises` only, except those in QUICK, which touch every promise once."""
QUICK = (
    "promises/test_independence.py", "promises/parity", "promises/matrix/test_games_and_learners.py",
    "promises/resume/test_extend.py", "promises/faults/test_exits.py", "adapters/test_spaces.py",
)  # fmt: skip


def pytest_configure() -> None:
    """Processes that tests start take Ctrl-C, also where tests run as a shell's background job, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of promises."""
    for item in items:
        path = item.path.relative_to(HERE).as_posix()
        if path.startswith(FOLDERS) and not path.startswith(QUICK):
            item.add_marker("promise")


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def _key_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are signed with a key of the tests, not with that of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """A Ray of this process, which the runs of a module use instead of starting and ending one each."""
    with ray_of_this_process():
        yield


@pytest.fixture(autouse=True)
def _ray_for_those_who_need_it(request: pytest.FixtureRequest) -> None:
    """Tests of every engine have one that is there already."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    if str(parameters.get("engine")).startswith("ray"):
        request.getfixturevalue("ray_here")


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """Settings of the tiny plan."""
    return dict(TINY)


@pytest.fixture(scope="session")
def words() -> list[str]:
    """The tiny plan as words of a command line."""
    return ["treasurehunt", *(f"{name}={value}" for name, value in TINY.items())]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train the tiny plan with changes; the same changes give the same run, which nobody may alter."""
    runs: dict[str, remuda.Run] = {}

    def train(**changes: Any) -> remuda.Run:
        name = repr(sorted(changes.items()))
        if name not in runs:
            out = tmp_path_factory.mktemp("trained") / "run"
            runs[name] = remuda.train("treasurehunt", out=out, quiet=True, **{**TINY, **changes})
        return runs[name]

    return train


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train the tiny plan with changes into a directory of this test's own."""

    def train(name: str = "run", callback: Any = None, **changes: Any) -> remuda.Run:
        settings = {**TINY, **changes}
        return remuda.train(
            "treasurehunt", out=tmp_path / name, callbacks=[callback] if callback else [], quiet=True, **settings
        )

    return train


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[remuda.Run], remuda.Run]:
    """A copy of a run that the test may alter."""

    def copy(run: remuda.Run) -> remuda.Run:
        target = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(run.path, target)
        return remuda.Run(target)

    return copy


@pytest.fixture(scope="session")
def csv_rows() -> Callable[[remuda.Run], dict[str, list[dict[str, str]]]]:
    """The rows of a run's CSV files as text, without the clock."""

    def read(run: remuda.Run) -> dict[str, list[dict[str, str]]]:
        result = {}
        for name in ("metrics.csv", "evaluations.csv"):
            with (run.path / name).open(newline="", encoding="utf-8") as file:
                result[name] = [{k: v for k, v in row.items() if k != "wall_s"} for row in csv.DictReader(file)]
        return result

    return read


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    """Run a command in this process, in an empty directory."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["remuda", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        return Outcome(int(exit_.value.code or 0), captured.out, captured.err)

    return run
