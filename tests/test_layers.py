"""The import contract: imports go down only, and a wrong import is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contract on the package in a folder."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src" / "remuda", tmp_path / "remuda", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/errors.py", "from remuda.runs.run import Run"),
        ("games/grid/planes.py", "import torch"),
        ("engines/loop.py", "import ray"),
        ("learners/stack.py", "def f():\n    from remuda.engines.loop import Loop"),
    ],
)
def test_a_wrong_import_breaks_the_contract(copy: Path, file: str, line: str) -> None:
    path = copy / "remuda" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout


def test_the_package_keeps_it(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_no_cycle_of_modules() -> None:
    """Layers hold between folders; within one, too, no module imports itself by a detour."""
    graph = grimp.build_graph("remuda", cache_dir=None, exclude_type_checking_imports=True)
    cycles = []
    for module in sorted(graph.modules):
        for target in sorted(graph.find_modules_directly_imported_by(module)):
            if chain := graph.find_shortest_chain(importer=target, imported=module):
                cycles.append(" → ".join((module, *chain)))
    assert cycles == []
