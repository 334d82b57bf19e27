"""The notebooks run from top to bottom, with small budgets, and are committed without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from test_docs import SMALLER

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BUDGETS = [*SMALLER, (r'preset="(\w+)"', r'preset="\1", total_episodes=500')]


@pytest.mark.promise
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for pattern, smaller in BUDGETS:
            cell.source = re.sub(pattern, smaller, cell.source)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_notebooks_have_no_outputs() -> None:
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == [], path.name
